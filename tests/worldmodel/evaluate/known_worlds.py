"""Models of the panorama as the arms of a comparison: exact, noisy and deaf ones, each with its own fingerprint."""

from dataclasses import replace
from typing import Any

import panorama
import torch

from worldmodel.evaluate.compare import CompareSettings

SIZES = CompareSettings(frames=40, window=8, windows=3, rollouts=3, clips=4, horizon=4, context=2, reference=60)


class Known(torch.nn.Module):
    """A KnowingModel with a state, so that it has a fingerprint."""

    def __init__(self, known: Any, number: float) -> None:
        super().__init__()
        self.known, self.number = known, torch.nn.Parameter(torch.tensor(float(number)))
        self.chunk, self.frame_shape, self.patch_in = known.chunk, known.frame_shape, known.patch_in
        self.empty_memory, self.prepare, self.remember = known.empty_memory, known.prepare, known.remember
        self.velocity = known.velocity


def world(number: float, deaf: bool = False, jitter: float = 0.0) -> Any:
    made = panorama.world(deaf, jitter)
    model: Any = Known(made.dit, number)
    torch.nn.init.constant_(model.patch_in.weight, 0)
    torch.nn.init.constant_(model.patch_in.bias, 0)
    return replace(made, dit=model)


WORLDS = {
    "e0": world(0), "e1": world(1), "n0": world(2, jitter=60), "n1": world(3, jitter=80), "d0": world(4, deaf=True),
}  # fmt: skip
