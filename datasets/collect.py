"""``collect``: a simulated world and its behaviour, written down as a LeRobotDataset v3."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.interrupt import HeldSignals, Stopped
from worldmodel.datasets.lerobot import RECORD
from worldmodel.datasets.lerobot_groups import INFO, is_untouched, newest
from worldmodel.datasets.lerobot_writer import MAX_FRAMES, Episode, EpisodeSchema, EpisodeWriter
from worldmodel.datasets.pose_actions import check_pose, pose_names, with_pose
from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import Observation, VectorWorld, World, WorldOptions, WorldSpec
from worldmodel.errors import UserError
from worldmodel.options import check_range
from worldmodel.progress import progress_bar
from worldmodel.serial import from_json, read_json, write_json

MAX_SEED = 2**32  # and of episodes; the simulators' seeds have 32 bits


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """What the dataset's own columns do not say about one episode."""

    seed: int
    frames: int
    ended: bool  # by the world; False when it ran its full length
    success: bool | None  # None where the world knows no success


@dataclass(frozen=True, slots=True)
class Collection:
    """What ``collect`` wrote, now and before; meta/collection.json says the same, and what was asked for."""

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
    quiet: bool = False,
    opens: Callable[[str, WorldOptions], World | VectorWorld] = open_world,
    pose: tuple[float, ...] = (),
) -> Collection:
    """Records ``episodes`` episodes of at most ``frames`` frames each into the folder ``out``.

    Episode i has seed ``seed + i`` and depends on nothing else. Row i of the dataset holds what is seen at frame i and
    the action executed after it; ``meta/collection.json`` the seeds, the policy and the outcome of every episode.
    ``opens`` gives the world of a name. ``pose``: wavelengths, in the unit of x and y; with any, recorded actions also
    hold the code of the pose that they lead to (`pose_actions`), which the world itself never sees.

    SIGINT, SIGTERM and an error in the simulator drop the episode in progress and finalise the dataset with all earlier
    ones: for a signal the returned ``stopped`` names it, an error is raised again with a note of what was saved. A
    process that is killed loses its last group of episodes (``lerobot_writer.GROUP_FRAMES``). However it ended, the
    same call goes on with the episodes that are missing.

    Raises UserError for an unknown world or option, numbers out of range, or a folder that holds anything else, or
    episodes that something has damaged since.
    """
    check_range(1, MAX_SEED, episodes=episodes)
    check_range(2, MAX_FRAMES, frames=frames)
    check_range(0, MAX_SEED - episodes, seed=seed)
    options = options or WorldOptions()
    asked = {"world": world, "options": asdict(options), "max_frames": frames, "seed": seed}
    if pose:
        asked["pose"] = list(pose)
    _recorded(out, asked, episodes)  # what is wrong with the folder is said before the simulator starts
    records: list[EpisodeRecord] = []
    goes_on = False
    stopped: str | None = None
    with closing(opens(world, options)) as simulator, HeldSignals() as signals:
        policy = simulator.behaviour.name
        if pose:
            check_pose(simulator.facts.state_names, pose)

        def write_record(folder: Path, count: int) -> None:
            made = {"wanted": episodes, "episodes": [asdict(record) for record in records[:count]]}
            record = asked | {"policy": policy, "worldmodel": version("worldmodel")} | made
            write_json(record, folder / RECORD)

        writer = EpisodeWriter(out, _schema(simulator.facts, options, pose), resume=True, beside=write_record)
        try:
            done = writer.episodes
            with writer, progress_bar(world, episodes * frames, done * frames, shown=not quiet) as advance:
                records += _recorded(out, asked, episodes)
                if len(records) != done:
                    raise UserError(f"{out / RECORD}: {len(records)} episodes, but the dataset has {done}")
                goes_on = True
                todo = range(seed + done, seed + episodes)
                for episode, record in signals.between(_episodes(simulator, todo, frames, pose)):
                    records.append(record)
                    writer.write(episode)
                    advance(frames)
        except Stopped as stop:
            stopped = str(stop)
        except Exception as error:
            kept = f"{writer.saved} finished episodes are saved in {out}: the same command goes on after them"
            if goes_on:
                error.add_note(kept if writer.saved else "nothing was saved")
            raise
    return Collection(out, world, policy, options, tuple(records[: writer.saved]), stopped)


