"""What a stream remembers: values behind one protocol."""

from .base import Context, Geometry, Memory, MemoryConfig, Rotation
from .full import FullConfig, FullMemory
from .last_frame import LastFrameConfig, LastFrameMemory
from .window import WindowConfig, WindowMemory

AnyMemory = FullConfig | WindowConfig
"""The memories that a saved world and a snapshot may name: what can be read back."""

__all__ = [
    "AnyMemory", "Context", "FullConfig", "FullMemory", "Geometry", "LastFrameConfig", "LastFrameMemory", "Memory",
    "MemoryConfig", "Rotation", "WindowConfig", "WindowMemory",
]  # fmt: skip
