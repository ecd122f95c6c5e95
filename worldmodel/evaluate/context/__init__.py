"""Effective context, measured: how long after a view was last seen it is still redrawn right."""
