"""A maze of our own: coloured rooms, corridors, doors that open, landmarks; thousands of frames per second in numpy."""

from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.datasets.worlds.maze.explore import Explorer
from worldmodel.datasets.worlds.maze.plan import Landmark, Layout
from worldmodel.datasets.worlds.maze.revisit import Revisitor
from worldmodel.datasets.worlds.maze.world import Maze, VectorMaze
from worldmodel.errors import UserError

__all__ = ["Landmark", "Layout", "Maze", "VectorMaze", "open_world"]

ROWS = 8  # mazes stepped together when the caller leaves the number open

_VARIANTS = {  # name -> (rooms per side, seed of the layout)
    "": (3, None),
    "small": (2, None),
    "large": (4, None),
    "home": (2, 0),
}


def open_world(variant: str, options: WorldOptions) -> VectorMaze:
    """``maze`` has 3 x 3 rooms, ``maze/small`` 2 x 2, ``maze/large`` 4 x 4, other ones for every seed; ``maze/home`` is
    always the same 2 x 2 rooms. Policies: ``explore``, and ``revisit``, which comes back to views of landmarks.
    """
    if variant not in _VARIANTS:
        names = ", ".join(f"maze/{name}" if name else "maze" for name in _VARIANTS)
        raise UserError(f"unknown world 'maze/{variant}': choose {names}")
    if options.camera not in (None, "first_person"):
        raise UserError(f"maze has one camera, first_person, not {options.camera!r}")
    if options.policy not in (None, Explorer.name, Revisitor.name):
        raise UserError(f"maze has the policies {Explorer.name} and {Revisitor.name}, not {options.policy!r}")
    if not 16 <= options.size <= 256 or options.size % 2:
        raise UserError(f"maze draws pictures of 16 to 256 pixels, an even number, not {options.size}")
    rooms, layout_seed = _VARIANTS[variant]
    name = f"maze/{variant}" if variant else "maze"
    maze = VectorMaze(options.rows or ROWS, rooms, options.size, options.depth, layout_seed, name)
    if options.policy == Revisitor.name:
        maze.behaviour = Revisitor(maze)
    return maze
