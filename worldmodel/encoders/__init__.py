"""Frozen encoders of single frames: what judges pictures and what training pulls them towards.

Every one is differentiable down to float pixels; its own weights never change.
"""
