"""What a stream remembers: values behind one protocol."""

from .base import (
    Context,
    FastGeometry,
    Geometry,
    Held,
    Holding,
    Inspectable,
    Memory,
    MemoryConfig,
    Pieces,
    Reach,
    Rotation,
)
from .full import FullConfig, FullMemory
from .lact import LactConfig, LactMemory
from .last_frame import LastFrameConfig, LastFrameMemory
from .retrieval import RetrievalConfig
from .slow_fast import SlowFastConfig, SlowFastMemory, mean_keys
from .window import WindowConfig, WindowMemory

AnyMemory = FullConfig | WindowConfig | SlowFastConfig | RetrievalConfig | LactConfig
"""The memories that a saved world and a snapshot may name: what can be read back."""

__all__ = [
    "AnyMemory", "Context", "FastGeometry", "FullConfig", "FullMemory", "Geometry", "Held", "Holding",
    "Inspectable", "LactConfig", "LactMemory", "LastFrameConfig", "LastFrameMemory", "Memory", "MemoryConfig",
    "Pieces", "Reach", "RetrievalConfig", "Rotation", "SlowFastConfig", "SlowFastMemory", "WindowConfig",
    "WindowMemory", "mean_keys",
]  # fmt: skip
