"""How fast this machine is now: printed beside every absolute rate or time."""

import os
import statistics
import time
from dataclasses import dataclass

import torch

SIZE = 1024


@dataclass(frozen=True, slots=True)
class Calibration:
    """gflops: rate of one 1024^3 fp32 matrix product on one core, GFLOP/s. load: runnable processes, 1-minute mean."""

    gflops: float
    load: float


def calibrate(repeats: int = 9) -> Calibration:
    """Median over `repeats` products on one thread; about 0.3 s. A rate of 80 or more is a quiet, ordinary core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b = torch.ones(SIZE, SIZE), torch.ones(SIZE, SIZE)
        torch.mm(a, b)  # warm-up
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            torch.mm(a, b)
            seconds.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    return Calibration(gflops=2 * SIZE**3 / statistics.median(seconds) / 1e9, load=os.getloadavg()[0])
