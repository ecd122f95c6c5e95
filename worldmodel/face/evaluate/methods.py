"""Who swaps: trained generators, baselines without weights, and the two ends of the scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any

from worldmodel.errors import UserError
from worldmodel.evaluate.compare.arms import Arm, parse_arms
from worldmodel.face.generator import Generator
from worldmodel.face.methods import METHODS, find_method

TARGET, TRUTH = "target", "truth"
ENDS = (TARGET, TRUTH)  # nothing done, and what should have been done
TAKEN = (*METHODS, *ENDS, "input", "reference")
ALONE = "swap"  # the name of a single folder that was given none


@dataclass(frozen=True, slots=True)
class Method:
    """One way to swap. models: a generator for each training seed; one for baselines; none for the ends of the scale,
    whose faces are the target's or the true ones."""

    arm: Arm
    models: tuple[Generator[Any], ...]

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def trained(self) -> bool:
        return bool(self.arm.folders)

    @property
    def end(self) -> bool:
        return not self.models

    @property
    def streams(self) -> tuple[Generator[Any] | None, ...]:
        """What each stream of it runs; None for an end of the scale."""
        return self.models or (None,)


def chunks_of(methods: Sequence[Method]) -> int:
    """The frames after which the chunks of all methods end together."""
    return lcm(*(model.chunk for method in methods for model in method.models))


def parse_methods(texts: Sequence[str]) -> tuple[Arm, ...]:
    """Arms of trained swaps, the first is what others are compared with: NAME=FOLDER,FOLDER,... with a folder for each
    training seed, or one folder alone. UserErrors as `parse_arms`, and for names of baselines."""
    if len(texts) == 1 and "=" not in texts[0]:
        return (Arm(ALONE, (texts[0],)),)
    arms = parse_arms(texts, least=0)
    for arm in arms:
        if arm.name in TAKEN:
            raise UserError(f"method '{arm.name}': this name is taken ({', '.join(TAKEN)}); give another one")
    return arms


def open_methods(
    arms: Sequence[Arm], baselines: Sequence[str], device: str = "cpu", ends: Sequence[str] = ENDS, size: int = 64
) -> tuple[Method, ...]:
    """Trained ones as given, then baselines, then the ends of the scale. A UserError unless all make regions of one
    size, and if nothing swaps. size: of regions where no trained method says one."""
    from worldmodel.face.swap_model import SwapModel

    found = [Method(arm, tuple(SwapModel.find(Path(folder), device) for folder in arm.folders)) for arm in arms]
    first = None
    for method in found:
        for folder, model in zip(method.arm.folders, method.models, strict=True):
            first = first or (folder, model.size)
            if model.size != first[1]:
                raise UserError(
                    f"{folder} makes regions of {model.size} pixels, {first[0]} of {first[1]}: they cannot be measured "
                    "on the same"
                )
    size = size if first is None else first[1]
    for name in baselines:
        if name not in METHODS:
            raise UserError(f"--baselines {name}: there are {', '.join(METHODS)}")
        found.append(Method(Arm(name, ()), (find_method(name, size)[0],)))
    if not found:
        raise UserError("evaluate swap: no method and no baseline: nothing swaps")
    return (*found, *(Method(Arm(name, ()), ()) for name in ends))
