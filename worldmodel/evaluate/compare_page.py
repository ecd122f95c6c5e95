"""What the report of `evaluate compare` shows: curves of all arms, and how it was measured."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from worldmodel.evaluate import plots
from worldmodel.evaluate.compare_arms import Measured
from worldmodel.evaluate.compare_bench import Bench
from worldmodel.evaluate.compare_following import Reader
from worldmodel.evaluate.compare_statistics import Curves
from worldmodel.evaluate.following import VALID
from worldmodel.evaluate.long_rollouts import Scale
from worldmodel.evaluate.report import Figure
from worldmodel.models.world import WorldModel

COLOURS = ("#64748b", "#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#a16207")  # baseline first


def colour(number: int) -> str:
    """Of arm `number`."""
    return COLOURS[number % len(COLOURS)]


def drawn_curve(ax: Axes, places: NDArray[np.float64], curve: Curves, name: str, number: int, arms: int) -> list[float]:
    """Draw an arm: mean, band over seeds, single seeds, jackknife whiskers. Returns the values that must be seen."""
    mean, shade = curve.values.mean(0), colour(number)
    band = curve.band() if len(curve.values) > 2 else None
    if band is not None:
        ax.fill_between(places, *band, color=shade, alpha=0.13, linewidth=0)
    if len(curve.values) > 1:
        ax.plot(places, curve.values.T, color=shade, linewidth=0.7, alpha=0.55)
    seen = [float(curve.values.min()), float(curve.values.max())]
    whiskers = curve.whiskers()
    if whiskers is not None:
        shift = (number - (arms - 1) / 2) * (places[-1] - places[0]) * 0.004
        ax.vlines(places + shift, *whiskers, color=shade, linewidth=1.0, alpha=0.45)
        seen += [float(whiskers[0].min()), float(whiskers[1].max())]
    ax.plot(places, mean, color=shade, linewidth=2.2, marker="o", markersize=3.5, label=name)
    return seen


def label(ax: Axes, what: str, arms: int) -> None:
    """Name the axes of a plot over the windows, and its arms above it."""
    ax.set_xlabel("middle of the window, frames after the context")
    ax.set_ylabel(what)
    ax.legend(ncols=min(arms + 1, 5), loc="lower left", bbox_to_anchor=(-0.02, 1.0), columnspacing=1.4)


def distance_figure(
    arms: Sequence[Measured],
    curves: Sequence[Curves],
    places: NDArray[np.float64],
    scale: Scale,
    pictures: int,
    clip_frames: int | None,
) -> Figure:
    """Frechet distance over the windows, all arms."""
    with plots.axes(9.0, 4.2) as (ax, out):
        edges = [0.0]
        for number, (arm, curve) in enumerate(zip(arms, curves, strict=True)):
            edges += drawn_curve(ax, places, curve, arm.name, number, len(arms))
        ax.axhline(0, color=plots.REAL, linewidth=1, linestyle=(0, (4, 2)), label="recorded frames")
        margin = 0.05 * (max(edges) - min(edges) or 1)
        ax.set_ylim(min(edges) - margin, max(edges) + margin)
        if clip_frames is not None:
            ax.axvline(clip_frames, color="#94a3b8", linewidth=1, linestyle=(0, (1, 2)))
            place = (clip_frames, ax.get_ylim()[1])
            ax.annotate(" training clip", place, color="#64748b", fontsize=8.5, va="top")
        label(ax, "distance above the floor", len(arms))
    text = (
        f"N = {pictures} pictures a window; 0 is as many real frames (the floor {scale.floor.value:.4g} is "
        f"subtracted). Thick: mean over training seeds; thin: single seeds; shaded: 95 % over seeds, from three on; "
        f"upright lines: 95 % jackknife over starts."
    )
    return Figure(f"Frechet distance in {scale.encoder.name} features", out[0], text, wide=True)


def notes(
    world: WorldModel,
    bench: Bench,
    arms: Sequence[Measured],
    scales: Sequence[Scale],
    reader: Reader | None,
    clip_frames: int | None,
) -> tuple[str, ...]:
    """How it was measured, one paragraph each."""
    settings, base = bench.settings, arms[0]
    episodes = len(set(bench.course.pieces.episode.tolist()))
    found = [
        "Arms: " + "; ".join(f"{arm.name} = {', '.join(arm.arm.folders)}" for arm in arms) + ".",
        _pairs(arms),
        f"Rollouts: {settings.rollouts} held-out beginnings from {episodes} episodes, {settings.context} chunks of "
        f"{world.dit.chunk} latent frames of real context, then {settings.frames} frames at {world.fps:g} frames/s "
        f"under the recorded actions (beyond the end of an episode, those of the next one). Every model gets the same "
        f"beginnings, actions and noise (sampling seeds {', '.join(map(str, settings.seeds))}). Sampler of the first "
        f"model of {base.name}: {world.stream.sampler}, memory {world.stream.memory}; every model is deployed with its "
        f"own.",
        f"Frechet distance: |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2) of features, in fp64, of N = "
        f"{settings.rollouts * settings.window} generated pictures ({settings.rollouts} rollouts x {settings.window} "
        f"frames), in {len(bench.starts)} windows that begin at frames "
        f"{', '.join(str(start + 1) for start in bench.starts)}, against {len(bench.course.reference)} real frames of "
        f"held-out episodes that no rollout starts in. Subtracted is the same for {len(bench.course.draws)} draws of "
        f"as many real stretches from the episodes that rollouts start in (floors: "
        + ", ".join(f"{scale.encoder.name} {scale.floor.value:.4g}" for scale in scales)
        + f"). The judge is {scales[0].encoder.name}. It is not FID, and values for another N or encoder do not "
        f"compare.",
        "Intervals over seeds: Student's t on one value per training seed (paired: on the seeds' differences); all "
        "seeds have the same starts, whose chance is therefore not in them. Intervals over starts: delete-one "
        "jackknife, a start being left out of both arms, all seeds, all windows and the floor at once; they hold for "
        "these trained models, and count starts of one episode as independent. Slope: least squares over the windows' "
        "middles. Contrast and colour shift: of the last window, against real stretches.",
    ]
    if reader is None:
        found.append("Action following was not measured: no recordings were given for a probe to learn from.")
    else:
        scores = zip(reader.spec.names, reader.real_short.scores(), strict=True)
        found.append(
            f"Action following: R2 of one inverse-dynamics probe, trained on real recordings and the same for all "
            f"models, which reads optical flow of neighbouring frames. Short: {settings.clips} held-out beginnings of "
            f"their own, {settings.horizon} frames after {settings.context} chunks of real context. Long: the windows "
            f"of the rollouts. Mean over {', '.join(reader.counted)}, the actions that it reads from recorded short "
            f"clips with R2 of at least {VALID} (" + ", ".join(f"{name} {score:.2f}" for name, score in scores) + "). "
            "Units of the jackknife are clips (short) and starts (long)."
        )
    if clip_frames is not None:
        found.append(
            f"Models were trained on clips of {clip_frames} frames: rollouts are {settings.frames / clip_frames:.3g} "
            f"times as long."
        )
    return tuple(found)


def _pairs(arms: Sequence[Measured]) -> str:
    base = arms[0]
    if base.seeds == 1:
        return "The baseline has one training seed: differences from it have no intervals over seeds, only over starts."
    text = []
    for arm in arms[1:]:
        used = min(arm.seeds, base.seeds)
        left = f" (the other {base.seeds - used} of {base.name} are not used there)" if used < base.seeds else ""
        left += f" (its other {arm.seeds - used} have no pair)" if used < arm.seeds else ""
        alone = ", so there is no interval over seeds" if used == 1 else ""
        text.append(f"{arm.name}: folders 1 to {used}{left}{alone}")
    return f"Pairs, by place in the list, for differences from {base.name}: " + "; ".join(text) + "."
