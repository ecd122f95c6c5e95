"""Several one-step models of one shape as one: each has its own weights and its own share of the rows.

Small networks cost mostly the time of starting operations, so that a few of them trained in one pass cost little more
than one. Rows are independent, and so are weights: a loss that is a mean over rows trains each model as it would alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from .one_step import OneStep


class Together(OneStep):
    """n models. Row b of B belongs to model b // (B / n); parameters and buffers have a leading dimension n."""

    def __init__(self, models: Sequence[OneStep]) -> None:
        super().__init__()
        self.count, self._shape = len(models), (models[0],)  # in a tuple: no submodule, only its operations are used
        stacked: Any = stack_module_state(list(models))
        for name, parameter in stacked[0].items():
            self.register_parameter(_key(name), nn.Parameter(parameter.detach().clone()))
        for name, buffer in stacked[1].items():
            self.register_buffer(_key(name), buffer.clone(), persistent=False)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return self._shape[0].frame_shape

    def forward(self, last: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]; B must be a multiple of the number of models."""
        own = {_name(key): value for key, value in (*self.named_parameters(), *self.named_buffers())}

        def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self._shape[0], weights, (x,))

        return vmap(one)(own, last.unflatten(0, (self.count, -1))).flatten(0, 1)

    @torch.no_grad()
    def states(self) -> list[dict[str, Tensor]]:
        """The state of every model, under its own names."""
        return [{_name(key): p[n].clone() for key, p in self.named_parameters()} for n in range(self.count)]


def _key(name: str) -> str:
    """A parameter's name without the dots that PyTorch keeps for submodules."""
    return name.replace(".", "/")


def _name(key: str) -> str:
    return key.replace("/", ".")
