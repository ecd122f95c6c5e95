"""Noise as a function of (row seed, absolute frame, sampler step): the definition is in kernels/noise."""

from worldmodel.kernels.noise import philox, row_seed, uniform
from worldmodel.kernels.sampler_step import normal

__all__ = ["normal", "philox", "row_seed", "uniform"]
