"""What `kernels check` proves of a sampler's steps and their noise."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from worldmodel.kernels import noise
from worldmodel.kernels.check.declare import Case, Configuration, OpCheck, OpChecks, padded

from . import EULER, NORMAL, RENOISE, Draw, Noised, Step, reference, triton

SHAPES = ((1, 1, 1), (2, 3, 41), (1, 2, 113, 203), (1, 1, 1023, 1024), (2, 2, 16, 128))  # B, K, frame
SEEDS = (2**63 - 1, 12345)
LATE = 100_000
FAR = 2**40 + 7  # a frame whose high word counts


def _keys(rows: int, frames: int) -> tuple[Tensor, Tensor]:
    frame = torch.tensor([[LATE], [FAR]])[:rows] + torch.arange(frames)
    return torch.tensor(SEEDS[:rows]), padded(frame)


def _normal(shape: tuple[int, ...], step: int, quick: bool) -> Case:
    keys = _keys(*shape[:2])
    return Case(
        f"normal {shape} step {step}",
        lambda rng, dtype: keys,
        lambda seed, frame: NORMAL(Draw(seed, frame, step, shape[2:]), "triton"),
        lambda seed, frame: noise.normal(seed, frame, step, shape[2:]),
        exact=True,
        quick=quick,
    )


def _step(shape: tuple[int, ...], scale: float, renoise: bool, quick: bool) -> Case:
    seed, frame = _keys(*shape[:2])

    def make(rng: torch.Generator, dtype: torch.dtype) -> Sequence[Tensor]:
        room = torch.randn(shape[0] + 1, shape[1] + 1, 2, *shape[2:], generator=rng, dtype=dtype) * scale
        x, v = room[1:, 1:].unbind(2)
        t, s = torch.rand(2, *shape[:2], generator=rng, dtype=dtype)
        return x, v, t, s

    def ours(x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
        move = Step(x, v, t, s)
        return RENOISE(Noised(move, Draw(seed, frame, 3, shape[2:])), "triton") if renoise else EULER(move, "triton")

    def right(x: Tensor, v: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return reference.renoise(x, v, t, s, seed, frame, 3) if renoise else reference.euler(x, v, t, s)

    name = f"{'renoise' if renoise else 'euler'} {shape} x{scale:g}"
    return Case(name, make, ours, right, gradients=(0, 1), quick=quick)


def cases() -> Sequence[Case]:
    made = [_normal(shape, step, shape in SHAPES[:2]) for shape, step in zip(SHAPES, (0, 1, 2, 3, 2**20), strict=True)]
    made += [_step(shape, 1, again, shape in SHAPES[:2]) for shape in SHAPES for again in (False, True)]
    return made + [_step(SHAPES[1], scale, again, scale == 16) for scale in (4.0, 16.0) for again in (False, True)]


def configurations() -> Sequence[Configuration]:
    """Latents in fp32, as samplers hold them: frames of few numbers, and all larger ones."""
    made = []
    for size in (64, 16 * 60 * 104):
        blocks = {"COUNT": triton.count(size)}
        both = {"ACC": triton.tl.float32, **blocks}
        made += [
            _configuration(f"normal {size}", triton.normal_kernel, blocks),
            _configuration(f"euler {size}", triton.step_kernel, both | {"RENOISE": False}),
            _configuration(f"renoise {size}", triton.step_kernel, both | {"RENOISE": True}),
        ]
    return made


def _configuration(name: str, kernel: Any, constants: dict[str, Any]) -> Configuration:
    signature = {}
    for a in kernel.arg_names:
        keys = a in ("seed_pointer", "frame_pointer")
        kind = "*i64" if keys else "*fp32" if a.endswith("_pointer") else "i32"
        signature[a] = "constexpr" if a in constants else kind
    divisible = tuple(a for a in ("size", "x_b", "x_k", "v_b", "v_k") if a in signature)
    return Configuration(name, kernel, signature, constants, divisible, quick="99840" in name)


def opchecks() -> Sequence[OpCheck]:
    from . import ops  # noqa: F401  registers the operators

    own = torch.ops.worldmodel
    keys = _keys(2, 3)

    def move(rng: torch.Generator) -> tuple[Tensor, ...]:
        return *torch.randn(2, 2, 3, 5, generator=rng).unbind(0), *torch.rand(2, 2, 3, generator=rng).unbind(0)

    return (
        OpCheck(own.sampler_normal.default, lambda rng: (*keys, 1, [5])),
        OpCheck(own.sampler_euler.default, move),
        OpCheck(own.sampler_renoise.default, lambda rng: (*move(rng), *keys, 1)),
    )


CHECKS = OpChecks("sampler_step", cases, configurations, opchecks)
