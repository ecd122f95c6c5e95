"""AdaLN modulation and gated residual."""

from .reference import gated_residual, modulate

__all__ = ["gated_residual", "modulate"]
