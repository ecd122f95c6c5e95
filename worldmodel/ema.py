"""An exponential moving average of a model's weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


class Ema:
    """average <- decay * average + (1 - decay) * weights, with a warm-up decay of (1 + n) / (10 + n) at update n.

    model: the module itself, not a data-parallel wrapper of it, so that names are those of its state dict. Only the
    parameters that are trained are averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.updates = model, decay, 0
        self.average = {name: p.detach().clone() for name, p in self._trained().items()}

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        """After an optimizer step."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for name, p in self._trained().items():
            self.average[name].lerp_(p.detach(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        kept = {name: p.detach().clone() for name, p in self._trained().items()}
        self._write(self.average)
        try:
            yield
        finally:
            self._write(kept)

    def state_dict(self) -> dict[str, Tensor]:
        """Whole tensors (all ranks must call this), and the number of updates."""
        whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in self.average.items()}
        return {**whole, "updates": torch.tensor(self.updates)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state_dict`, on any number of ranks."""
        self.updates = int(state["updates"])
        for name, own in self.average.items():
            stored = state[name].to(own.device)
            own.copy_(
                distribute_tensor(stored, own.device_mesh, own.placements, src_data_rank=None)
                if isinstance(own, DTensor)
                else stored
            )

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, p in self._trained().items():
            p.copy_(values[name])
