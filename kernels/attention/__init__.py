"""Attention of a chunk over what is remembered and itself."""

from .reference import Moved, Seen, Span, attend

__all__ = ["Moved", "Seen", "Span", "attend"]
