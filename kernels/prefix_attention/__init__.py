"""Attention of many rollouts that begin with the same tokens."""

from .shared import QKV, Cost, attend_prefix, attention_cost, prefix_cost

__all__ = ["QKV", "Cost", "attend_prefix", "attention_cost", "prefix_cost"]
