"""Procedural heads: people, faces, light and what is before them as numbers, rendered with exact truth on a CPU.

`person` and `scene` hold the numbers, `shape` makes a surface of them, `rays` finds it, `paint` colours it, `behind`
and `before` are what stands around it, `render` joins all. `motion` moves it smoothly. `swaps` makes clips for
training.
"""
