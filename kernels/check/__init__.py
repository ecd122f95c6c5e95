"""Proof of the kernels without a GPU: `worldmodel kernels check`."""
