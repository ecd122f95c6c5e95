"""What is done to every token around attention, to a latent after it, and to a frame at the end."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodel.kernels.modulate import GATED_RESIDUAL, MODULATE, Modulation, Residual
from worldmodel.kernels.noise import normal
from worldmodel.kernels.qk_norm_rope import QK_NORM_ROPE, Tokens
from worldmodel.kernels.region_warp import REGION_WARP, Paste, reference
from worldmodel.kernels.rope import rope_table, rotate
from worldmodel.kernels.sampler_step import RENOISE, Draw, Noised, Step

from .work import Run, Shape, Work, type_of, work

EPS = 1e-6
REGION = 512  # side of the patch and of its region


def modulations(shape: Shape, name: str, device: torch.device) -> list[Work]:
    """Modulation and gated residual, and both with gradients of everything; `eager` is written with PyTorch's ops."""
    draw, kind = torch.Generator().manual_seed(0), type_of(device)
    x, y, grad = torch.randn(3, 1, shape.frames, shape.tokens, shape.width, generator=draw).to(device, kind).unbind(0)
    shift, scale, gate, *_ = torch.randn(1, shape.frames, 6, shape.width, generator=draw).to(device).unbind(2)
    size = float(x.numel() * x.element_size())

    def norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        normed = F.layer_norm(x.float(), (shape.width,), eps=EPS)
        return (normed * (1 + scale[:, :, None]) + shift[:, :, None]).to(x.dtype)

    def add(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
        return (x.float() + y.float() * gate[:, :, None]).to(x.dtype)

    made = [
        work(MODULATE, Modulation(x, shift, scale, EPS, "layer"), f"modulate{name}", str(shape), bytes=2 * size,
             others={"eager": lambda: norm(x, shift, scale)}),
        work(GATED_RESIDUAL, Residual(x, y, gate), f"gated_residual{name}", str(shape), bytes=3 * size,
             others={"eager": lambda: add(x, y, gate)}),
    ]  # fmt: skip
    leaves = x_, shift_, scale_ = [t.detach().clone().requires_grad_() for t in (x, shift, scale)]

    def both(backend: Any, call: Any) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return torch.autograd.grad(backend.run(call), leaves, grad)

    def eager() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return torch.autograd.grad(norm(x_, shift_, scale_), leaves, grad)

    call = Modulation(x_, shift_, scale_, EPS, "layer")
    made.append(
        work(MODULATE, call, f"modulate_with_gradients{name}", str(shape), bytes=5 * size, others={"eager": eager},
             each=both)
    )  # fmt: skip
    return made


def norm_rope(shape: Shape, name: str, device: torch.device) -> Work:
    """Norm and rotation of queries and keys of a packed projection."""
    draw, kind = torch.Generator().manual_seed(0), type_of(device)
    size = (1, shape.queries, 3, shape.heads, shape.head_dim)
    q, k, _ = torch.randn(size, generator=draw).to(device, kind).unbind(2)
    weight = torch.ones(shape.width if shape.head_dim == 128 else shape.head_dim, device=device, dtype=kind)
    frames = torch.arange(shape.frames, device=device)[None]
    table = rope_table(frames, (1, shape.tokens), shape.head_dim)
    cos, sin = (t[:, :, None] for t in table)

    def eager() -> list[Tensor]:
        made = []
        for x in (q, k):
            whole = x.flatten(2) if weight.shape[0] != shape.head_dim else x
            made.append(rotate(F.rms_norm(whole, weight.shape, weight, EPS).view(x.shape), (cos, sin), "half"))
        return made

    numbers = 4.0 * q.numel() * q.element_size() + 2.0 * table[0].numel() * 4
    call = Tokens(q, k, weight, weight, table, EPS, "half")
    return work(QK_NORM_ROPE, call, f"qk_norm_rope{name}", str(shape), bytes=numbers, others={"eager": eager})


def renoise(frames: int, latent: tuple[int, int, int], name: str, device: torch.device) -> Work:
    """To the predicted data and back with fresh noise, of a chunk's latent in fp32."""
    draw = torch.Generator().manual_seed(0)
    x, v = torch.randn(2, 1, frames, *latent, generator=draw).to(device).unbind(0)
    t, s = torch.rand(2, 1, frames, generator=draw).to(device).unbind(0)
    seed, frame = torch.tensor([7], device=device), torch.arange(100_000, 100_000 + frames, device=device)[None]
    call = Noised(Step(x, v, t, s), Draw(seed, frame, 1, latent))
    shape = f"{frames} frames of {' x '.join(map(str, latent))}"

    def eager() -> Tensor:
        at, to = t.view(1, frames, 1, 1, 1), s.view(1, frames, 1, 1, 1)
        return (1 - to) * (x - at * v) + to * normal(seed, frame, 1, latent)

    return work(RENOISE, call, f"renoise{name}", shape, bytes=3.0 * x.numel() * 4, others={"eager": eager})


def paste(device: torch.device) -> Work:
    """A patch into a 720p frame."""
    draw = torch.Generator().manual_seed(0)
    frame = torch.randint(0, 256, (1, 720, 1280, 3), generator=draw, dtype=torch.uint8).to(device)
    patch = (torch.rand(1, REGION, REGION, 3, generator=draw) * 255).to(device)
    mask = torch.rand(1, REGION, REGION, generator=draw).to(device)
    inverse = torch.tensor([[[0.99, 0.02, -330.0], [-0.02, 0.99, -80.0]]], device=device)
    corner = torch.tensor([[340, 100]], dtype=torch.int32, device=device)
    call = Paste(frame, patch, mask, inverse, corner, (REGION, REGION))
    pixel = 2 * 3 + 3 * 4 + 4  # bytes of a pixel in the frame, twice, in the patch, in the mask
    shape = f"{REGION} x {REGION} of 720 x 1280"
    everywhere = (frame, patch, mask, inverse, torch.zeros_like(corner), (720, 1280))
    others: dict[str, Run] = {"whole_frame": lambda: reference.region_warp(*everywhere)}
    return work(
        REGION_WARP, call, "region_warp", shape, bytes=float(pixel * REGION**2), others=others,
        waits=("reference", "whole_frame"),
    )  # fmt: skip
