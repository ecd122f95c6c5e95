"""What stands beside a live stream: the simulator of the same world, and recordings to start from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.recordings import Frame, Recordings, choose_camera, open_recordings
from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import VectorWorld, World, WorldOptions
from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel
from worldmodel.pixels import fit
from worldmodel.serve.sources import Footage, Pixels, RealWorld


def simulator(name: str, model: WorldModel) -> Callable[[], RealWorld]:
    """A factory of simulators of the world `name` at the model's picture size.

    Opens one to see that it works and takes the model's actions; a UserError says why not.
    """
    height, width = (side * model.tokenizer.spatial for side in model.dit.cfg.size)
    if height != width:
        raise UserError(f"{name}: simulators make square pictures, the model's have {width} x {height} pixels")
    options = WorldOptions(size=height, rows=1)

    def opened() -> "Simulator":
        return Simulator(open_world(name, options))

    first = opened()
    names = first.world.facts.action_names
    first.close()
    if model.actions is None or names != model.actions.names:
        raise UserError(
            f"{name}: its actions are {list(names)}, the model's {list(getattr(model.actions, 'names', ()))}"
        )
    return opened


@dataclass(slots=True)
class Simulator:
    """One environment of any world behind the stream's protocol."""

    world: World | VectorWorld
    seed: int = 0

    def reset(self, seed: int) -> Pixels:
        self.seed = seed
        if isinstance(self.world, VectorWorld):
            seeds: Any = [seed] * self.world.num_envs  # gymnasium's annotation forgets that there is one per row
            return self._picture(self.world.reset(seed=seeds)[0])
        return self._picture(self.world.reset(seed=seed)[0])

    def step(self, actions: NDArray[np.float32]) -> Pixels:
        pictures = []
        for action in actions:
            if isinstance(self.world, VectorWorld):
                seen = self.world.step(np.repeat(action[None], self.world.num_envs, 0))[0]
                pictures.append(self._picture(seen))
                continue
            seen, _, terminated, truncated, _ = self.world.step(action)
            pictures.append(self._picture(seen))
            if terminated or truncated:
                self.reset(self.seed + 1)
        return np.stack(pictures)

    def close(self) -> None:
        self.world.close()

    def _picture(self, seen: dict[str, NDArray[np.uint8]]) -> Pixels:
        image = seen["image"]
        return image[0] if isinstance(self.world, VectorWorld) else image


def frames_of(path: Path, model: WorldModel) -> "Footages":
    """The frames of a dataset or of a folder of videos, as starts for this model's streams."""
    recordings = open_recordings(path)
    names = model.actions.names if model.actions else ()
    if model.actions and recordings.action_names and recordings.action_names != names:
        raise UserError(f"{path}: its actions are {list(recordings.action_names)}, the model's {list(names)}")
    height, width = (side * model.tokenizer.spatial for side in model.dit.cfg.size)
    return Footages(recordings, choose_camera(recordings, None), (height, width), model.tokenizer.temporal)


@dataclass(slots=True)
class Footages:
    """Frames counted through all episodes in order; the episode read last stays in memory."""

    recordings: Recordings
    camera: str
    size: tuple[int, int]
    temporal: int
    _episode: int | None = None
    _pictures: NDArray[np.uint8] | None = None

    @property
    def frames(self) -> int:
        return sum(self.recordings.episodes.values())

    def picture(self, frame: int) -> Frame:
        pictures, place, _ = self._locate(frame)
        return pictures[place]

    def footage(self, frame: int, latents: int) -> Footage:
        pictures, place, episode = self._locate(frame)
        length = 1 + self.temporal * (latents - 1)
        if len(pictures) < length:
            raise UserError(
                f"{self.recordings.path}: episode {episode} has {len(pictures)} frames, a start needs {length}"
            )
        first = max(0, place + 1 - length)
        actions = self.recordings.actions(episode)[first : first + length - 1] if self.recordings.action_names else None
        return Footage(pictures[first : first + length], actions)

    def _locate(self, frame: int) -> tuple[NDArray[np.uint8], int, int]:
        for episode, length in self.recordings.episodes.items():
            if frame < length:
                return self._read(episode), frame, episode
            frame -= length
        raise UserError(f"{self.recordings.path}: has {self.frames} frames, there is no frame {frame + self.frames}")

    def _read(self, episode: int) -> NDArray[np.uint8]:
        if self._episode != episode or self._pictures is None:
            frames = [fit(frame, *self.size) for frame in self.recordings.frames(episode, self.camera)]
            self._episode, self._pictures = episode, np.stack(frames)
        return self._pictures
