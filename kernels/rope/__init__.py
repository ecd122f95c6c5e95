"""Rotary position embedding."""

from .reference import Pairing, Table, move_table, rope_table, rotate

__all__ = ["Pairing", "Table", "move_table", "rope_table", "rotate"]
