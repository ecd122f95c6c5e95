"""Noise as a function of (row seed, absolute frame, sampler step): the definition is in kernels/noise."""

from worldmodel.kernels.noise import normal, philox, row_seed, uniform

__all__ = ["normal", "philox", "row_seed", "uniform"]
