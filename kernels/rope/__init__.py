"""Rotary position embedding."""

from .reference import PAIRINGS, Pairing, Table, move_table, rope_table, rotate

__all__ = ["PAIRINGS", "Pairing", "Table", "move_table", "rope_table", "rotate"]
