"""What `kernels check` looks at in shared-prefix attention: its kernels are those of segmented attention."""

from collections.abc import Callable

import torch
from torch import Tensor

from worldmodel.kernels import backend
from worldmodel.kernels.check.declare import Case, Configuration, OpChecks, padded

from .shared import QKV, attend_prefix


def _case(name: str, dtype: torch.dtype, rollouts: int, prefix: int, length: int, chunk: int, size: float) -> Case:
    def make(rng: torch.Generator, dtype: torch.dtype) -> list[Tensor]:
        def draw(rows: int, heads: int, tokens: int) -> Tensor:
            return padded((torch.randn(rows, heads, tokens, 32, generator=rng, dtype=torch.float64) * size).to(dtype))

        return [draw(rows, heads, n) for rows, n in ((1, prefix), (rollouts, length)) for heads in (2, 1, 1)]

    def shared(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        def run(*x: Tensor) -> tuple[Tensor, Tensor]:
            with backend.using(name):
                return attend_prefix(QKV(*x[:3]), QKV(*x[3:]), chunk, chunk)

        return run

    def copies(*x: Tensor) -> tuple[Tensor, Tensor]:
        """N copies; the prefix that is returned is that of the first, and its tokens' gradients are summed."""
        own = [torch.cat((a.expand(rollouts, -1, -1, -1), b), 2) for a, b in zip(x[:3], x[3:], strict=True)]
        place = torch.arange(prefix + length)
        cut = torch.where(place < prefix, place // max(1, chunk), prefix + (place - prefix) // max(1, chunk))
        seen = cut <= cut[:, None] if chunk else (place < prefix) | (place[:, None] >= prefix)
        q, k, v = own[0], *(part.repeat_interleave(2, 1) for part in own[1:])
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)
        return found[:1, :, :prefix], found[:, :, prefix:]

    return Case(name, make, shared("triton"), copies, shared("sdpa"), dtype, tuple(range(6)))


def cases() -> list[Case]:
    return [
        _case("3 rollouts of one prefix, in chunks", torch.float32, 3, 40, 33, 8, 1.0),
        _case("2 rollouts, scale 4", torch.float16, 2, 41, 9, 0, 4.0),
    ]


def configurations() -> list[Configuration]:
    """None of its own: those of attention with chunks."""
    return []


CHECKS = OpChecks("prefix_attention", cases, configurations)
