"""Ways through a maze: from cell to cell, and in a straight line."""

import math
from collections import deque

import numpy as np

from worldmodel.datasets.worlds.maze.motion import RADIUS
from worldmodel.datasets.worlds.maze.plan import STEPS, Cell, Layout


def route(layout: Layout, start: Cell, end: Cell) -> list[Cell]:
    """A shortest way around walls and pillars: the cells after ``start``, up to ``end``; empty if there is none."""
    pillars = {(int(pillar.x), int(pillar.y)) for pillar in layout.pillars}
    came: dict[Cell, Cell] = {end: end}
    queue = deque([end])
    while queue and start not in came:
        cell = queue.popleft()
        for dx, dy in STEPS:
            new = cell[0] + dx, cell[1] + dy
            if new not in came and not layout.wall[new] and (new not in pillars or new == start):
                came[new] = cell
                queue.append(new)
    way: list[Cell] = []
    cell = start
    while cell in came and came[cell] != cell:
        cell = came[cell]
        way.append(cell)
    return way


def clear(layout: Layout, x: float, y: float, to_x: float, to_y: float) -> bool:
    """Whether a body can walk the straight line."""
    steps = max(2, int(math.hypot(to_x - x, to_y - y) / 0.1))
    share = np.linspace(0, 1, steps)[:, None]
    path = np.array([x, y]) * (1 - share) + np.array([to_x, to_y]) * share
    corners = path[:, None] + np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]) * RADIUS
    i, j = np.floor(corners).astype(int).transpose(2, 0, 1)
    if layout.wall[i, j].any():
        return False
    pillars = np.array([(pillar.x, pillar.y) for pillar in layout.pillars]).reshape(-1, 1, 2)
    return not (np.hypot(*(pillars - path).transpose(2, 0, 1)) < RADIUS + 0.3).any()
