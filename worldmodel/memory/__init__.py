"""What a stream remembers: values behind one protocol."""

from .base import Context, Geometry, Memory, MemoryConfig, Rotation
from .full import FullConfig, FullMemory
from .window import WindowConfig, WindowMemory

__all__ = [
    "Context", "FullConfig", "FullMemory", "Geometry", "Memory", "MemoryConfig", "Rotation", "WindowConfig",
    "WindowMemory",
]  # fmt: skip
