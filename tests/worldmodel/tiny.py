"""Small models and clips in which nothing is zero, so that no mistake can hide. Shared by the tests beside it."""

from typing import Any

import torch
from torch import Tensor

from worldmodel.chunk import ActionControl, Clip
from worldmodel.models.dit import DiT, DiTConfig

SIZES: dict[str, Any] = {
    "channels": 2, "size": (4, 6), "chunk": 2, "dim": 32, "depth": 2, "heads": 2, "hidden": 48, "actions": 3,
    "rank": 4, "time_width": 32,
}  # fmt: skip


def small_dit(seed: int = 0, **changes: Any) -> DiT:
    """A DiT with random weights everywhere, those that start at zero included."""
    torch.manual_seed(seed)
    model = DiTConfig(**(SIZES | changes)).build()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.5 / p.shape[-1] ** 0.5))
    return model


def small_clip(model: DiT, rows: int = 2, frames: int = 8, seed: int = 0) -> Clip[ActionControl]:
    """Random latents and actions; every fourth frame has no action."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, frames, *model.frame_shape, generator=rng)
    action = torch.rand(rows, frames, model.cfg.actions, generator=rng) * 2 - 1
    has_action = (torch.arange(frames) + torch.arange(rows)[:, None]) % 4 > 0
    text = torch.randn(rows, 5, model.cfg.text, generator=rng) if model.cfg.text else None
    return Clip(x, ActionControl(action, has_action, text), torch.arange(rows))


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """max |a - b| <= tolerance * max(1, max |b|), and the same shape and type."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    found, expected = found.detach(), expected.detach()
    error = float((found - expected).abs().max())
    assert error <= tolerance * max(1.0, float(expected.abs().max())), error
