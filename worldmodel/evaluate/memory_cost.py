"""`evaluate memory`: time and bytes per chunk of every memory policy against context length, at equal bytes."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.calibration import Calibration, calibrate
from worldmodel.evaluate import plots
from worldmodel.evaluate.memory_bench import FULL, RECOMPUTE, Costs, CostSettings, measure
from worldmodel.evaluate.report import Figure, Metric, Outcome, Report, Table, rounded
from worldmodel.evaluate.timing import CALIBRATED, around, at_most, calibration_metrics, quotient_of_medians
from worldmodel.memory.budget import POLICIES
from worldmodel.models.world import WorldModel

WINDOW = "window"
MOST = 1.15  # of the window's latency, for a memory of its bytes
SHORT = (8, 32, 128)  # lengths of the short form
SHORT_ROUNDS = 10
COLOURS: dict[str, str] = {FULL: plots.REAL, RECOMPUTE: plots.COLOURS[5]}
COLOURS |= dict(zip(POLICIES, plots.COLOURS, strict=False))


def evaluate_memory(
    world: WorldModel,
    settings: CostSettings | None = None,
    *,
    short: bool = False,
    source: str = "The model is the one given.",
    quiet: bool = False,
) -> Report:
    """Measure (`memory_bench.measure`) and report.

    short: 10 rounds, and three lengths unless the settings name some. source: what the model is, for the notes.
    UserError if the budget does not hold one chunk, or a length is no multiple of the chunk.
    """
    settings = settings or CostSettings()
    if short:
        chunk = world.dit.chunk
        lengths = settings.lengths or tuple(-(-n // chunk) * chunk for n in SHORT)
        settings = replace(settings, rounds=SHORT_ROUNDS, lengths=lengths)
    before = calibrate()
    costs = measure(world, settings, quiet)
    load = around(before, calibrate())
    metrics = _metrics(costs, load)
    last = costs.lengths[-1]
    shown = [f"{name}.{what}" for what in (f"time_n{last}", "bytes") for name in costs.seconds]
    return Report(
        command="worldmodel evaluate memory",
        seeds=(settings.seed,),
        device=str(world.device),
        metrics=metrics,
        headline=(*shown, "budget_bytes", "calibration_gflops"),
        verdicts=_verdicts(costs, metrics),
        notes=(source, *_notes(world, costs, settings)),
        tables=(_table(costs, metrics),),
        figures=_figures(costs),
        curves={
            "lengths": list(costs.lengths),
            "seconds": {name: np.median(s, 0).tolist() for name, s in costs.seconds.items()},
            "bytes": {name: list(held) for name, held in costs.bytes.items()},
        },
    )


def _metrics(costs: Costs, load: Calibration) -> dict[str, Metric]:
    found, window = dict[str, Metric](), costs.seconds[WINDOW][:, -1]
    for name, seconds in costs.seconds.items():
        for i, n in enumerate(costs.lengths):
            low, middle, high = (float(q) * 1e3 for q in np.quantile(seconds[:, i], (0.25, 0.5, 0.75)))
            found[f"{name}.time_n{n}"] = Metric(middle, "ms", len(seconds), (low, high))
        found[f"{name}.bytes"] = Metric(costs.bytes[name][-1], "bytes")
        found[f"{name}.bytes_change"] = Metric(max(costs.bytes[name]) - min(costs.bytes[name]), "bytes")
        if name != WINDOW:
            found[f"{name}.over_window"] = quotient_of_medians(seconds[:, -1], window)
        found[f"{name}.late_over_early"] = quotient_of_medians(seconds[:, -1], seconds[:, 0])
    found["budget_bytes"] = Metric(costs.budget, "bytes")
    found["cached_difference"] = Metric(costs.difference, "relative")
    found |= calibration_metrics(load)
    found["threads"] = Metric(torch.get_num_threads())
    return found


def _verdicts(costs: Costs, metrics: dict[str, Metric]) -> tuple[tuple[str, Outcome, str], ...]:
    bounded = [name for name in costs.arms if name != FULL]
    found = list[tuple[str, Outcome, str]]()
    for name in bounded:
        if name == WINDOW:
            continue
        fast, ratio = at_most(metrics[f"{name}.over_window"], MOST)
        found.append((
            f"{name}: a chunk takes at most {MOST} x as long as with a window of the same bytes", fast,
            f"{ratio} after {costs.lengths[-1]} frames",
        ))  # fmt: skip
    most = max(costs.bytes[name][-1] for name in bounded)
    constant = all(metrics[f"{name}.bytes_change"].value == 0 for name in bounded)
    found += [
        ("all but full memory have constant bytes", constant, f"after {costs.lengths[0]} to {costs.lengths[-1]}"),
        ("and stay within the budget", most <= costs.budget, f"{most:,} of {costs.budget:,} bytes"),
        ("with and without a memory the velocity is the same (1e-4)", costs.difference <= 1e-4,
         f"{costs.difference:.1e}"),
    ]  # fmt: skip
    return tuple(found)


def _table(costs: Costs, metrics: dict[str, Metric]) -> Table:
    rows = []
    for name in costs.seconds:
        times = [rounded(metrics[f"{name}.time_n{n}"].value) for n in costs.lengths]
        over = metrics.get(f"{name}.over_window")
        rows.append((
            name, *times, f"{costs.bytes[name][-1]:,}", "1" if over is None else f"{over.value:.3f}",
            f"{metrics[f'{name}.late_over_early'].value:.3f}",
        ))  # fmt: skip
    head = ("memory", *(f"n = {n}" for n in costs.lengths), "bytes", "over window", "late / early")
    said = "; ".join(f"{name} is {arm.memory}" for name, arm in costs.arms.items())
    fast = costs.arms["lact"].world.dit.cfg.fast
    return Table("Time per chunk, ms (medians)", head, tuple(rows), f"{said}; the lact model's fast weights: {fast}.")


def _figures(costs: Costs) -> tuple[Figure, ...]:
    times = {name: np.quantile(s, (0.25, 0.5, 0.75), axis=0) * 1e3 for name, s in costs.seconds.items()}
    held = {name: np.array([b, b, b], np.float64) / 1e6 for name, b in costs.bytes.items()}
    return (
        Figure("Time of a chunk", _plot(costs.lengths, times, "ms"), "Medians, bands are quartiles."),
        Figure("What is kept", _plot(costs.lengths, held, "MB"), "Memory of one stream; latents where it has none."),
    )


def _plot(lengths: tuple[int, ...], series: dict[str, NDArray[np.float64]], unit: str) -> str:
    """Logarithmic both ways: lower quartile, median, upper quartile [3, n] of every policy."""
    with plots.axes(6.4, 4.2) as (ax, out):
        for name, (low, middle, high) in series.items():
            ax.plot(lengths, middle, color=COLOURS[name], label=name, marker="o", markersize=3, linewidth=1.6)
            ax.fill_between(lengths, low, high, color=COLOURS[name], alpha=0.14, linewidth=0)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(lengths, [str(n) for n in lengths])
        ax.set_xlabel("frames of context")
        ax.set_ylabel(unit)
        ax.legend(ncols=4, loc="lower left", bbox_to_anchor=(-0.02, 1.0), columnspacing=1.4, handlelength=1.6)
    return out[0]


def _notes(world: WorldModel, costs: Costs, settings: CostSettings) -> tuple[str, ...]:
    cfg = world.dit.cfg
    lact = "random fast weights are added to a copy of it" if costs.added else "its own fast weights"
    return (
        f"Batch 1, chunks of {cfg.chunk} latent frames of {cfg.geometry.tokens} tokens, width {cfg.dim}, depth "
        f"{cfg.depth}, sampler {world.stream.sampler}. A chunk's time is that of its sampling and of the pass that "
        f"writes the memory, without decoding. For lact, {lact}; the other memories are timed without fast weights.",
        f"Equal bytes: the budget is what the largest policy that holds {settings.budget} frames takes, and every "
        f"policy has the most frames that it holds, its bookkeeping counted.",
        "In each round every policy is timed once at every length, in another random order. A stream is copied before "
        "the clock starts, so that it has exactly n frames behind it. The intervals of times are quartiles; those of "
        "quotients are 95 % bootstrap intervals over rounds. over_window is at the longest context, late_over_early "
        "the longest over the shortest; slower than allowed counts as failed only if all of the interval is.",
        f"{RECOMPUTE}: no memory, {costs.calls} forwards of the whole context and the chunk (the time of one times "
        f"their number), one per model call of the sampler. Its bytes are the context's latents.",
        CALIBRATED,
    )
