"""Noise as a function of (seed, frame, step)."""

from .reference import normal, philox, row_seed, uniform

__all__ = ["normal", "philox", "row_seed", "uniform"]
