"""`evaluate latency`: how fast a stream is, whether it slows down, and what its memory saves."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.calibration import Calibration, calibrate
from worldmodel.clock import clock
from worldmodel.errors import UserError
from worldmodel.evaluate import plots
from worldmodel.evaluate.report import Figure, Metric, Outcome, Report
from worldmodel.evaluate.statistics import mean_interval, quantile_interval
from worldmodel.evaluate.streams import Recompute, Stream, Timed, cached_and_recompute
from worldmodel.evaluate.timing import CALIBRATED, around, at_most, calibration_metrics, quotient_of_medians
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar

EARLY = slice(20, 70)  # chunks that later ones are compared with
ROUNDS = 50
LEAST_ROUNDS, LEAST_CHUNKS = 10, 24  # of the short form on a slow machine
QUIET = 80.0  # GFLOP/s per core from which absolute rates may be judged


@dataclass(frozen=True, slots=True)
class Streamed:
    """What one long stream showed: times of all chunks, memory sizes on the way, and the stream at chunk 20 and now."""

    times: list[Timed]
    memory: list[int]
    young: Stream
    old: Stream


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of the arms, measured in turn, so that a change of load meets all of them alike: [rounds] each."""

    old: NDArray[np.float64]
    young: NDArray[np.float64]
    cached: NDArray[np.float64]
    forward: NDArray[np.float64]


