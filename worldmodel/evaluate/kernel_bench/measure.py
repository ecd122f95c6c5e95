"""Times of several ways to compute one thing, which take turns so that other load meets all of them alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .work import Run

ROUNDS = 50
LEAST_ROUNDS = 5
SHORTEST = 2e-4  # seconds of one measurement on a CPU: shorter things are repeated within it


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do, measured in the run itself."""

    device: torch.device
    bandwidth: float  # bytes/s of a large copy, read and written
    rate: float  # FLOP/s of a large matrix product in the type that tokens have

    def bound(self, bytes: float, flops: float) -> float:
        """Seconds below which an operation cannot be."""
        return max(bytes / self.bandwidth, flops / self.rate)


def measure_device(device: torch.device, kind: torch.dtype) -> Device:
    """Best of several tries of a copy and of a product, larger than any cache on a GPU."""
    gpu = device.type == "cuda"
    x = torch.ones(2**28 if gpu else 2**24, device=device)
    y = torch.empty_like(x)
    size = 8192 if gpu else 1024
    a, b = (torch.ones(size, size, dtype=kind, device=device) for _ in range(2))
    timer = Timer(device)
    copy = min(timer.seconds(lambda: y.copy_(x)) for _ in range(8))
    product = min(timer.seconds(lambda: torch.mm(a, b)) for _ in range(8))
    return Device(device, 2 * x.numel() * 4 / copy, 2 * size**3 / product)


class Timer:
    """Seconds that a device spends on something; on a GPU between two events, its cache emptied before."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            cache = torch.cuda.get_device_properties(device).L2_cache_size
            self.flush = torch.empty(2 * cache, dtype=torch.uint8, device=device)

    def seconds(self, run: Run, repeats: int = 1) -> float:
        """Of one of `repeats` calls."""
        if self.device.type != "cuda":
            begin = time.perf_counter()
            for _ in range(repeats):
                run()
            return (time.perf_counter() - begin) / repeats
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        first.record()
        for _ in range(repeats):
            run()
        last.record()
        torch.cuda.synchronize(self.device)
        return first.elapsed_time(last) / 1e3 / repeats


def in_turn(arms: Mapping[str, Run], timer: Timer, seconds: float) -> dict[str, NDArray[np.float64]]:
    """Seconds [rounds] of every arm, which has run before; as many rounds as fit into `seconds`, at least five."""
    repeats = dict.fromkeys(arms, 1)
    if timer.device.type != "cuda":
        repeats = {name: max(1, int(SHORTEST / max(timer.seconds(run), 1e-7))) for name, run in arms.items()}
    deadline, found = time.perf_counter() + seconds, list[list[float]]()
    while len(found) < ROUNDS and (len(found) < LEAST_ROUNDS or time.perf_counter() < deadline):
        found.append([timer.seconds(run, repeats[name]) for name, run in arms.items()])
    columns = np.array(found).reshape(len(found), len(arms)).T
    return dict(zip(arms, columns, strict=True))


def captured(run: Run, device: torch.device) -> Callable[[], None]:
    """The same as one replay of a CUDA graph; its inputs are those that it has now.

    Raises what CUDA raises where it cannot be captured, for one because it waits for the device.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
