"""An exponential moving average of a model's weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """average <- decay * average + (1 - decay) * weights, with a warm-up decay of (1 + n) / (10 + n) at update n.

    Only floating-point parameters that are trained are averaged; the rest are read from the model itself.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.average = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for name, p in model.named_parameters():
            if name in self.average:
                self.average[name].lerp_(p.detach(), 1 - decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        own = {n: p for n, p in model.named_parameters() if n in self.average}
        kept = {n: p.detach().clone() for n, p in own.items()}
        self._write(own, self.average)
        try:
            yield
        finally:
            self._write(own, kept)

    @staticmethod
    @torch.no_grad()
    def _write(params: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
        for name, p in params.items():
            p.copy_(values[name])
