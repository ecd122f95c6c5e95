"""A policy small enough to be served in a millisecond, one that obeys the test, and openpi's protocol by hand."""

import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import torch
from websockets.sync.client import connect

from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.observation import Interface, Range
from worldmodel.policies.policy import Acting, Policy
from worldmodel.sampler import Euler

SIZE, CHUNK, EXECUTE = 16, 8, 4
TINY = PolicyConfig(chunk=CHUNK, dim=16, depth=1, heads=2, hidden=32, channels=(8, 8), keypoints=4, time_width=8)
INTERFACE = Interface(
    cameras=("front", "side"),
    size=(SIZE, SIZE),
    state=Range(("x", "y", "opening"), (-1.0, -1.0, 0.0), (1.0, 1.0, 1.0)),
    action=Range(("target_x", "target_y"), (-0.5, 0.0), (0.5, 2.0)),
    vocabulary=("go", "there"),
    words=2,
    fps=20.0,
)


def tiny_policy(seed: int = 0) -> Policy:
    """Random weights, also where training would begin with zeros."""
    torch.manual_seed(seed)
    model = TINY.build(INTERFACE)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    return Policy(model.eval().requires_grad_(False), Acting(sampler=Euler(steps=2), execute=EXECUTE))


def observation(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "observation.images.front": rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8),
        "observation.images.side": rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8),
        "observation.state": rng.uniform(-1, 1, 3).astype(np.float32),
        "prompt": "go there",
    }


@dataclass
class Obedient:
    """A served policy whose chunks name their request's step and seed; it can be made to wait, to fail and to count."""

    interface: Interface = INTERFACE
    chunk: int = CHUNK
    facts: dict[str, Any] = field(default_factory=lambda: {"execute": EXECUTE, "chunking": "naive"})
    gate: threading.Event = field(default_factory=threading.Event)  # inference waits for it
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # one per inference
    batches: list[list[int]] = field(default_factory=list)  # seeds of the requests of each inference
    fails: Exception | None = None
    together: bool = False
    context: int | None = None  # it has no context encoder

    def __post_init__(self) -> None:
        self.gate.set()

    def infer(self, requests):
        self.batches.append([request.seed for request in requests])
        self.entered.release()
        assert self.gate.wait(60)
        if self.fails is not None:
            raise self.fails
        return [
            np.full((self.chunk, 2), request.seed, np.float32)
            + np.array([0, 1], np.float32) * (request.step + np.arange(self.chunk, dtype=np.float32))[:, None]
            for request in requests
        ]


class OpenPi:
    """openpi's protocol from its description: msgpack with byte-string markers, metadata first, text for errors."""

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        opened = connect(address, compression=None, max_size=None, additional_headers=headers)
        self.socket = contextlib.ExitStack().enter_context(opened)
        self.metadata = self.read(self.socket.recv(10))

    @staticmethod
    def write(message: Any) -> Any:
        def array(value):
            if isinstance(value, np.ndarray):
                parts = (True, value.tobytes(), value.dtype.str, value.shape)
                return dict(zip((b"__ndarray__", b"data", b"dtype", b"shape"), parts, strict=True))
            return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}

        return msgpack.packb(message, default=array)

    @staticmethod
    def read(data: bytes) -> Any:
        def array(found):
            if b"__ndarray__" in found:
                return np.ndarray(buffer=found[b"data"], dtype=np.dtype(found[b"dtype"]), shape=found[b"shape"])
            return found

        return msgpack.unpackb(data, object_hook=array)

    def ask(self, message: Any) -> Any:
        """The answer, or the text of an error."""
        self.socket.send(message if isinstance(message, bytes | str) else self.write(message))
        received = self.socket.recv(10)
        return received if isinstance(received, str) else self.read(received)
