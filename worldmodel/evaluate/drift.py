"""`evaluate drift`: how close a continuation stays to the truth, and how long it looks like the world at all."""

import numpy as np

from worldmodel.encoders.frames import Lite0Encoder, check_encoders, open_encoder
from worldmodel.errors import UserError
from worldmodel.evaluate.continuation import whole_chunks
from worldmodel.evaluate.drift_page import figures, films, notes, sheet
from worldmodel.evaluate.horizon import closeness, continue_short, horizon_metrics, mean_metric, perceptual_metrics
from worldmodel.evaluate.long_rollouts import drift_metrics, drift_of, roll_long, temporal_metrics
from worldmodel.evaluate.recordings import Recordings, check_fit
from worldmodel.evaluate.report import Report
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar

PERCEPTUAL = (1, 2, 4, 8, 16)


def evaluate_drift(
    world: WorldModel,
    recordings: Recordings,
    *,
    clips: int = 32,
    horizon: int = 16,
    rollouts: int = 8,
    frames: int = 240,
    window: int | None = None,
    windows: int | None = None,
    context: int = 4,
    reference: int = 1500,
    encoders: tuple[str, ...] = ("lite0", "autoencoder"),
    seeds: tuple[int, ...] = (0, 1),
    name: str = "CHECKPOINT",
    quiet: bool = False,
) -> Report:
    """Continue held-out beginnings under their recorded actions and measure what becomes of them.

    Short continuations (`clips` of them, `horizon` pixel frames, every seed) are compared with the truth frame by
    frame: PSNR, SSIM and a perceptual distance, beside "repeat the last frame". Long rollouts (`rollouts` of them,
    `frames` frames) are compared with real frames of other held-out episodes in the features of each encoder: windows
    of `window` frames (None: 32, or `frames` if there are fewer), `windows` of them (None: 2 to 6, as many as fit side
    by side); the first encoder is the judge. context: chunks of real frames before a continuation.
    reference: at most so many real frames. name: what the report calls the model. Needs two held-out episodes.

    Example: write(evaluate_drift(world, recordings, frames=480), html=Path("drift.html"))
    """
    check_fit(world, recordings)
    window = min(32, frames) if window is None else window
    windows = min(6, max(2, frames // max(window, 1) - 1)) if windows is None else windows
    if min(clips, horizon, rollouts, context, windows, len(seeds), len(encoders)) < 1 or window < 3 or frames < window:
        raise UserError(
            f"drift: counts must be at least 1, window at least 3 and at most frames; got clips {clips}, horizon "
            f"{horizon}, rollouts {rollouts}, frames {frames}, window {window}, windows {windows}, context {context}"
        )
    check_encoders("drift", encoders)
    judges = tuple(open_encoder(choice, world.tokenizer, world.device) for choice in encoders)
    made = clips * len(seeds) * whole_chunks(world, horizon) * world.pixel_frames
    with progress_bar("short continuations", made, shown=not quiet) as progress:
        short = continue_short(world, recordings, clips, context, horizon, seeds, progress)
    with progress_bar(
        "long rollouts", rollouts * whole_chunks(world, frames) * world.pixel_frames, shown=not quiet
    ) as progress:
        long = roll_long(world, recordings, rollouts, context, frames, window, reference, seeds, progress)

    drifts = []
    for judge in judges:
        seen = len(long.reference) + rollouts * window * (windows + len(long.windows))
        with progress_bar(f"features: {judge.name}", seen, shown=not quiet) as progress:
            drifts.append(drift_of(judge, long, windows, progress))

    perceptual = next((judge for judge in judges if isinstance(judge, Lite0Encoder)), None)
    metrics = drift_metrics(tuple(drifts)) | temporal_metrics(long, world.pixel_frames, seeds[0])
    metrics |= horizon_metrics(short, seeds[0])
    beyond = closeness(long.truth[:, :frames], long.made[:, : long.truth.shape[1]])
    for h in (32, 64, 128, 256):
        if h <= beyond.psnr.shape[1]:
            metrics[f"psnr_h{h}"] = mean_metric(beyond.psnr[:, h - 1], "dB", seeds[0])
    if perceptual is not None:
        metrics |= perceptual_metrics(perceptual, short, PERCEPTUAL, seeds[0])

    lead = (short.model.psnr - short.copy.psnr).mean(0)
    ahead = f"smallest lead {lead.min():.2f} dB at h = {int(np.argmin(lead)) + 1}"
    return Report(
        command=f"worldmodel evaluate drift {name}",
        seeds=seeds,
        device=str(world.device),
        metrics=metrics,
        headline=("fd_first_window", "fd_last_window", "fd_floor", "psnr_h1", "psnr_h16", "border_jump", "flicker"),
        verdicts=((f"better PSNR than repeating the last frame at each of {horizon} frames", lead.min() > 0, ahead),),
        notes=notes(world, short, long, drifts, context),
        figures=figures(short, beyond, drifts, world.fps),
        films=films(short, long, world.fps),
        pictures=(sheet(long),),
    )
