"""Recordings as the evaluation wants them: whole episodes at the model's picture size, read when they are needed."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from worldmodel.datasets.lerobot import LeRobotRecordings
from worldmodel.datasets.recordings import Recordings, choose_camera, open_recordings
from worldmodel.errors import UserError
from worldmodel.evaluate.recordings import Recording
from worldmodel.models.world import WorldModel
from worldmodel.pixels import fit

KEPT = 16  # episodes in memory


def held_out(path: Path, world: WorldModel, camera: str | None = None) -> "HeldOut":
    """The episodes of a dataset or of a folder of videos. They must be other ones than the model was trained on."""
    recordings = open_recordings(path)
    height, width = (side * world.tokenizer.spatial for side in world.dit.cfg.size)
    return HeldOut(recordings, choose_camera(recordings, camera), (height, width), tuple(recordings.episodes))


@dataclass(slots=True)
class HeldOut:
    """Episodes in order of their index."""

    recordings: Recordings
    camera: str
    size: tuple[int, int]
    indices: tuple[int, ...]
    _read: OrderedDict[int, Recording] = field(default_factory=OrderedDict)

    def halves(self) -> tuple["HeldOut", "HeldOut"]:
        """The first half of the episodes and the rest. UserError if there is only one episode."""
        if len(self.indices) < 2:
            raise UserError(f"{self.recordings.path}: one episode cannot be halved; give --train-data too")
        first, rest = self.indices[: len(self.indices) // 2], self.indices[len(self.indices) // 2 :]
        first, rest = (HeldOut(self.recordings, self.camera, self.size, part) for part in (first, rest))
        return first, rest

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.recordings.action_names

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.recordings.state_names if isinstance(self.recordings, LeRobotRecordings) else ()

    @property
    def lengths(self) -> Sequence[int]:
        return [self.recordings.episodes[index] for index in self.indices]

    def read(self, episode: int, start: int, stop: int) -> Recording:
        whole = self._whole(self.indices[episode])
        state = None if whole.state is None else whole.state[start:stop]
        return Recording(whole.pixels[start:stop], whole.actions[start:stop], state)

    def _whole(self, index: int) -> Recording:
        if index not in self._read:
            frames = np.stack([fit(frame, *self.size) for frame in self.recordings.frames(index, self.camera)])
            state = None
            if isinstance(self.recordings, LeRobotRecordings) and self.recordings.state_names:
                state = self.recordings.states(index)
            self._read[index] = Recording(frames, self.recordings.actions(index), state)
            if len(self._read) > KEPT:
                self._read.popitem(last=False)
        self._read.move_to_end(index)
        return self._read[index]
