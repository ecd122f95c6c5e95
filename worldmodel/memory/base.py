"""A memory is a value: attention reads it, `append` returns the next one, nothing is cached in the model.

Shape letters: L layers, B rows, h heads, N remembered tokens, n tokens of one frame, K frames of a chunk, D head width.
"""

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from worldmodel.kernels.fast_weight import FastWeights
from worldmodel.kernels.rope import Pairing, Table


@dataclass(frozen=True, slots=True)
class FastGeometry:
    """Of a model's fast weights, in each layer."""

    groups: int
    hidden: int
    width: int
    momentum: bool


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that a model dictates to its memory."""

    layers: int
    heads: int
    head_dim: int
    tokens: int  # tokens of one frame
    fast: FastGeometry | None = None


class Rotation(Protocol):
    """How the model rotates keys: what a memory needs to place a frame at a position."""

    pairing: Pairing

    def table(self, frames: Tensor) -> Table:
        """Cosines and sines of time positions frames [B, F] (int64), two of [B, 1, F * n, D / 2]."""
        ...

    def rotate(self, x: Tensor, frames: Tensor) -> Tensor:
        """Rotate x [..., B, h, F * n, D] to the time positions frames [B, F] (int64)."""
        ...

    def shift(self, x: Tensor, frames: Tensor) -> Tensor:
        """Move rotated x [..., B, h, F * n, D] in time, by frames [B, F] (int64)."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What one chunk reads: rotated keys, values, which tokens are there; what was added to fast weights."""

    keys: Tensor  # [L, B, h, N, D]
    values: Tensor  # [L, B, h, N, D]
    valid: Tensor  # [B, N] bool
    fast: FastWeights | None = None  # [L, B, G, ...]


def together(pieces: tuple[Context, ...]) -> Context:
    """The pieces of a context copied into one, with the fast weights of the first."""
    first = pieces[0]
    keys, values = first.keys, first.values
    if len(pieces) > 1:
        keys, values = (torch.cat([getattr(piece, part) for piece in pieces], 3) for part in ("keys", "values"))
    valid = [piece.valid.repeat_interleave(_run(piece), 1) for piece in pieces]
    return Context(keys, values, torch.cat(valid, 1), first.fast)


def _run(piece: Context) -> int:
    """Tokens of a place of the mask."""
    return piece.keys.shape[3] // max(1, piece.valid.shape[1])


@runtime_checkable
class Pieces(Protocol):
    """A memory whose context lies in several places, which kernels of attention read without copying them together."""

    def pieces(self, frame: Tensor, rotation: Rotation) -> tuple[Context, ...]:
        """What `context` gives, piece by piece. valid may be [B, M] here, where M divides a piece's N: place m tells of
        N / M tokens. Fast weights are with the first."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Frames that a chunk reads elsewhere than where they were in time. M of them in every row, some not there."""

    frames: Tensor  # [B, M] int64, absolute
    places: Tensor  # [B, M] int64, the time positions at which they are read
    valid: Tensor  # [B, M] bool


@dataclass(frozen=True, slots=True)
class Reach:
    """What a chunk reads: all frames from `since` to its own first one where they were, and some at other places."""

    since: int
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What one row of a memory holds, for people to look at: first frames, chosen ones, and the newest."""

    sink: int = 0  # how many of the stream's first frames
    slow: tuple[int, ...] = ()  # absolute frames that were chosen to stay, oldest first
    read: tuple[int, ...] = ()  # those of them that the next chunk reads
    places: int = 0  # how many can be chosen
    ring: int = 0  # how many of the newest frames

    @property
    def frames(self) -> int:
        """How many frames it holds."""
        return self.sink + len(self.slow) + self.ring


@runtime_checkable
class Inspectable(Protocol):
    """A memory that can say which frames it holds; one that cannot is taken to hold the newest ones."""

    def holding(self, frame: Tensor) -> list[Holding]:
        """Of every row, before the chunk that starts at absolute frames frame [B]."""
        ...


class Memory(Protocol):
    """What the engine asks of any memory. Rows are independent of each other."""

    @property
    def batch(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes of storage that this memory owns."""
        ...

    def context(self, frame: Tensor, rotation: Rotation) -> Context:
        """What the chunk that starts at absolute frames frame [B] may read."""
        ...

    def append(self, keys: Tensor, values: Tensor, frame: Tensor, keep: Tensor, rotation: Rotation) -> Self:
        """The memory after a clean chunk.

        keys (normalised, not rotated) and values: [L, B, h, K * n, D]; frame: [B] int64, absolute index of the
        chunk's first frame; keep: [B, K] bool, which frames to store. With gradients enabled this is a pure function;
        without, it may reuse the storage of `self`, which must not be read again (reading it is an error).
        """
        ...

    def select(self, rows: Tensor) -> Self:
        """A copy of the rows of an index tensor [B'] int64."""
        ...

    def fork(self, n: int) -> Self:
        """n independent continuations of every row, [B] -> [B * n], row b at b * n to b * n + n - 1."""
        ...

    def reset(self, rows: Tensor) -> Self:
        """The memory with the rows of a mask [B] bool emptied."""
        ...

    def to(self, device: torch.device | str) -> Self: ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a snapshot must hold; the config's `restore` is its inverse."""
        ...


class MemoryConfig(Protocol):
    """The choice of a memory policy, as a value."""

    def empty(self, geometry: Geometry, batch: int, like: Tensor) -> Memory:
        """A memory that holds nothing, on the device and of the type of `like`."""
        ...

    def restore(self, tensors: dict[str, Tensor]) -> Memory: ...

    @property
    def compares(self) -> bool:
        """Whether it compares frames by their features, see `reach`."""
        ...

    @property
    def capacity(self) -> int | None:
        """How many frames it holds at most, None for any number."""
        ...

    def check(self, chunk: int) -> None:
        """A UserError if a chunk of so many frames does not fit."""
        ...

    def reach(self, starts: range, features: Tensor) -> list[Reach]:
        """What the chunks of a clip that begin at the frames `starts` would read from this memory.

        features: [B, T, h * D], the first layer's keys of every frame, not rotated, their mean over the frame's tokens.
        """
        ...
