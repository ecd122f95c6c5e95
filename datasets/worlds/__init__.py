"""Simulated worlds by name: ``maze``, ``doom``, ``doom/freedoom``, ``metaworld/<task>``, ``pusht``."""

from importlib import import_module

from worldmodel.datasets.worlds.base import VectorWorld, World, WorldOptions
from worldmodel.errors import UserError

__all__ = ["NAMES", "open_world"]

NAMES = ("maze", "doom", "metaworld", "pusht")
"""Each is a module here with ``open_world(variant: str, options: WorldOptions) -> World | VectorWorld``."""


def open_world(name: str, options: WorldOptions | None = None) -> World | VectorWorld:
    """Opens the world called ``name``: a family, or ``family/variant``.

    Raises UserError when the family or the variant is unknown, or when its simulator is not installed.
    """
    family, _, variant = name.partition("/")
    if family not in NAMES:
        raise UserError(f"unknown world {name!r}: choose from {', '.join(NAMES)}, with /variant where it has variants")
    module = import_module(f"worldmodel.datasets.worlds.{family}")
    return module.open_world(variant, options or WorldOptions())