def evaluate_latency(
    world: WorldModel,
    *,
    frames: int = 5000,
    short: bool = False,
    context: int = 16,
    seed: int = 0,
    name: str = "CHECKPOINT",
    quiet: bool = False,
) -> Report:
    """Stream `frames` pixel frames with batch 1 and time every chunk, then compare arms that take turns.

    The arms: the stream at its end against the same stream from its chunk 20 on, and, with `context` chunks of context,
    a chunk made with the memory against one that forwards the whole context at every sampler step. short: end within
    50 s, with as many frames and rounds as fit (both are reported).

    Example: write(evaluate_latency(world, short=True), json=Path("latency.json"))
    """
    if frames < 1 or context < 1:
        raise UserError(f"latency: frames {frames} and context {context} must be at least 1")
    before = calibrate()
    began = time.perf_counter()
    with torch.no_grad():
        chunks = max(-(-frames // world.pixel_frames), LEAST_CHUNKS)
        streamed = _stream(world, chunks, began + 21 if short else None, seed, quiet)
        cached, recompute = cached_and_recompute(world, context, seed)
        rounds = _rounds(streamed, cached, recompute, began + 44 if short else None, quiet)
    after = calibrate()
    load = around(before, after)
    metrics = _metrics(world, streamed, rounds, recompute, load)
    return Report(
        command=f"worldmodel evaluate latency {name}" + (" --short" if short else ""),
        seeds=(seed,),
        device=str(world.device),
        metrics=metrics,
        headline=(
            "frames_per_second", "chunk_latency_p50", "chunk_latency_p95", "late_over_early", "cached_speedup",
            "memory_bytes", "calibration_gflops",
        ),
        verdicts=_verdicts(metrics),
        notes=_notes(world, streamed, context, recompute),
        figures=_figures(streamed, rounds, recompute),
    )  # fmt: skip


def _stream(world: WorldModel, chunks: int, deadline: float | None, seed: int, quiet: bool) -> Streamed:
    stream = Stream(world, world.stream.memory, seed)
    times, memory, young = list[Timed](), list[int](), stream
    with progress_bar("stream", chunks, unit="chunks", shown=not quiet) as progress:
        for c in range(chunks):
            if c == EARLY.start:
                young = stream.copy()
            if deadline is not None and c >= LEAST_CHUNKS and time.perf_counter() > deadline:
                break
            times.append(stream.next())
            if c == 0 or (c + 1) % max(1, chunks // 10) == 0 or c + 1 == EARLY.start:
                memory.append(stream.state.memory.nbytes)
            progress(1)
    memory.append(stream.state.memory.nbytes)
    return Streamed(times, memory, young, stream)


def _rounds(streamed: Streamed, cached: Stream, recompute: Recompute, deadline: float | None, quiet: bool) -> Rounds:
    found = list[tuple[float, float, float, float]]()
    device = cached.world.device
    for warm in (streamed.young.copy(), cached.copy()):
        warm.next()
    recompute.once()
    with progress_bar("arms in turn", ROUNDS, unit="rounds", shown=not quiet) as progress:
        while len(found) < ROUNDS:
            if deadline is not None and len(found) >= LEAST_ROUNDS and time.perf_counter() > deadline:
                break
            old, young, with_memory = streamed.old.next(), streamed.young.next(), cached.next()
            begin = clock(device)
            recompute.once()
            found.append((old.model, young.model, with_memory.model, clock(device) - begin))
            progress(1)
    return Rounds(*np.array(found).T)


def _metrics(
    world: WorldModel, streamed: Streamed, rounds: Rounds, recompute: Recompute, load: Calibration
) -> dict[str, Metric]:
    total, model, decode = (
        np.array([getattr(t, part) for t in streamed.times]) for part in ("total", "model", "decode")
    )
    warm = slice(min(5, len(total) - 1), None)
    frames, count = world.pixel_frames, len(total[warm])

    def rate(seconds: NDArray[np.float64]) -> Metric:
        low, high = mean_interval(seconds[warm], resamples=500)
        return Metric(frames / float(seconds[warm].mean()), "frames/s", count, (frames / high, frames / low))

    def quantile(seconds: NDArray[np.float64], q: float) -> Metric:
        low, high = quantile_interval(seconds[warm] * 1e3, q)
        return Metric(float(np.quantile(seconds[warm], q)) * 1e3, "ms", count, (low, high))

    metrics = {"frames_per_second": rate(total), "frames_per_second_without_decode": rate(model)}
    for q in (50, 95, 99):
        metrics[f"chunk_latency_p{q}"] = quantile(total, q / 100)
        metrics[f"chunk_latency_p{q}_without_decode"] = quantile(model, q / 100)
    metrics["decode_latency_p50"] = quantile(decode, 0.5)
    metrics["late_over_early"] = quotient_of_medians(rounds.old, rounds.young)
    if len(model) >= EARLY.stop + ROUNDS:
        in_order = float(np.median(model[-ROUNDS:]) / np.median(model[EARLY]))
        metrics["late_over_early_in_order"] = Metric(in_order, "x", ROUNDS)
    speedup = quotient_of_medians(rounds.forward * recompute.calls, rounds.cached)
    metrics["cached_speedup"] = speedup
    metrics["cached_chunk"] = Metric(float(np.median(rounds.cached)) * 1e3, "ms", len(rounds.cached))
    whole = float(np.median(rounds.forward)) * recompute.calls
    metrics["recomputed_chunk"] = Metric(whole * 1e3, "ms", len(rounds.forward))
    metrics["cached_difference"] = Metric(recompute.difference, "relative")
    metrics["memory_bytes"] = Metric(streamed.memory[-1], "bytes", len(streamed.memory))
    metrics["memory_bytes_change"] = Metric(max(streamed.memory) - min(streamed.memory), "bytes", len(streamed.memory))
    metrics["streamed_frames"] = Metric(len(total) * frames, "frames")
    metrics |= calibration_metrics(load)
    metrics["threads"] = Metric(torch.get_num_threads())
    return metrics


def _verdicts(metrics: dict[str, Metric]) -> tuple[tuple[str, Outcome, str], ...]:
    def number(name: str) -> float:
        return metrics[name].value

    pace = f"{number('frames_per_second'):.1f} at {number('calibration_gflops'):.0f} GFLOP/s per core"
    fast: Outcome = number("frames_per_second") >= 20
    if number("calibration_gflops") < QUIET:
        fast, pace = "n/a", f"{pace}, judged from {QUIET:.0f} on (busy or slow machine)"
    steady, late = at_most(metrics["late_over_early"], 1.05)
    bounded = number("memory_bytes_change") == 0
    p50, p95 = number("chunk_latency_p50"), number("chunk_latency_p95")
    return (
        ("at least 20 frames/s, decoding included", fast, pace),
        ("late chunks take at most 1.05 x as long", steady,
         f"{late} after {number('streamed_frames'):.0f} frames"),
        ("with a memory at least 5 x faster than without", number("cached_speedup") >= 5,
         f"{number('cached_speedup'):.1f} x"),
        ("both give the same velocity (1e-4)", number("cached_difference") <= 1e-4,
         f"{number('cached_difference'):.1e}"),
        ("the stream's memory stays constant", bounded, f"{number('memory_bytes'):,.0f} bytes"),
        ("p95 at most 2 x p50", p95 <= 2 * p50, f"{p95:.1f} and {p50:.1f} ms"),
    )  # fmt: skip


def _figures(streamed: Streamed, rounds: Rounds, recompute: Recompute) -> tuple[Figure, ...]:
    series = {part: [getattr(t, part) * 1e3 for t in streamed.times] for part in ("model", "decode")}
    arms = {"memory": rounds.cached, "whole context": rounds.forward * recompute.calls}
    medians = [float(np.median(seconds)) * 1e3 for seconds in arms.values()]
    return (
        Figure("Time of each chunk of the stream", plots.trace(series, "chunk", "ms"), "Decoding is the second part."),
        Figure("One chunk with and without a memory", plots.bars(list(arms), {"median": medians}, "ms")),
    )


def _notes(world: WorldModel, streamed: Streamed, context: int, recompute: Recompute) -> tuple[str, ...]:
    chunk = f"{world.dit.chunk} latent = {world.pixel_frames} pixel frames"
    return (
        f"One stream of {len(streamed.times)} chunks ({chunk}), batch 1, random actions, sampler "
        f"{world.stream.sampler}, memory {world.stream.memory}. A chunk's latency is the time for sampling, for the "
        f"pass that writes the memory, and for decoding to 8-bit pictures; numbers 'without decode' leave that out. "
        f"The first 5 chunks are not counted.",
        f"late_over_early: the stream goes on from its end while a copy goes on from its chunk {EARLY.start}; they "
        f"take turns, and the medians of their model times are divided, so that a change of load meets both. It fails "
        f"only if all of its 95 % interval is above 1.05; a value above with an interval that reaches below is 'not "
        f"shown'. "
        f"late_over_early_in_order compares the last {ROUNDS} chunks of the stream with its chunks {EARLY.start} to "
        f"{EARLY.stop - 1} as they came.",
        f"cached_speedup: with {context} chunks of context, {recompute.calls} forwards of the whole context and the "
        f"chunk, one per model call of the sampler (the median of single forwards times their number), over a chunk "
        f"made with a memory of that context, the pass that writes it included. cached_difference compares velocities.",
        CALIBRATED,
    )
