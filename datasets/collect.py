"""``collect``: a simulated world and its behaviour, written down as a LeRobotDataset v3."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import gymnasium
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from worldmodel.datasets.interrupt import HeldSignals, Stopped
from worldmodel.datasets.lerobot_writer import Episode, EpisodeSchema, EpisodeWriter
from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import Observation, VectorWorld, World, WorldOptions, WorldSpec
from worldmodel.errors import UserError
from worldmodel.serial import write_json

RECORD = Path("meta") / "collection.json"  # beside lerobot's own info.json


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """What the dataset's own columns do not say about one episode."""

    seed: int
    frames: int
    ended: bool  # by the world; False when it ran its full length
    success: bool | None  # None where the world knows no success


@dataclass(frozen=True, slots=True)
class Collection:
    """What ``collect`` wrote; the contents of meta/collection.json, ``folder`` and ``stopped`` apart."""

    folder: Path
    world: str
    policy: str
    options: WorldOptions
    episodes: tuple[EpisodeRecord, ...]
    stopped: str | None  # name of the signal that ended it early

    @property
    def frames(self) -> int:
        return sum(episode.frames for episode in self.episodes)


def collect(
    world: str,
    episodes: int,
    out: Path,
    frames: int = 500,
    seed: int = 0,
    options: WorldOptions | None = None,
    console: Console | None = None,
) -> Collection:
    """Records ``episodes`` episodes of at most ``frames`` frames each into the new folder ``out``.

    Episode i has seed ``seed + i`` and depends on nothing else. Row i of the dataset holds what is seen at frame i and
    the action executed after it; ``meta/collection.json`` the seeds, the policy and the outcome of every episode.

    SIGINT, SIGTERM and an error in the simulator drop the episode in progress and finalise the dataset with all earlier
    ones: for a signal the returned ``stopped`` names it, an error is raised again with a note of what was saved.

    Raises UserError for an unknown world or option, numbers out of range, or a folder that exists.
    """
    if episodes < 1:
        raise UserError(f"episodes must be at least 1, not {episodes}")
    if frames < 2:
        raise UserError(f"frames must be at least 2, not {frames}")
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    if out.exists():
        raise UserError(f"{out} exists already: give a new folder")
    options = options or WorldOptions()
    console = console or Console(stderr=True)
    records: list[EpisodeRecord] = []
    stopped: str | None = None
    with closing(open_world(world, options)) as simulator, HeldSignals() as signals:
        try:
            with EpisodeWriter(out, _schema(simulator.facts, options)) as writer, _progress(console) as progress:
                bar = progress.add_task(world, total=episodes * frames)
                made = _episodes(simulator, range(seed, seed + episodes), frames)
                for episode, record in signals.between(made):
                    writer.write(episode)
                    records.append(record)  # a signal finds both done, or neither
                    progress.update(bar, advance=frames)
        except Stopped as stop:
            stopped = str(stop)
        except Exception as error:
            error.add_note(f"{len(records)} finished episodes are saved in {out}" if records else "nothing was saved")
            raise
        finally:
            collection = Collection(out, world, simulator.behaviour.name, options, tuple(records), stopped)
            if records:
                _write_record(collection)
    return collection


def _schema(facts: WorldSpec, options: WorldOptions) -> EpisodeSchema:
    return EpisodeSchema(
        fps=facts.fps,
        cameras={facts.camera: (facts.height, facts.width)},
        state_names=facts.state_names,
        action_names=facts.action_names,
        depth=(facts.camera,) if options.depth else (),
    )


def _episodes(world: World | VectorWorld, seeds: range, frames: int) -> Iterator[tuple[Episode, EpisodeRecord]]:
    if isinstance(world, VectorWorld):
        for first in range(0, len(seeds), world.num_envs):
            yield from _vector_episodes(world, seeds[first : first + world.num_envs], frames)
    else:
        for seed in seeds:
            yield _one_episode(world, seed, frames)


def _one_episode(world: World, seed: int, frames: int) -> tuple[Episode, EpisodeRecord]:
    rng = np.random.default_rng(seed)
    observation, _ = world.reset(seed=seed)
    world.behaviour.reset()
    space = world.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    seen: list[Observation] = []
    actions: list[NDArray[np.float32]] = []
    success: bool | None = None
    ended = False
    while len(actions) < frames and not ended:
        action = np.clip(world.behaviour(observation, rng), space.low, space.high).astype(np.float32)
        seen.append(observation)
        actions.append(action)
        observation, _, terminated, truncated, info = world.step(action)
        ended = bool(terminated or truncated)
        if "success" in info:
            success = bool(success or info["success"])
    episode = _pack(world.facts, {key: np.stack([o[key] for o in seen]) for key in seen[0]}, np.stack(actions))
    return episode, EpisodeRecord(seed, len(actions), ended, success)


def _vector_episodes(world: VectorWorld, seeds: Sequence[int], frames: int) -> Iterator[tuple[Episode, EpisodeRecord]]:
    """One episode per row; rows beyond the seeds run along unrecorded."""
    row_seeds = [*seeds, *[seeds[0]] * (world.num_envs - len(seeds))]
    rngs = [np.random.default_rng(seed) for seed in row_seeds]
    observation, _ = world.reset(seed=row_seeds)  # pyright: ignore[reportArgumentType] (one seed per row, as gymnasium allows)
    world.behaviour.reset()
    space = world.single_action_space
    assert isinstance(space, gymnasium.spaces.Box)
    seen: list[Observation] = []
    actions: list[NDArray[np.float32]] = []
    for _ in range(frames):
        action = np.clip(world.behaviour(observation, rngs), space.low, space.high).astype(np.float32)
        seen.append({key: values[: len(seeds)].copy() for key, values in observation.items()})
        actions.append(action[: len(seeds)])
        observation, *_ = world.step(action)
    for row, seed in enumerate(seeds):
        rows = {key: np.stack([o[key][row] for o in seen]) for key in seen[0]}
        yield _pack(world.facts, rows, np.stack([a[row] for a in actions])), EpisodeRecord(seed, frames, False, None)


def _pack(facts: WorldSpec, seen: Observation, actions: NDArray[np.float32]) -> Episode:
    return Episode(
        task=facts.task,
        video={facts.camera: seen["image"].astype(np.uint8, copy=False)},
        state=seen["state"].astype(np.float32, copy=False),
        action=actions,
        depth={facts.camera: seen["depth"].astype(np.float32, copy=False)} if "depth" in seen else {},
    )


def _write_record(collection: Collection) -> None:
    record = {
        "world": collection.world,
        "policy": collection.policy,
        "options": asdict(collection.options),
        "worldmodel": version("worldmodel"),
        "episodes": [asdict(episode) for episode in collection.episodes],
    }
    write_json(record, collection.folder / RECORD)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("- frames/s" if speed is None else f"{speed:,.0f} frames/s")


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, speed_estimate_period=60) as progress:
        yield progress
