"""The arms of a measurement of memory: which models, with which memory, and what was measured of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from worldmodel.errors import UserError
from worldmodel.evaluate.compare.arms import Arm, Open, parse_arms
from worldmodel.evaluate.context.forgetting import Forgetting
from worldmodel.evaluate.context.redraw import Measurement
from worldmodel.memory import AnyMemory, MemoryConfig
from worldmodel.models.world import WorldModel
from worldmodel.serial import from_json

ALL = ""  # the name under which an override holds for every arm; and the name of a single model's arm


def arms_of(texts: Sequence[str]) -> tuple[Arm, ...]:
    """One model's folder, or one or more NAME=FOLDER,FOLDER,...: the first is the baseline. UserErrors as parse_arms.

    A folder alone has the name "".
    """
    if len(texts) == 1 and "=" not in texts[0]:
        return (Arm(ALL, (texts[0],)),)
    return parse_arms(texts, least=1)


def overrides(texts: Sequence[str], arms: Sequence[Arm]) -> dict[str, MemoryConfig]:
    """Memories by arm, from '{"type": "WindowConfig", "ring": 10}' (for all) or 'NAME={...}'. UserError otherwise."""
    found: dict[str, MemoryConfig] = {}
    names = [arm.name for arm in arms]
    for text in texts:
        name, sign, data = text.partition("=")
        if not sign or "{" in name:  # JSON may hold a "="
            name, data = ALL, text
        name = name.strip()
        if name != ALL and name not in names:
            raise UserError(f"--memory {text}: no arm is called '{name}'; there are {', '.join(names)}")
        try:
            value = json.loads(data)
        except ValueError as error:
            raise UserError(f"--memory {text}: not valid JSON ({error})") from error
        found[name] = from_json(value, AnyMemory, "--memory")
    return found


def remembering(world: WorldModel, memory: MemoryConfig | None) -> WorldModel:
    """The same model with another memory; itself for None. UserError for one that it cannot work with."""
    if memory is None:
        return world
    stream = replace(world.stream, memory=memory)
    stream.check(world.dit.cfg)
    return replace(world, stream=stream)


@dataclass(frozen=True, slots=True)
class OpenArm:
    """Opens models of arms; those named in `memories` (ALL: every arm) get that memory instead of their own."""

    open_world: Open
    memories: dict[str, MemoryConfig]

    def __call__(self, arm: Arm, folder: str) -> WorldModel:
        memory = self.memories.get(arm.name, self.memories.get(ALL))
        return remembering(self.open_world(folder), memory)


@dataclass(frozen=True, slots=True)
class Measured:
    """An arm, what was measured of each of its models, and its memory in words."""

    arm: Arm
    memory: str
    found: tuple[Measurement, ...]

    @property
    def prefix(self) -> str:
        """Of the arm's metrics: "NAME/", or nothing for a single model."""
        return f"{self.arm.name}/" if self.arm.name else ""

    @property
    def label(self) -> str:
        return self.arm.name or "model"

    @property
    def memory_bytes(self) -> int:
        """The largest of its models."""
        return max(each.memory_bytes for each in self.found)

    def scores(self, measure: int) -> np.ndarray:
        """[k, V]"""
        return np.stack([each.scores[measure] for each in self.found])

    def right(self, measure: int) -> np.ndarray:
        """[k, V]"""
        return np.stack([each.right[measure] for each in self.found])


@dataclass(frozen=True, slots=True)
class Forgot:
    """What became of an arm's memory, by one measure: scores, and retrieval."""

    scores: Forgetting
    right: Forgetting
