"""`kernels bench`: the time of every kernel against the physical bound and against peers, on any device."""

from .bench import kernel_bench

__all__ = ["kernel_bench"]
