"""Attention of a chunk over what is remembered and itself."""

from .reference import attend

__all__ = ["attend"]
