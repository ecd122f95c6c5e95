"""Actions that also name the pose they lead to, for worlds whose state has x, y and angle.

A model that is told where it will stand can find what it saw from there in a long memory by content alone, as camera
poses are given to video models with memory (WorldMem, 2504.12369; Context as Memory, 2506.03141). Without it, it would
have to add up its own turns and steps. The pose comes as sines and cosines of several wavelengths (positional encoding,
2003.08934): near poses have near codes, and a product of two codes tells how near. Which wavelengths, and that the
angle has three, is our own choice.

Letters: T frames, A dimensions of the world's own action, W wavelengths, P = 6 + 4 W.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError

TURNS = (1, 2, 4)  # waves of the angle in a whole turn
NEEDED = ("x", "y", "angle")


def pose_names(waves: Sequence[float]) -> tuple[str, ...]:
    """Names of the P numbers, in the order of `pose_code`."""
    angle = [f"{wave}_{turns}angle" for turns in TURNS for wave in ("cos", "sin")]
    place = [f"{wave}_{axis}_{length:g}" for axis in ("x", "y") for length in waves for wave in ("cos", "sin")]
    return (*angle, *place)


def pose_code(state: NDArray[np.floating], names: Sequence[str], waves: Sequence[float]) -> NDArray[np.float32]:
    """float32 [T, P] in [-1, 1] of states [T, S] whose dimensions are called `names`; angle in degrees.

    waves: wavelengths in the unit of x and y. UserErrors as `check_pose`.
    """
    check_pose(names, waves)
    x, y, angle = (state[:, list(names).index(name)].astype(np.float64) for name in NEEDED)
    phases = [np.radians(angle) * turns for turns in TURNS]
    phases += [2 * np.pi * place / length for place in (x, y) for length in waves]
    return np.stack([wave(phase) for phase in phases for wave in (np.cos, np.sin)], 1).astype(np.float32)


def with_pose(
    actions: NDArray[np.float32], after: NDArray[np.floating], names: Sequence[str], waves: Sequence[float]
) -> NDArray[np.float32]:
    """Actions [T, A] beside the code of the states [T, S] that they lead to: [T, A + P]."""
    return np.concatenate((actions, pose_code(after, names, waves)), 1)


def check_pose(names: Sequence[str], waves: Sequence[float]) -> None:
    """UserError unless the state has a pose and the wavelengths are different positive numbers."""
    if not set(NEEDED) <= set(names):
        raise UserError(f"pose: the state must have x, y and angle, it has {', '.join(names) or 'nothing'}")
    if any(not 0 < length < float("inf") for length in waves) or len(set(waves)) < len(waves):
        raise UserError(f"pose: wavelengths are different positive numbers, not {list(waves)}")
