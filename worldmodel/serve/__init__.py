"""The live stream: a world model that people drive in the browser, and the protocol for programs that drive it."""

from .server import serve
from .sources import RealWorld, RealWorldFactory, Recordings

__all__ = ["RealWorld", "RealWorldFactory", "Recordings", "serve"]
