"""What a run is, beside how far and how fast it goes: a checkpoint is continued only by the run that made it.

What may change between the two is what leaves every step as it was (out, log_every, save_every, threads, compile,
checkpointing ...) and what people change on purpose while a run goes on (steps, schedule, the optimizer's rates).
"""

import dataclasses
from typing import Any

from worldmodel.errors import UserError
from worldmodel.run import Run
from worldmodel.serial import from_json, to_json


def identity(run: Run) -> dict[str, Any]:
    """Names of options to values, as JSON."""
    return {name: to_json(value) for name, value in _values(run).items()}


def _values(run: Run) -> dict[str, Any]:
    return {
        "model": run.model,
        "objective": run.objective,
        "optimizer.type": type(run.optimizer).__name__,
        "lora": run.lora,
        "seed": run.seed,
        "micro": run.micro,
        "data.batch": run.data.batch,
        "data.length": run.data.length,
        "data.curriculum": run.data.curriculum,
        "data.action_spec": run.data.action_spec,
        "data.split": run.data.split,
    }


def check_identity(stored: dict[str, Any], run: Run, where: str) -> None:
    """Raise a UserError with the first difference between an identity and that of a run.

    stored: of the run that wrote the checkpoint; what a version that knew fewer names left out is not compared. where:
    what holds it, for the error.
    """
    for name, value in _values(run).items():
        if name not in stored:
            continue
        found = _difference(name, _filled(stored[name], value, f"{where}: {name}"), to_json(value))
        if found is not None:
            key, there, here = found
            raise UserError(f"{where}: {key} was {there}, this run's is {here}; choose another out folder")


def _filled(stored: Any, value: Any, where: str) -> Any:
    """A stored configuration with the defaults of fields that are newer than it."""
    kind = stored.get("type") if isinstance(stored, dict) else None
    if not dataclasses.is_dataclass(value) or kind != type(value).__name__:
        return stored
    return to_json(from_json(stored, type(value), where))


def _difference(name: str, there: Any, here: Any) -> tuple[str, str, str] | None:
    """The innermost name at which two JSON values differ, and what each has there."""
    if isinstance(there, dict) and isinstance(here, dict) and there.keys() == here.keys():
        return next((d for key in here if (d := _difference(f"{name}.{key}", there[key], here[key]))), None)
    return None if there == here else (name, _short(there), _short(here))


def _short(value: Any) -> str:
    if isinstance(value, dict) and "type" in value:
        return value["type"]
    return shown if len(shown := str(value)) <= 80 else f"{shown[:80]}..."
