"""The arms of a comparison: which models they are, what they must share, and what was measured of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from worldmodel.errors import UserError
from worldmodel.evaluate.compare.measure import Measurement
from worldmodel.evaluate.compare.statistics import Curves
from worldmodel.evaluate.long_rollouts import Scale
from worldmodel.models.interface import first_difference
from worldmodel.models.world import WorldModel, made_in

Open = Callable[[str], WorldModel]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train. folders: a world model per training seed; number i of every arm has the same seed."""

    name: str
    folders: tuple[str, ...]


def parse_arms(texts: Sequence[str], least: int = 2) -> tuple[Arm, ...]:
    """Arms from texts "NAME=FOLDER,FOLDER,...", the baseline first. Another form, or too few, is a UserError."""
    arms: list[Arm] = []
    for text in texts:
        name, sign, rest = text.partition("=")
        folders = tuple(folder.strip() for folder in rest.split(","))
        if not sign or not name.strip() or not all(folders):
            raise UserError(f"arm '{text}': give NAME=FOLDER,FOLDER,... with a folder for each training seed")
        if len({made_in(Path(folder)).resolve() for folder in folders}) < len(folders):
            raise UserError(f"arm '{text}': names a folder twice; every folder is a training seed of its own")
        if "/" in name or name.strip() == "recorded":
            raise UserError(f"arm '{text}': a name is not 'recorded' and holds no '/'; metrics are called ARM/MEASURE")
        if name.strip() in [arm.name for arm in arms]:
            raise UserError(f"arm '{name.strip()}' is named twice")
        arms.append(Arm(name.strip(), folders))
    if len(arms) < least:
        raise UserError(f"arms given: {len(arms)}; {least} or more are needed, the baseline first")
    return tuple(arms)


def check_same(arms: Sequence[Arm], open_world: Open) -> WorldModel:
    """As `check_each`, of models that are opened the same way in every arm."""
    return check_each(arms, lambda _, folder: open_world(folder))


def check_each(arms: Sequence[Arm], open_arm: Callable[[Arm, str], WorldModel]) -> WorldModel:
    """The first model, if all have its picture size, frame rate, chunk, actions and tokenizer; else a UserError.

    Ranges of actions may differ: every model normalises the recorded actions by its own.
    """
    first = None
    for arm in arms:
        for folder in arm.folders:
            world = open_arm(arm, folder)
            first = first or world
            if found := first_difference(first, world, ranges=False):
                what, expected, value = found
                raise UserError(
                    f"{folder} (arm '{arm.name}') has another {what} than {arms[0].folders[0]}: {value}, not {expected}"
                )
    if first is None:
        raise UserError("a comparison needs a model")
    return first


@dataclass(frozen=True, slots=True)
class Measured:
    """An arm with what was measured of each of its models, in the order of its folders."""

    arm: Arm
    found: tuple[Measurement, ...]

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def seeds(self) -> int:
        return len(self.found)

    def curves(self, encoder: int, scale: Scale) -> Curves:
        """Distances above the floor in the features of one encoder."""
        values = np.stack([each.raw[encoder] for each in self.found]) - scale.floor.value
        left = np.stack([each.without[encoder].T for each in self.found])  # [k, B, W]
        floors = np.array(scale.floor.without)[None, :, None]
        return Curves(values, left - floors if left.shape[1] else left)