def _recorded(out: Path, asked: dict[str, Any], episodes: int) -> list[EpisodeRecord]:
    """The episodes that are there; a UserError unless they are the beginning of what is asked for, or all of it."""
    if not out.exists() or is_untouched(out):
        return []
    path = newest(out, RECORD)
    if not path.is_file():
        if newest(out, INFO).is_file():
            raise UserError(
                f"{path}: no such file, so nothing can be added to the episodes in {out}: give a new folder"
            )
        raise UserError(f"{out} exists already: give a new folder")
    record = read_json(path)
    found = record.get("episodes") if isinstance(record, dict) else None
    if not isinstance(found, list):
        raise UserError(f"{path}: no list of 'episodes': {out} cannot be added to, give a new folder")
    for name, value in asked.items():
        if record.get(name) != value:
            raise UserError(
                f"{out} exists already, recorded with the {name} {record.get(name)}, not {value}: give a new folder"
            )
    if len(found) > episodes:
        raise UserError(f"{out} exists already, with {len(found)} episodes: give a new folder")
    records = [from_json(item, EpisodeRecord, f"{path}: episodes[{index}]") for index, item in enumerate(found)]
    for index, known in enumerate(records):
        if known.seed != asked["seed"] + index:
            raise UserError(f"{path}: episodes[{index}] has the seed {known.seed}, expected {asked['seed'] + index}")
    return records


def _schema(facts: WorldSpec, options: WorldOptions, pose: tuple[float, ...] = ()) -> EpisodeSchema:
    return EpisodeSchema(
        fps=facts.fps,
        cameras=dict.fromkeys((facts.camera, *facts.more_cameras), (facts.height, facts.width)),
        state_names=facts.state_names,
        action_names=facts.action_names + (pose_names(pose) if pose else ()),
        depth=(facts.camera,) if options.depth else (),
    )


def _episodes(
    world: World | VectorWorld, seeds: range, frames: int, pose: tuple[float, ...]
) -> Iterator[tuple[Episode, EpisodeRecord]]:
    if isinstance(world, VectorWorld):
        for first in range(0, len(seeds), world.num_envs):
            yield from _vector_episodes(world, seeds[first : first + world.num_envs], frames, pose)
    else:
        for seed in seeds:
            yield _one_episode(world, seed, frames, pose)


def _one_episode(world: World, seed: int, frames: int, pose: tuple[float, ...]) -> tuple[Episode, EpisodeRecord]:
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
    rows = {key: np.stack([o[key] for o in seen]) for key in seen[0]}
    episode = _pack(world.facts, rows, np.stack(actions), observation["state"], pose)
    return episode, EpisodeRecord(seed, len(actions), ended, success)


def _vector_episodes(
    world: VectorWorld, seeds: Sequence[int], frames: int, pose: tuple[float, ...]
) -> Iterator[tuple[Episode, EpisodeRecord]]:
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
        episode = _pack(world.facts, rows, np.stack([a[row] for a in actions]), observation["state"][row], pose)
        yield episode, EpisodeRecord(seed, frames, False, None)


def _pack(
    facts: WorldSpec,
    seen: Observation,
    actions: NDArray[np.float32],
    last: NDArray[np.floating],
    pose: tuple[float, ...],
) -> Episode:
    """last: the state [S] that the last action led to."""
    if pose:
        after = np.concatenate((seen["state"][1:], last[None]))
        actions = with_pose(actions, after, facts.state_names, pose)
    return Episode(
        task=facts.task,
        video={
            facts.camera: seen["image"].astype(np.uint8, copy=False),
            **{camera: seen[f"image.{camera}"].astype(np.uint8, copy=False) for camera in facts.more_cameras},
        },
        state=seen["state"].astype(np.float32, copy=False),
        action=actions,
        depth={facts.camera: seen["depth"].astype(np.float32, copy=False)} if "depth" in seen else {},
    )
