"""Rotary position embedding."""

from .reference import Pairing, rotate

__all__ = ["Pairing", "rotate"]
