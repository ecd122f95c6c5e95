"""What a stream may be given from outside, as protocols: a simulator that runs beside the dream, and recordings.

This folder knows no dataset and no simulator: the command line passes objects of these shapes in.

Shape letters: P pixel frames, T latent frames, H W pixels, D size of one environment action. One latent frame carries
`pack` environment actions and shows `temporal` pixel frames.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""uint8 RGB, [H, W, 3] for one picture and [P, H, W, 3] for several."""


class RealWorld(Protocol):
    """A simulator of the world that the model has learned. One thread opens, uses and closes it."""

    def reset(self, seed: int) -> Pixels:
        """Start an episode that is a function of the seed; returns its first picture [H, W, 3]."""
        ...

    def step(self, actions: NDArray[np.float32]) -> Pixels:
        """Execute the actions of one latent frame, [pack, D] in the units of the model's ActionSpec.

        Returns the pictures of that latent frame, [temporal, H, W, 3]. An episode that ends is started anew inside.
        """
        ...

    def close(self) -> None: ...


RealWorldFactory = Callable[[], RealWorld]


@dataclass(frozen=True, slots=True)
class Footage:
    """A piece of real video to start a stream from, and what was done in it."""

    pixels: Pixels  # [P, H, W, 3], P = 1 + temporal * (T - 1)
    actions: NDArray[np.float32] | None  # [(T - 1) * pack, D] in environment units; None: nothing was done


class Recordings(Protocol):
    """Recorded videos: any of their frames may be the start of a stream. Called from one thread at a time."""

    @property
    def frames(self) -> int:
        """How many frames there are to start from."""
        ...

    def picture(self, frame: int) -> Pixels:
        """One frame, [H, W, 3] of any size."""
        ...

    def footage(self, frame: int, latents: int) -> Footage:
        """`latents` latent frames that end at `frame`, or near the beginning of an episode the first that exist."""
        ...
