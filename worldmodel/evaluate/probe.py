"""An inverse-dynamics probe: from optical flow of a few frames to what was done between them.

It is trained on real recordings and sees pixels only (through their optical flow), never latents.
Letters: B clips, T frames, N windows, W flow fields of a window, G cells of a side, D targets.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.evaluate.motion import GRID

Floats = NDArray[np.floating]
WINDOW = 4  # flow fields that the probe sees: two before the step in question, the step, one after it
CENTRE = 2  # the step in question
BATCH = 128


def windows(fields: NDArray[np.float32]) -> NDArray[np.float32]:
    """Flow [B, T - 1, 2, G, G] -> all windows of it, [B, n, 2 W, G, G] with n = T - W."""
    found = np.lib.stride_tricks.sliding_window_view(fields, WINDOW, axis=1)  # [B, n, 2, G, G, W]
    return np.moveaxis(found, -1, 2).reshape(*found.shape[:2], 2 * WINDOW, *fields.shape[-2:])


def centres(steps: Floats) -> Floats:
    """What belongs to the step in question of each window: per-step values [B, T - 1, ...] -> [B, n, ...]."""
    return steps[:, CENTRE : steps.shape[1] - (WINDOW - CENTRE - 1)]


class ProbeNet(nn.Module):
    """A small convolutional network on stacked flow fields: [N, 2 W, G, G] -> [N, D]."""

    def __init__(self, targets: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2 * WINDOW, 48, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2),
            nn.Linear(64 * (GRID // 4) ** 2, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, targets),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x / 2)


@dataclass(frozen=True, slots=True)
class Probe:
    """A fitted probe. names: of its D targets, in their own units."""

    net: ProbeNet
    names: tuple[str, ...]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    @torch.no_grad()
    def predict(self, fields: NDArray[np.float32]) -> NDArray[np.float64]:
        """Flow [B, T - 1, 2, G, G] -> predictions [B, n, D] for the centre of each window."""
        seen = windows(fields)
        flat = torch.from_numpy(np.ascontiguousarray(seen.reshape(-1, *seen.shape[2:])))
        out = torch.cat([self.net(piece) for piece in flat.split(512)]).double().numpy()
        return (out * self.spread + self.mean).reshape(*seen.shape[:2], -1)


def fit(
    fields: NDArray[np.float32],
    targets: Floats,
    names: tuple[str, ...],
    epochs: int = 12,
    seed: int = 0,
    progress: Callable[[int], None] = lambda windows: None,
) -> Probe:
    """Train a probe on flow [B, T - 1, 2, G, G] and per-step targets [B, T - 1, D].

    Smooth L1 loss on standardised targets, AdamW with a learning rate that falls linearly from 2e-3 to 0, batches of
    128 windows. The same seed gives the same probe (on one thread). A constant target is a ValueError.
    """
    seen, wanted = windows(fields), centres(targets)
    x = torch.from_numpy(np.ascontiguousarray(seen.reshape(-1, *seen.shape[2:])))
    flat = wanted.reshape(-1, wanted.shape[-1]).astype(np.float64)
    mean, spread = flat.mean(0), flat.std(0)
    if (spread <= 1e-9).any():
        constant = [name for name, s in zip(names, spread, strict=True) if s <= 1e-9]
        raise ValueError(f"targets {constant} are constant: nothing to learn")
    y = torch.from_numpy((flat - mean) / spread).float()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ProbeNet(len(names))
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
        steps = epochs * -(-len(x) // BATCH)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(BATCH):
                loss = F.smooth_l1_loss(net(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress(len(rows))
    return Probe(net.eval().requires_grad_(False), tuple(names), mean, spread)
