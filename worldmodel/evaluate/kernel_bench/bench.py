"""`kernels bench`: measure and report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.calibration import calibrate
from worldmodel.evaluate.report import Metric, Report, Table, rounded
from worldmodel.evaluate.timing import CALIBRATED, around, calibration_metrics, quotient_of_medians
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar

from .attention_work import attention, prefix, quantised
from .loop import loop_arms
from .measure import Device, Timer, captured, in_turn, measure_device
from .token_work import modulations, norm_rope, paste, renoise
from .work import SMALL, Run, Work, shapes, type_of

LIMIT, SHORT = 270.0, 40.0  # seconds for everything
LATE = ("flex",)  # takes long to start, where it compiles
HEAD = ("operation", "way", "median, ms", "of the bound", "over best peer")


@dataclass(slots=True)
class Found:
    """What has been measured so far."""

    metrics: dict[str, Metric] = field(default_factory=dict)
    rows: list[tuple[str, ...]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def kernel_bench(world: WorldModel, device: torch.device, *, short: bool = False, quiet: bool = False) -> Report:
    """Time every kernel on a device, and the streaming loop of `world`, which is there already.

    Ends within 5 minutes; short: within 50 s, with fewer rounds. On a CPU these are the CPU backends.

    Example: print("\\n".join(kernel_bench(WorldModel.find(folder), torch.device("cpu"), short=True).lines()))
    """
    began, limit = time.perf_counter(), SHORT if short else LIMIT
    before, found = calibrate(), Found()
    with torch.no_grad():
        can, timer = measure_device(device, type_of(device)), Timer(device)
        todo = all_work(device)
        with progress_bar("kernels", len(todo) + 1, unit="operations", shown=not quiet) as progress:
            for i, each in enumerate(todo):
                left = limit - (time.perf_counter() - began)
                _measure(each, can, timer, found, 0.7 * left / (len(todo) - i + 3))
                progress(1)
            left = limit - (time.perf_counter() - began)
            _measure_loop(world, found, timer, 0.7 * left)
            progress(1)
    load = around(before, calibrate())
    own = {
        "bandwidth": Metric(can.bandwidth / 1e9, "GB/s"),
        "matrix_rate": Metric(can.rate / 1e12, "TFLOP/s"),
        **calibration_metrics(load),
    }
    headline = [name for name in found.metrics if name.endswith(("fraction_of_bound", "over_best_peer"))]
    return Report(
        command="worldmodel kernels bench" + (" --short" if short else ""),
        seeds=(0,),
        device=str(device),
        metrics=found.metrics | own,
        headline=(*headline, *own),
        notes=_notes(device, found.left_out),
        tables=(
            Table("Times", ("operation", "way", "median, ms", "of the bound", "over best peer"), tuple(found.rows)),
        ),
    )


def all_work(device: torch.device) -> list[Work]:
    """The operations that are timed on a device; those of the first shape have their plain names."""
    made = list[Work]()
    for i, shape in enumerate(shapes(device)):
        name = "" if i == 0 else f"_{shape.name.split()[0]}" if shape is SMALL else "_face"
        made += [attention(shape, f"attention{name}", device), quantised(shape, f"quantised{name}", device)]
        made += [*modulations(shape, name, device), norm_rope(shape, name, device)]
        if i == 0:
            made.append(prefix(SMALL, "prefix_attention", device))
    gpu = device.type == "cuda"
    latent = (16, 60, 104) if gpu else (8, 8, 8)
    return [*made, renoise(3 if gpu else 4, latent, "", device), paste(device)]


def _measure(work: Work, can: Device, timer: Timer, found: Found, seconds: float) -> None:
    """Warm all ways up, then time them in turn, with launches and on a GPU as captured graphs too.

    A way that does not fit into the memory, or whose turn to be warmed up comes too late, is left out and said so.
    """
    for arm, why in work.without.items():
        found.left_out.append(f"{work.op}: no {arm}: {why}")
    deadline, arms = time.perf_counter() + 4 * seconds, dict[str, Run]()
    for arm in sorted(work.arms, key=lambda arm: (arm != work.own, arm in LATE)):
        if arm != work.own and time.perf_counter() > deadline:
            found.left_out.append(f"{work.op}: no time for {arm}")
            continue
        try:
            work.arms[arm]()
        except torch.OutOfMemoryError:
            found.left_out.append(f"{work.op}: not enough memory for {arm}")
        else:
            arms[arm] = work.arms[arm]
    if work.own not in arms:
        return
    own = _record(work, "time", in_turn(arms, timer, seconds), can, found)
    if timer.device.type == "cuda":
        graphs = _graphs(work, arms, timer.device, found)
        if work.own in graphs:
            own = _record(work, "graph_time", in_turn(graphs, timer, seconds), can, found)
    found.metrics[f"{work.op}.fraction_of_bound"] = Metric(can.bound(work.bytes, work.flops) / own)


def _graphs(work: Work, arms: Mapping[str, Run], device: torch.device, found: Found) -> dict[str, Run]:
    made = dict[str, Run]()
    for arm in arms.keys() - set(work.waits):
        try:
            made[arm] = captured(arms[arm], device)
        except RuntimeError as error:
            found.left_out.append(f"{work.op}: {arm} is not captured: {str(error).splitlines()[0]}")
    return made


def _record(
    work: Work, what: str, times: dict[str, NDArray[np.float64]], can: Device, found: Found
) -> float:  # fmt: skip
    """Write down the times of all arms; the median seconds of ours."""
    medians = {arm: float(np.median(seconds)) for arm, seconds in times.items()}
    bound, graph = can.bound(work.bytes, work.flops), " (graph)" if what == "graph_time" else ""
    peers = {arm: seconds for arm, seconds in medians.items() if arm != work.own}
    ratio = None
    if peers:
        best = min(peers, key=lambda arm: peers[arm])
        ratio = quotient_of_medians(times[best], times[work.own])
        suffix = "over_best_peer" if what == "time" else "over_best_peer_graph"
        found.metrics[f"{work.op}.{suffix}"] = ratio
    for arm, seconds in times.items():
        low, middle, high = (float(q) * 1e3 for q in np.quantile(seconds, (0.25, 0.5, 0.75)))
        found.metrics[f"{work.op}.{arm}.{what}"] = Metric(middle, "ms", len(seconds), (low, high))
        ours = arm == work.own
        part = f"{100 * bound / medians[arm]:.0f} %"
        found.rows.append(
            (work.op, f"{arm}{graph}{' *' if ours else ''}", rounded(middle), part,
             f"{ratio.value:.2f} x" if ours and ratio is not None else "")
        )  # fmt: skip
    return medians[work.own]


def _measure_loop(world: WorldModel, found: Found, timer: Timer, seconds: float) -> None:
    """A chunk of the streaming loop by `auto`, against every operation by its reference."""
    arms = loop_arms(world)
    for run in arms.values():
        run()
    times = in_turn(arms, timer, seconds)
    frames = world.pixel_frames
    for arm, each in times.items():
        low, middle, high = (float(q) for q in np.quantile(each, (0.25, 0.5, 0.75)))
        found.metrics[f"loop.{arm}.time"] = Metric(middle * 1e3, "ms", len(each), (low * 1e3, high * 1e3))
        found.metrics[f"loop.{arm}.rate"] = Metric(
            frames / middle, "frames/s", len(each), (frames / high, frames / low)
        )
        found.rows.append(("loop", arm, rounded(middle * 1e3), "", ""))
    found.metrics["loop.over_best_peer"] = quotient_of_medians(times["reference"], times["auto"])


def _notes(device: torch.device, left_out: Sequence[str]) -> tuple[str, ...]:
    gpu = device.type == "cuda"
    where = (
        "Times on a GPU are between two events, its second-level cache overwritten before; `graph_time` is that of a "
        "replayed CUDA graph."
        if gpu
        else "No GPU is used: these are the CPU backends, and say nothing of the GPU kernels, which are not measured."
    )
    return (
        where,
        "All ways of one operation take turns. Medians with quartiles; `over_best_peer` divides the median of the best "
        "other way by ours (`*`, what `auto` takes here), with a 95 % interval over rounds. `fraction_of_bound`: the "
        "larger of bytes that must move over the bandwidth of a large copy and FLOPs over the rate of a large matrix "
        "product, both measured in this run, over our median" + (" in a graph." if gpu else "."),
        "loop: a chunk of the shipped model, sampling and the pass that writes the memory, with every operation as "
        "`auto` chooses it and with every operation by its reference.",
        CALIBRATED,
        *(("Not measured: " + "; ".join(dict.fromkeys(left_out)) + ".",) if left_out else ()),
    )
