"""Attention of a chunk over what is remembered and itself."""

from .choice import ATTENTION, Attention, attend_segments
from .reference import Segment
from .spans import Moved, Seen, Span, Visible, attend

__all__ = ["ATTENTION", "Attention", "Moved", "Seen", "Segment", "Span", "Visible", "attend", "attend_segments"]
