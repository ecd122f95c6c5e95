"""Attention of a chunk over what is remembered and itself."""

from .reference import Seen, Span, attend

__all__ = ["Seen", "Span", "attend"]
