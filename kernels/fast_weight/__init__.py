"""Fast weights that a large chunk of tokens updates in one step (LaCT)."""

from .reference import FastWeights, read, update

__all__ = ["FastWeights", "read", "update"]
