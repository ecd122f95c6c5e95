"""Time that counts what a device was given, not only that it was given it."""

import time

import torch


def clock(device: torch.device) -> float:
    """Seconds of `time.perf_counter`, when the device has finished what it was given.

    Kernels of a GPU are launched and not waited for; on a CPU every operation has finished when it returns.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
