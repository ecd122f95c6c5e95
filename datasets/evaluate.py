"""The commands that measure a model on recordings: `worldmodel evaluate drift | actions | latency`."""

from pathlib import Path

import torch

from worldmodel.datasets.held_out import held_out
from worldmodel.evaluate.actions import evaluate_actions
from worldmodel.evaluate.drift import evaluate_drift
from worldmodel.evaluate.latency import evaluate_latency
from worldmodel.evaluate.report import Report, write
from worldmodel.models.world import WorldModel


def drift(
    checkpoint: Path,
    data: Path,
    out: Path | None = None,
    json: Path | None = None,
    camera: str | None = None,
    clips: int = 32,
    starts: int = 8,
    frames: int = 240,
    window: int = 32,
    context: int = 4,
    encoders: tuple[str, ...] = ("lite0", "autoencoder"),
    seeds: tuple[int, ...] = (0, 1),
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """How pictures change as a rollout gets long, against held-out recordings.

    Example: worldmodel evaluate drift demos/models/doom --data runs/data/doom_test --out reports/drift

    --data: a dataset or a folder of videos that the model was not trained on. --clips short clips give the error per
    frame; --starts rollouts of --frames frames give Frechet distances in windows of --window. --out gets an HTML page
    and drift.json; --json writes the numbers elsewhere.
    """
    world, name = _load(checkpoint, device, threads), str(checkpoint)
    windows = max(2, frames // window - 1)
    found = evaluate_drift(
        world, held_out(data, world, camera), clips=clips, rollouts=starts, frames=frames, window=window,
        windows=min(6, windows), context=context, encoders=encoders, seeds=seeds, name=name,
    )  # fmt: skip
    return _finish(found, "drift", out, json)


def actions(
    checkpoint: Path,
    data: Path,
    train_data: Path,
    out: Path | None = None,
    json: Path | None = None,
    camera: str | None = None,
    clips: int = 64,
    frames: int = 16,
    context: int = 4,
    seeds: tuple[int, int] = (0, 1),
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Whether generated video follows its actions, judged by a probe that is trained on real video.

    Example: worldmodel evaluate actions demos/models/doom --data runs/data/doom_test --train-data runs/data/doom

    --data: recordings that neither the model nor the probe has seen; --train-data: those that the probe learns from.
    """
    world = _load(checkpoint, device, threads)
    found = evaluate_actions(
        world, held_out(train_data, world, camera), held_out(data, world, camera), clips=clips, frames=frames,
        context=context, seeds=seeds, name=str(checkpoint),
    )  # fmt: skip
    return _finish(found, "actions", out, json)


def latency(
    checkpoint: Path,
    out: Path | None = None,
    json: Path | None = None,
    frames: int = 5000,
    short: bool = False,
    seed: int = 0,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Frames per second, latency early and late in a long stream, bytes of memory, and what the memory saves.

    Example: worldmodel evaluate latency demos/models/doom --short

    --short ends within 50 s.
    """
    world = _load(checkpoint, device, threads)
    return _finish(
        evaluate_latency(world, frames=frames, short=short, seed=seed, name=str(checkpoint)), "latency", out, json
    )


def _load(folder: Path, device: str, threads: int) -> WorldModel:
    torch.set_num_threads(threads)
    return WorldModel.find(folder, device)


def _finish(report: Report, name: str, out: Path | None, json: Path | None) -> int:
    """Print the report, and write what was asked for."""
    print("\n".join(report.lines()))
    if out is not None:
        write(report, out / f"{name}.json", out / f"{name}.html")
        print(out / f"{name}.html")
    if json is not None:
        write(report, json)
    return 0
