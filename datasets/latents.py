"""The restartable stream of training clips, cut from folders of encoded latents.

Letters: B batch, T latent frames, C H W latent channels, height and width, A packed action size (pack * dim).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Clip
from worldmodel.datasets.latent_files import TOKENIZER, Latents, LatentsInfo
from worldmodel.errors import UserError

SPLIT, TRAIN, VALIDATION = range(3)  # what a keyed draw is for


@dataclass(frozen=True, kw_only=True)
class LatentClips:
    """Training clips, drawn with replacement from folders of latents.

    Sample i is a pure function of (seed, i, its length): the stream restarts at any step with the same data, and any
    number of processes together see what one process sees. All windows of a folder's training episodes are equally
    likely; the folder is drawn by `weights` (default: as if they were one folder).

    path: folders of latents of one tokenizer and one kind of action. length: latent frames T of a clip. curriculum:
    pairs (step, length) in order, shorter clips until that step: ((1000, 8), (3000, 12)) has clips of 8 frames in steps
    0 to 999, of 12 in 1000 to 2999, then of `length`. batch: clips of one step over all processes. validation: expected
    share of episodes held out. actions: normalisation; None makes it from the training episodes.
    """

    path: tuple[Path, ...]
    weights: tuple[float, ...] = ()
    length: int
    curriculum: tuple[tuple[int, int], ...] = ()
    batch: int
    seed: int = 0
    validation: float = 0.05
    actions: ActionSpec | None = None

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("length", self.length)):
            if value < 1:
                raise UserError(f"data.{name} must be at least 1, not {value}")
        if not 0 <= self.validation < 1:  # NaN too
            raise UserError(f"data.validation must be a share in [0, 1), not {self.validation}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"data.seed must be in [0, 2**63), not {self.seed}")
        for until, length in self.curriculum:
            if until < 1 or length < 1:
                raise UserError(f"data.curriculum: step {until} and length {length} must be at least 1")

    def batches(
        self, first_step: int = 0, rank: int = 0, world: int = 1, micro: int = 1
    ) -> Iterator[list[Clip[ActionControl]]]:
        """The endless stream from a step on: this rank's clips of each step, as `micro` micro-batches of equal size.

        Step s is the global samples s * batch to (s + 1) * batch - 1, of which each rank has a contiguous share.
        """
        size, rest = divmod(self.batch, world * micro)
        if rest:
            raise UserError(f"a batch of {self.batch} does not divide into {world} processes x {micro} micro-batches")
        step = first_step
        while True:
            frames = self.length_at(step)
            first = step * self.batch + rank * size * micro
            yield [self._draw(TRAIN, first + m * size, size, frames) for m in range(micro)]
            step += 1

    def length_at(self, step: int) -> int:
        """Latent frames of a clip of this step."""
        return next((length for until, length in self.curriculum if step < until), self.length)

    def validation_batches(
        self, count: int, length: int | None = None, batch: int | None = None
    ) -> Iterator[Clip[ActionControl]]:
        """`count` batches of clips of the held-out episodes, the same ones at every call; index counts from 0."""
        batch = batch or self.batch
        for n in range(count):
            yield self._draw(VALIDATION, n * batch, batch, length or self.length)

    def clip(self, source: int, episode: int, start: int, length: int, index: int = 0) -> Clip[ActionControl]:
        """One clip [1, length, ...] of the episode of index `episode` in folder number `source`."""
        return self._clip([(source, episode, start)], length, torch.tensor([index]))

    @property
    def split(self) -> dict[str, list[str]]:
        """Episodes of either side, as "folder number/episode index". Kept in the checkpoint."""
        return {
            name: [f"{source}/{episode}" for source, episodes in enumerate(sides) for episode in episodes]
            for name, sides in zip(("train", "validation"), self._split, strict=True)
        }

    @property
    def action_spec(self) -> ActionSpec | None:
        """Normalisation by the 1 % and 99 % quantiles of the training episodes; None for data without actions."""
        return self._action_spec

    @cached_property
    def _action_spec(self) -> ActionSpec | None:
        info = self.info
        if self.actions is not None:
            if (self.actions.names, self.actions.pack) != (info.action_names, info.temporal):
                raise UserError(
                    f"{self.path[0]}: actions {list(info.action_names)} x {info.temporal} per latent frame, "
                    f"the model takes {list(self.actions.names)} x {self.actions.pack}"
                )
            return self.actions
        if not info.action_names:
            return None
        recorded = [
            latents.actions(episode)[1:].reshape(-1, len(info.action_names))
            for latents, episodes in zip(self.sources, self._split[0], strict=True)
            for episode in episodes
        ]
        return ActionSpec.from_data(info.action_names, np.concatenate(recorded), info.temporal, str(self.path[0]))

    @property
    def fps(self) -> float:
        """Pixel frames per second."""
        return float(self.info.fps)

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer that made the latents."""
        return self.sources[0].folder / TOKENIZER

    @property
    def info(self) -> LatentsInfo:
        """Of the first folder; the others have the same tokenizer, frame shape, rate and actions."""
        return self.sources[0].info

    @cached_property
    def sources(self) -> list[Latents]:
        """The folders, checked to fit together."""
        if not self.path:
            raise UserError("no folder of latents given")
        if self.weights and (len(self.weights) != len(self.path) or min(self.weights) <= 0):
            raise UserError(f"{len(self.path)} folders of latents need as many positive weights, not {self.weights}")
        sources = [Latents.open(Path(path)) for path in self.path]
        for other in sources[1:]:
            for key in ("sha256", "shape", "temporal", "fps", "action_names"):
                first, second = getattr(sources[0].info, key), getattr(other.info, key)
                if first != second:
                    raise UserError(f"{other.folder}: {key} is {second}, but {first} in {sources[0].folder}")
        return sources

    @cached_property
    def _split(self) -> tuple[list[list[int]], list[list[int]]]:
        """Training and validation episodes of each folder: an episode's side depends on its index and the seed only.

        So cameras of one recording fall on the same side. If chance leaves a side empty, the nearest episode changes
        sides.
        """
        place = {e: _draws(self.seed, SPLIT, e)[0] / 2**64 for s in self.sources for e in s.info.episodes}
        order = sorted(place, key=lambda e: place[e])
        held = {e for e in order if place[e] < self.validation}
        if self.validation > 0:
            if len(order) < 2:
                raise UserError(
                    f"{self.path[0]}: one episode cannot be split: give more, or hold none out with data.validation 0 "
                    "(a training needs validate 0 too)"
                )
            held = (held or {order[0]}) - ({order[-1]} if len(held) == len(order) else set())
        train = [[e for e in s.info.episodes if e not in held] for s in self.sources]
        return train, [[e for e in s.info.episodes if e in held] for s in self.sources]

    def _draw(self, side: int, first: int, size: int, length: int) -> Clip[ActionControl]:
        windows = self._windows(side, length)
        places = [windows.place(_draws(self.seed, side, index)) for index in range(first, first + size)]
        return self._clip(places, length, torch.arange(first, first + size))

    def _windows(self, side: int, length: int) -> "_Windows":
        cache: dict[tuple[int, int], _Windows] = self.__dict__.setdefault("_windows_of", {})
        if (side, length) not in cache:
            cache[side, length] = self._count_windows(side, length)
        return cache[side, length]

    def _count_windows(self, side: int, length: int) -> "_Windows":
        episodes = self._split[0 if side == TRAIN else 1]
        name = "training" if side == TRAIN else "validation"
        if not any(episodes):
            hint = "; without any, validate must be 0 too" if side == VALIDATION else ""
            raise UserError(f"{self.path[0]}: no {name} episodes (data.validation is {self.validation}){hint}")
        ends = []
        for source, chosen in zip(self.sources, episodes, strict=True):
            lengths = np.array([source.info.episodes[e] for e in chosen], np.int64)
            ends.append(np.cumsum(np.maximum(lengths - length + 1, 0)))
        totals = np.array([int(e[-1]) if len(e) else 0 for e in ends])
        if not totals.any():
            longest = max(s.info.episodes[e] for s, chosen in zip(self.sources, episodes, strict=True) for e in chosen)
            raise UserError(f"{self.path[0]}: no {name} episode has {length} latent frames, the longest has {longest}")
        shares = np.where(totals > 0, self.weights, 0.0) if self.weights else totals.astype(np.float64)
        return _Windows(episodes, ends, np.cumsum(shares) / np.sum(shares))

    def _clip(self, places: list[tuple[int, int, int]], length: int, index: torch.Tensor) -> Clip[ActionControl]:
        info, spec = self.info, self.action_spec
        x = np.empty((len(places), length, *info.shape), np.float16)
        action = np.empty((len(places), length, info.temporal, len(info.action_names)), np.float32)
        start = torch.tensor([place[2] for place in places])
        for row, (source, episode, first) in enumerate(places):
            x[row] = self.sources[source].frames(episode, first, first + length)
            action[row] = self.sources[source].actions(episode, first, first + length)
        normal = torch.from_numpy(action)
        if spec is not None:
            normal = spec.normalise(normal)
        has_action = (start[:, None] + torch.arange(length) > 0) & (spec is not None)
        return Clip(torch.from_numpy(x).float(), ActionControl(normal.flatten(2), has_action), index)


@dataclass(frozen=True, slots=True)
class _Windows:
    """All clips of one length on one side of the split."""

    episodes: list[list[int]]  # of each folder
    ends: list[NDArray[np.int64]]  # of each folder: windows up to and including each of its episodes
    shares: NDArray[np.float64]  # cumulative probability of the folders

    def place(self, draws: tuple[int, int]) -> tuple[int, int, int]:
        """Folder, episode and first frame of the window that two draws of 64 bits choose."""
        source = int(np.searchsorted(self.shares, draws[0] / 2**64, side="right"))
        source = min(source, len(self.shares) - 1)
        ends = self.ends[source]
        window = draws[1] % int(ends[-1])
        row = int(np.searchsorted(ends, window, side="right"))
        return source, self.episodes[source][row], window - (int(ends[row - 1]) if row else 0)


def _draws(seed: int, purpose: int, index: int) -> tuple[int, int]:
    """Two 64-bit draws keyed by (seed, purpose, index): counter-based, the same for every version of numpy."""
    raw = np.random.Philox(key=[seed, index], counter=[0, 0, 0, purpose]).random_raw(2)
    return int(raw[0]), int(raw[1])
