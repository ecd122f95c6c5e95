"""Demonstrations for a policy: LeRobotDatasets v3, read whole into memory and checked before anything is trained.

Letters: T frames of an episode, N cameras, H W pixels, S state and A action dimensions, K actions of a chunk.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.chunk import Clip
from worldmodel.datasets.lerobot import RECORD, LeRobotRecordings
from worldmodel.errors import UserError
from worldmodel.policies.demonstration_checks import check_together, problems_of
from worldmodel.policies.observation import Interface, Observation, Range, split
from worldmodel.policies.shifts import NOMINAL, OFFSETS, Shift, draw_offset, parse_shift
from worldmodel.serial import read_json

EARLY = 8  # frames of an episode that `early` means


@dataclass(frozen=True, slots=True)
class Episode:
    """T frames; `action[i]` is executed after frame i."""

    image: NDArray[np.uint8]  # [T, N, 3, H, W]
    state: NDArray[np.float32]  # [T, S]
    action: NDArray[np.float32]  # [T, A]
    task: str

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Read:
    """All demonstrations of a recipe."""

    training: tuple[Episode, ...]
    held_out: tuple[Episode, ...]
    interface: Interface
    split: dict[str, list[int]]  # per folder, the held-out episodes


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Chunks of `chunk` actions (`PolicyConfig.chunk`) under the observation at their first frame.

    path: one dataset or several. batch: chunks per step, over all processes. validation: share of episodes held out.
    shift: hardware shift (`parse_shift`) that the data is rewritten for, so that a policy learns to compensate it.
    constant: names of dimensions that may have no range (a gripper that a task never moves); any other is an error.
    failures: keep episodes of which the recording says that they failed. early: share of the training samples that are
    drawn from the first 8 frames of episodes, where proprioception does not yet tell where they lead; every episode is
    as likely there, whatever its length. offset: where above 0, every sample is rewritten for a robot that is off by an
    actuation bias or an encoder offset of its own, of up to so many metres (`draw_offset`), of which nothing is told:
    what a policy with a context encoder is compared with. Actions behind an episode's end repeat the last one: a target
    that is held.
    """

    path: tuple[Path, ...]
    batch: int = 64
    validation: float = 0.1
    shift: str = "nominal"
    constant: tuple[str, ...] = ()
    failures: bool = False
    early: float = 0.0
    offset: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("demonstrations: path must name a dataset")
        if self.batch < 1 or not 0 <= self.validation < 1:
            raise UserError(
                f"demonstrations: batch {self.batch} must be above 0, validation {self.validation} in [0, 1)"
            )
        if not 0 <= self.early <= 1:
            raise UserError(f"demonstrations: early must be in [0, 1], not {self.early}")
        parse_shift(self.shift)
        draw_offset(OFFSETS[0], 0, self.offset, 0)
        if self.offset and parse_shift(self.shift) != NOMINAL:
            raise UserError(f"demonstrations: with a random offset, shift must be nominal, not {self.shift}")

    def read(self) -> Read:
        """Everything, checked: whatever is wrong with the datasets is one UserError that lists it all."""
        return _read(self.path, self.validation, self.shift, self.constant, self.failures)

    def chunks(self, chunk: int) -> "Chunks":
        """The batches that a training sees."""
        return Chunks(self, self.read(), chunk)


@dataclass(frozen=True, slots=True)
class Demonstrated(Clip[Observation]):
    """Normalised actions [B, K, A] under the observations at their first frames, and how the demonstrations end."""

    ending: Tensor  # [B, A], the normalised last action of each row's episode

    def select(self, rows: Tensor) -> "Demonstrated":
        return Demonstrated(self.x[rows], self.control.select(rows), self.index[rows], self.ending[rows])

    def frames(self, start: int, stop: int) -> "Demonstrated":
        return Demonstrated(self.x[:, start:stop], self.control.frames(start, stop), self.index, self.ending)

    def to(self, device: torch.device | str) -> "Demonstrated":
        x, index, ending = self.x.to(device), self.index.to(device), self.ending.to(device)
        return Demonstrated(x, self.control.to(device), index, ending)


