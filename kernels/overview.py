"""What `auto` takes on a device for every op, and why not the others: for `doctor`."""

from dataclasses import dataclass
from typing import Any

import torch

from .attention import ATTENTION, Attention, Segment
from .modulate import GATED_RESIDUAL, MODULATE, Modulation, Residual
from .names import Name
from .qk_norm_rope import QK_NORM_ROPE, WRITE_RING, Ring, Tokens
from .quantised import ATTEND, QUANTISE, Look, Pages, Quantised
from .region_warp import REGION_WARP, Paste
from .sampler_step import EULER, NORMAL, RENOISE, Draw, Noised, Step


@dataclass(frozen=True, slots=True)
class Taken:
    """Ops for which `auto` takes the same backend for the same reasons."""

    ops: tuple[str, ...]
    backend: Name
    others: dict[Name, str]  # every other backend that these ops have, and why it is not taken


def overview(device: torch.device) -> tuple[Taken, ...]:
    """Of every op, for a call such as a stream of bf16 (on a CPU fp32) makes. Nothing is computed."""
    found = dict[tuple[Name, tuple[tuple[Name, str], ...]], list[str]]()
    for op, call in _calls(device):
        reasons = op.explain(call)
        looked_at = [b for b in op.backends if device.type in b.auto or b is op.backends[-1]]
        taken = next(b.name for b in looked_at if not reasons[b.name])
        others = tuple((b.name, "; ".join(reasons[b.name]) or "only by name") for b in op.backends if b.name != taken)
        found.setdefault((taken, others), []).append(op.name)
    return tuple(Taken(tuple(ops), taken, dict(others)) for (taken, others), ops in found.items())


def _calls(device: torch.device) -> tuple[tuple[Any, Any], ...]:
    """Every op with a call of it."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.empty(1, 4, 16, 64, device=device, dtype=kind)  # frames of tokens, and as well tokens of heads, heads
    m, t, weight = (torch.empty(*shape, device=device) for shape in ((1, 4, 64), (1, 4), (64,)))
    seed, frame = torch.empty(1, device=device, dtype=torch.int64), torch.empty(1, 4, device=device, dtype=torch.int64)
    keep, angles = torch.empty(1, 4, device=device, dtype=torch.bool), torch.empty(1, 4, 32, device=device)
    step, draw = Step(x, x, t, t), Draw(seed, frame, 0, (16, 64))
    memory = torch.empty(1, 1, 16, 4, 1, 64, device=device, dtype=kind)
    codes = torch.empty(1, 4, 16, 64, device=device, dtype=torch.int8)
    held = Quantised(codes, codes[..., 0].float().contiguous(), None, 4)
    picture, patch = (torch.empty(1, 8, 8, 3, device=device, dtype=k) for k in (torch.uint8, torch.float32))
    place, corner = (torch.empty(*s, device=device, dtype=k) for s, k in (((1, 2, 3), t.dtype), ((1, 2), torch.int32)))
    ring = Ring(x[None], x[None], None, (angles, angles), 1e-6, "half", memory, memory, frame, keep)
    return (
        (ATTENTION, Attention(x, (Segment(x, x),), "half", 0.125)),
        (MODULATE, Modulation(x, m, m, 1e-6, "layer")),
        (GATED_RESIDUAL, Residual(x, x, m)),
        (QK_NORM_ROPE, Tokens(x, x, weight, weight, (angles, angles), 1e-6, "half")),
        (WRITE_RING, ring),
        (NORMAL, draw),
        (EULER, step),
        (RENOISE, Noised(step, draw)),
        (QUANTISE, Pages(x, 4, "int8", True)),
        (ATTEND, Look(x, held, held, None, 0.125)),
        (REGION_WARP, Paste(picture, patch, patch[..., 0].contiguous(), place, corner, (8, 8))),
    )
