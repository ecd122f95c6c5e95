"""Trials of a policy on shifted robots, as a folder: what a context encoder learns from.

trials.json            format version, the policy's fingerprint, and of each trial its case and outcome
trials.safetensors     image, state and action of all trials, one after another
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.folders import check_creatable, replaced
from worldmodel.policies.episodes import Case, Robots, Settings, Trial, run_cases
from worldmodel.policies.observation import Interface
from worldmodel.policies.policy import Policy
from worldmodel.policies.shifts import draw_offset, parse_shift
from worldmodel.serial import check_format, from_json, read_json, to_json, write_json
from worldmodel.weights import read_tensors, write_tensors

FORMAT = 1
FILES = ("trials.json", "trials.safetensors")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a trial beside its numbers. moments: M, of its observations."""

    task: str
    seed: int
    shift: str
    success: bool
    moments: int


@dataclass(frozen=True, slots=True)
class Trials:
    """Trials with the shift that each was made under. policy: fingerprint of the policy that made them. settings: what
    else they depend on, in words; "" where that is not known."""

    policy: str
    known: tuple[Known, ...]
    made: tuple[Trial, ...]
    settings: str = ""

    def joined(self, more: "Trials") -> "Trials":
        """These and more of the same policy and settings."""
        return replace(self, known=self.known + more.known, made=self.made + more.made)

    def differences(self, interface: Interface) -> list[str]:
        """Why these are no trials of a policy with that interface; nothing if they may be."""
        found = []
        for name, kind, wanted in (
            ("image", np.uint8, (len(interface.cameras), 3, *interface.size)),
            ("state", np.float32, (len(interface.state.names),)),
            ("action", np.float32, (len(interface.action.names),)),
        ):
            part = getattr(self.made[0], name)
            if part.dtype != kind or part.shape[1:] != wanted:
                found.append(
                    f"'{name}' must be {np.dtype(kind).name} of {list(wanted)} at every moment, it is "
                    f"{part.dtype.name} of {list(part.shape[1:])}"
                )
            elif not all(np.isfinite(getattr(trial, name)).all() for trial in self.made):
                found.append(f"'{name}' has numbers that are not finite")
        return found

    def save(self, folder: Path) -> None:
        """Write the folder; older trials in it are replaced. A full disk is a UserError."""
        parts = {name: np.concatenate([getattr(trial, name) for trial in self.made]) for name in Trial.__slots__}
        with replaced(folder, FILES) as beside:
            write_tensors({name: torch.from_numpy(part) for name, part in parts.items()}, beside / FILES[1])
            known = [asdict(each) for each in self.known]
            facts = {"format": FORMAT, "policy": self.policy, "settings": self.settings}
            write_json({**facts, "trials": known}, beside / FILES[0])

    @classmethod
    def load(cls, folder: Path) -> "Trials":
        """Read a folder; what is missing, broken or does not fit is a UserError that names it."""
        path = folder / FILES[0]
        data: Any = check_format(read_json(path), FORMAT, path, keys=("policy", "trials"))
        if not isinstance(data["trials"], list) or not data["trials"]:
            raise UserError(f"{path}: 'trials' must be a list that is not empty")
        known = tuple(from_json(each, Known, f"{path}: trials[{i}]") for i, each in enumerate(data["trials"]))
        for i, each in enumerate(known):
            try:
                parse_shift(each.shift)
            except UserError as error:
                raise UserError(f"{path}: trials[{i}]: {error}") from error
        tensors = read_tensors(folder / FILES[1])
        total = sum(each.moments for each in known)
        for name in Trial.__slots__:
            rows = tensors[name].shape[:1] if name in tensors else ()
            if rows != (total,) or min(each.moments for each in known) < 1:
                raise UserError(f"{folder / FILES[1]}: '{name}' must have {total} rows, as {path} says")
        parts = {name: tensors[name].numpy() for name in Trial.__slots__}
        ends = np.cumsum([each.moments for each in known])
        cut = {name: np.split(part, ends[:-1]) for name, part in parts.items()}
        made = tuple(Trial(*(cut[name][i] for name in Trial.__slots__)) for i in range(len(known)))
        return cls(str(data["policy"]), known, made, str(data.get("settings", "")))


def shifted_cases(
    task: str, kinds: Sequence[str], least: float, most: float, count: int, first_seed: int
) -> tuple[Case, ...]:
    """`count` cases of a task, each under an offset of its own (`draw_offset`), the kinds in turn; UserErrors if there
    are none, or unknown ones."""
    if not kinds:
        raise UserError("trials need a kind of shift or more")
    return tuple(
        Case(task, first_seed + n, draw_offset(kinds[n % len(kinds)], least, most, first_seed + n).name)
        for n in range(count)
    )


def record_trials(
    policy: Policy,
    todo: Sequence[Case],
    settings: Settings,
    robots: Robots,
    told: Callable[[int], None] = lambda trials: None,
    start: int = 0,
) -> Trials:
    """Run the policy, knowing nothing of the shifts, on every case. told: after each, how many are done. start: as
    of `run_cases`."""
    known: list[Known] = []
    made: list[Trial] = []
    for row, trial in run_cases(policy, todo, settings, robots, start):
        known.append(Known(row.task, row.seed, row.shift, row.success, len(trial.state)))
        made.append(trial)
        told(len(made))
    return Trials(fingerprint(policy.model), tuple(known), tuple(made), _in_words(policy, settings))


def before(folder: Path, policy: Policy, todo: Sequence[Case], settings: Settings) -> Trials | None:
    """The first of these trials, if a folder has them already; None if it does not exist.

    UserError if it holds anything else: those of another policy, other cases or settings, or more than `todo`.
    """
    if not folder.exists():
        check_creatable(folder)
        return None
    if not (folder / FILES[0]).is_file():
        raise UserError(f"{folder} exists already and holds no trials: give a new folder")
    found = Trials.load(folder)
    if (found.policy, found.settings) != (fingerprint(policy.model), _in_words(policy, settings)):
        raise UserError(f"{folder} holds trials of another policy, or made otherwise: give a new folder")
    if [(each.task, each.seed, each.shift) for each in found.known] != [
        (case.task, case.seed, case.shift) for case in todo[: len(found.known)]
    ]:
        raise UserError(f"{folder} holds other trials, or more than {len(todo)}: give a new folder")
    return found


def _in_words(policy: Policy, settings: Settings) -> str:
    """What trials depend on beside the policy's weights and the case."""
    interface = hashlib.sha256(json.dumps(to_json(policy.interface), sort_keys=True).encode()).hexdigest()[:16]
    acting = json.dumps(to_json(policy.acting), sort_keys=True)
    return f"horizon {settings.horizon}, seed {settings.seed}, acting {acting}, interface {interface}"
