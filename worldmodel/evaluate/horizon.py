"""Short continuations against the truth: one curve per measure over the horizon.

Letters: B clips, T pixel frames after the context, H W pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.encoders.frames import MapEncoder
from worldmodel.evaluate.continuation import beginning, context_frames, continuations, following, whole_chunks
from worldmodel.evaluate.metrics import psnr, ssim, to_unit
from worldmodel.evaluate.perceptual import perceptual_distance
from worldmodel.evaluate.recordings import Pixels, Recordings, encode, excerpts
from worldmodel.evaluate.report import Metric
from worldmodel.evaluate.statistics import mean_interval
from worldmodel.models.world import WorldModel
from worldmodel.pixels import to_uint8

Curves = NDArray[np.float64]  # [B, T]


@dataclass(frozen=True, slots=True)
class Closeness:
    """How close videos are to the true ones at every frame after the context; column h - 1 is horizon h."""

    psnr: Curves  # dB
    ssim: Curves


@dataclass(frozen=True, slots=True)
class Short:
    """Short continuations of B clips: the truth, one video per seed, and how close they are.

    context, real [B, T', H, W, 3] and [B, T, H, W, 3]; made: one such video per seed. model is averaged over seeds.
    ceiling: the tokenizer's reconstruction of the truth, which no generator behind it can be expected to beat.
    """

    context: Pixels
    real: Pixels
    made: tuple[Pixels, ...]
    model: Closeness
    copy: Closeness
    ceiling: Closeness

    @property
    def horizon(self) -> int:
        return self.real.shape[1]


def closeness(real: Pixels, made: Pixels) -> Closeness:
    """Frame by frame, of videos [B, T, H, W, 3] each. SSIM is 0 for pictures below 11 x 11 pixels."""
    values: list[tuple[Tensor, Tensor]] = []
    for a, b in zip(real, made, strict=True):
        x, y = to_unit(torch.from_numpy(a)), to_unit(torch.from_numpy(b))
        similar = ssim(x, y) if min(x.shape[-2:]) >= 11 else torch.zeros(len(x), dtype=x.dtype)
        values.append((psnr(x, y), similar))
    return Closeness(*(torch.stack(column).numpy() for column in zip(*values, strict=True)))


def repeat_last(context: Pixels, frames: int) -> Pixels:
    """The baseline "nothing moves": the last true frame of a context [B, T, H, W, 3], `frames` times."""
    return np.repeat(context[:, -1:], frames, 1)


def continue_short(
    world: WorldModel,
    recordings: Recordings,
    clips: int,
    context_chunks: int,
    horizon: int,
    seeds: tuple[int, ...],
    progress: Callable[[int], None] = lambda frames: None,
) -> Short:
    """Continue `clips` real beginnings under their recorded actions for `horizon` frames, once per seed."""
    begin, chunks = context_frames(world, context_chunks), whole_chunks(world, horizon)
    pieces = excerpts(recordings, begin + chunks * world.pixel_frames, clips, seeds[0])
    context = beginning(world, pieces, context_chunks)
    control = following(world, pieces, context_chunks, pieces.actions)
    real = pieces.pixels[:, begin : begin + horizon]
    made = tuple(continuations(world, context, control, seed, progress=progress)[:, :horizon] for seed in seeds)
    each = [closeness(real, video) for video in made]
    model = Closeness(np.mean([c.psnr for c in each], 0), np.mean([c.ssim for c in each], 0))
    whole = [to_uint8(world.tokenizer.decode(encode(world, row[None]))) for row in pieces.pixels]
    rebuilt = np.concatenate(whole)[:, begin : begin + horizon]
    copy = closeness(real, repeat_last(pieces.pixels[:, :begin], horizon))
    return Short(pieces.pixels[:, :begin], real, made, model, copy, closeness(real, rebuilt))


def horizon_metrics(short: Short, seed: int) -> dict[str, Metric]:
    """PSNR and SSIM of the model and of repeating the last frame at every horizon, with bootstrap intervals."""
    metrics: dict[str, Metric] = {}
    for measure, unit in (("psnr", "dB"), ("ssim", "")):
        for name, curve in (
            (measure, getattr(short.model, measure)),
            (f"{measure}_copy", getattr(short.copy, measure)),
        ):
            for h in range(short.horizon):
                metrics[f"{name}_h{h + 1}"] = mean_metric(curve[:, h], unit, seed)
        metrics[f"{measure}_tokenizer"] = mean_metric(getattr(short.ceiling, measure).mean(1), unit, seed)
    ahead = short.model.psnr - short.copy.psnr
    worst = int(ahead.mean(0).argmin())
    metrics["psnr_smallest_lead"] = mean_metric(ahead[:, worst], "dB", seed)
    return metrics


def perceptual_metrics(encoder: MapEncoder, short: Short, horizons: tuple[int, ...], seed: int) -> dict[str, Metric]:
    """The perceptual distance at some horizons (1 is the first frame): the first seed, and repeating the last frame."""
    metrics = {}
    arms = {"": short.made[0], "_copy": repeat_last(short.context, short.horizon)}
    for arm, made in arms.items():
        chosen = [h - 1 for h in horizons if h <= short.horizon]
        x, y = (torch.from_numpy(v[:, chosen]).flatten(0, 1).movedim(-1, 1) for v in (short.real, made))
        values = perceptual_distance(encoder, x, y).double().reshape(len(made), -1).numpy()
        for column, h in enumerate(chosen):
            metrics[f"{encoder.name}_perceptual{arm}_h{h + 1}"] = mean_metric(values[:, column], "", seed)
    return metrics


def mean_metric(values: NDArray[np.float64], unit: str, seed: int) -> Metric:
    """The mean of independent values with its bootstrap interval."""
    return Metric(float(values.mean()), unit, len(values), mean_interval(values, seed))
