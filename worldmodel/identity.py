"""What a run is, beside how far and how fast it goes: a checkpoint is continued only by the run that made it.

What may change between the two is what leaves every step as it was (out, log_every, save_every, threads, compile,
checkpointing ..., and the stream where the objective makes no rollouts and its memory holds whole clips) and what
people change on purpose while a run goes on (steps, schedule, the optimizer's rates). `init` may change where all
weights are trained, as it is only a start; the frozen weights under adapters are known by their fingerprint, wherever
they lie.
"""

import dataclasses
from typing import Any

from torch import nn

from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint_of_tensors
from worldmodel.run import Recipe, Training
from worldmodel.serial import from_json, to_json

_ALWAYS = ("model", "seed", "data.action_spec", "data.split")  # what every version has known
_SINCE_2 = ("objective", "optimizer.type", "lora", "micro", "data.batch", "data.length", "data.curriculum")


def identity(run: Training, recipe: Recipe, frozen: str | None) -> dict[str, Any]:
    """Names of options to values, as JSON. frozen: what `frozen_weights` gave for the run's model."""
    return {name: to_json(value) for name, value in _values(run, recipe, frozen).items()}


def frozen_weights(model: nn.Module) -> str | None:
    """Fingerprint of the parameters that are not trained, which no checkpoint holds; None if there are none.

    To be taken before the model is wrapped or sharded.
    """
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return fingerprint_of_tensors(frozen) if frozen else None


def _values(run: Training, recipe: Recipe, frozen: str | None) -> dict[str, Any]:
    return {
        "optimizer.type": type(run.optimizer).__name__,
        "seed": run.seed,
        "micro": run.micro,
        "ema": run.ema,
        "precision": run.precision,
        "clip_grad": str(run.clip_grad),  # it may be inf, for which JSON has no number
        **recipe.identity(frozen),
    }


def check_identity(
    stored: dict[str, Any], run: Training, recipe: Recipe, frozen: str | None, where: str, version: int
) -> None:
    """Raise a UserError with the first difference between an identity and that of a run.

    stored: of the run that wrote the checkpoint; what a version that knew fewer names left out is not compared.
    frozen: as of `identity`. where: what holds `stored`, for the error. version: of its format.
    """
    values = _values(run, recipe, frozen)
    for name in _ALWAYS if version < 2 else _ALWAYS + _SINCE_2:
        if name in values and name not in stored:
            raise UserError(f"{where}: key 'run' does not hold '{name}'")
    for name, value in values.items():
        if name not in stored:
            continue
        there, here = _filled(stored[name], value, f"{where}: {name}"), to_json(value)
        found = _other_base(there, here) if name == "init" else _difference(name, there, here)
        if found is not None:
            key, there, here = found
            raise UserError(f"{where}: {key} was {there}, this run's is {here}; choose another out folder")


def _other_base(there: Any, here: dict[str, Any]) -> tuple[str, str, str] | None:
    """Frozen weights are the same wherever they lie."""
    if not isinstance(there, dict):
        return _difference("init", there, here)
    if there.get("frozen") == here["frozen"]:
        return None
    was, now = (f"{base.get('path')} (frozen weights {base.get('frozen')!s:.8})" for base in (there, here))
    return "init", was, now


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
