"""Newton-Schulz iteration towards the nearest semi-orthogonal matrix."""

from .reference import QUINTIC, newton_schulz

__all__ = ["QUINTIC", "newton_schulz"]