@dataclass(frozen=True, slots=True)
class Chunks:
    """Clips of normalised actions [B, K, A] and their observations, a pure function of the step."""

    cfg: Demonstrations
    read: Read
    chunk: int

    def batches(self, first_step: int, rank: int, world: int, micro: int) -> Iterator[list[Clip[Observation]]]:
        """From `first_step` on, this rank's share of every step's clips, cut into `micro` micro-batches."""
        if self.cfg.batch % (world * micro):
            raise UserError(f"demonstrations: batch {self.cfg.batch} does not divide among {world} x {micro} parts")
        step, share = first_step, self.cfg.batch // world
        while True:
            rng = np.random.default_rng([self.cfg.seed, step])
            drawn, early = rng.integers(0, 2**62, self.cfg.batch), rng.random(self.cfg.batch) < self.cfg.early
            numbers = rng.integers(0, 2**31, self.cfg.batch)
            own = slice(rank * share, (rank + 1) * share)
            at = _anywhere(self.read.training, drawn[own])
            for row in np.flatnonzero(early[own]):
                at[row] = _early(self.read.training, int(drawn[own][row]))
            clips = self._clip(at, step * self.cfg.batch + own.start, numbers[own])
            size = share // micro
            yield [clips.select(torch.arange(m * size, (m + 1) * size)) for m in range(micro)]
            step += 1

    def validation_batches(self, count: int) -> Iterator[Clip[Observation]]:
        """`count` fixed batches of held-out chunks."""
        if not self.read.held_out:
            raise UserError("demonstrations: no episode is held out (validation), so the run's validate must be 0")
        for number in range(count):
            drawn = np.random.default_rng([self.cfg.seed, 1, number]).integers(0, 2**62, self.cfg.batch)
            yield self._clip(_anywhere(self.read.held_out, drawn), number * self.cfg.batch, drawn)

    def _clip(self, at: list[tuple[Episode, int]], first: int, numbers: NDArray[np.int64]) -> Demonstrated:
        """at: episodes and frames. numbers: a random one for each."""
        interface, shifts = self.read.interface, [self._shift(int(number)) for number in numbers]
        observation = Observation(
            image=torch.from_numpy(np.stack([episode.image[t] for episode, t in at])),
            state=torch.from_numpy(np.stack([s.report(e.state[t]) for s, (e, t) in zip(shifts, at, strict=True)])),
            words=torch.tensor([interface.encode(episode.task) for episode, _ in at], dtype=torch.int64),
            length=self.chunk,
        )
        chunks = [s.command(_chunk(e.action, t, self.chunk)) for s, (e, t) in zip(shifts, at, strict=True)]
        action = torch.from_numpy(np.stack(chunks))
        middle, half = interface.action.middle, interface.action.half
        ending = torch.from_numpy(np.stack([episode.action[-1] for episode, _ in at]))
        index = torch.arange(first, first + len(at))
        return Demonstrated((action - middle) / half, observation, index, (ending - middle) / half)

    def _shift(self, number: int) -> Shift:
        if not self.cfg.offset:
            return NOMINAL
        return draw_offset(OFFSETS[number % len(OFFSETS)], 0, self.cfg.offset, number // len(OFFSETS))


def _anywhere(episodes: tuple[Episode, ...], drawn: NDArray[np.int64]) -> list[tuple[Episode, int]]:
    """Frames among all: the numbers are drawn from a range much longer than there are frames."""
    ends = np.cumsum([len(episode) for episode in episodes])
    rows = drawn % ends[-1]
    where = np.searchsorted(ends, rows, side="right")
    return [(episodes[e], int(row - (ends[e] - len(episodes[e])))) for e, row in zip(where, rows, strict=True)]


def _early(episodes: tuple[Episode, ...], number: int) -> tuple[Episode, int]:
    """One of the first frames of an episode."""
    place, which = divmod(number, len(episodes))
    return episodes[which], place % min(EARLY, len(episodes[which]))


def _chunk(actions: NDArray[np.float32], start: int, length: int) -> NDArray[np.float32]:
    return actions[np.minimum(np.arange(start, start + length), len(actions) - 1)]


@functools.lru_cache(maxsize=2)
def _read(path: tuple[Path, ...], validation: float, shift: str, constant: tuple[str, ...], failures: bool) -> Read:
    opened: list[LeRobotRecordings] = []
    problems: list[str] = []
    for folder in path:
        try:
            opened.append(LeRobotRecordings.open(folder))
        except UserError as error:
            problems.append(str(error))
    problems += [problem for each in opened for problem in problems_of(each, constant)]
    problems += check_together(opened)
    training: list[Episode] = []
    held_out: list[Episode] = []
    parts: dict[str, list[int]] = {}
    for data in opened:
        try:
            kept, out = _sides(data, validation, failures)
            parts[str(data.path)] = out
            for e in kept[:1] if problems else kept:  # one shows most of what else is wrong, all may take minutes
                (held_out if e in out else training).append(_episode(data, e, parse_shift(shift)))
        except UserError as error:
            problems += [str(error)] * (not any(str(error) in each for each in problems))
    if problems:
        raise UserError(f"demonstrations: {len(problems)} problem{'s' * (len(problems) > 1)}: " + "; ".join(problems))
    interface = _interface(opened[0], training + held_out)
    for part, of in (("state", interface.state), ("action", interface.action)):
        bare = [name for name in of.constant if name not in constant]
        if bare:
            raise UserError(
                f"demonstrations: in all that is left of the data, {part} {', '.join(bare)} has no range; name it in "
                "constant if that is right"
            )
    return Read(tuple(training), tuple(held_out), interface, parts)


def _sides(data: LeRobotRecordings, validation: float, failures: bool) -> tuple[list[int], list[int]]:
    """The episodes that are kept, and those of them that are held out."""
    failed = set[int]() if failures else _failed(data)
    kept = [e for e in data.episodes if e not in failed]
    if not kept:
        raise UserError(f"{data.path}: every episode is marked as failed; keep them with failures")
    out = kept[:: round(1 / validation)] if validation else []
    if len(out) == len(kept):
        raise UserError(f"{data.path}: {len(kept)} episodes leave none to train on with validation {validation}")
    return kept, out


def _failed(data: LeRobotRecordings) -> set[int]:
    """The episodes that failed: by the record of the command that made them, or by their column `success`, which is
    what lerobot's tools leave of a recorded policy's episodes."""
    path = data.path / RECORD
    if not path.is_file() and data.info["features"].get("success", {}).get("dtype") == "bool":
        return {e for e in data.episodes if not data.column(e, "success").any()}
    record: Any = read_json(path) if path.is_file() else {}
    found = record.get("episodes", []) if isinstance(record, dict) else None
    if not isinstance(found, list):
        raise UserError(f"{path}: 'episodes' must be a list")
    return {e for e, known in enumerate(found) if isinstance(known, dict) and known.get("success") is False}


def _episode(data: LeRobotRecordings, episode: int, shift: Shift) -> Episode:
    views = [np.stack(list(data.frames(episode, camera))) for camera in data.cameras]
    action, state = shift.compensate(data.actions(episode), data.states(episode).astype(np.float32))
    image = np.stack(views, 1).transpose(0, 1, 4, 2, 3)
    return Episode(np.ascontiguousarray(image), state, action, data.task(episode))  # pyright: ignore[reportArgumentType]


def _interface(data: LeRobotRecordings, episodes: list[Episode]) -> Interface:
    instructions = sorted({episode.task for episode in episodes})
    return Interface(
        cameras=tuple(data.cameras),
        size=next(iter(data.cameras.values())),
        state=Range.of(data.state_names, np.concatenate([episode.state for episode in episodes])),
        action=Range.of(data.action_names, np.concatenate([episode.action for episode in episodes])),
        vocabulary=tuple(sorted({word for text in instructions for word in split(text)})),
        words=max(1, max(len(split(text)) for text in instructions)),
        fps=float(data.fps),
    )
