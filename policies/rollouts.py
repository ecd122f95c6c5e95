"""The episodes of an evaluation as a LeRobotDataset v3: what a policy did, for training, judges and lerobot's tools.

Frames, state, action, task, rate and names are those of demonstrations; row i is what was seen before step i, and its
command. Beside them, in every row:

next.reward     float32  of the step                            next.done       bool  the episode's last row
next.success    bool     whether the step solved the task       success         bool  whether the episode did
policy_version  string   fingerprint of the weights             shift_id        string  of the hardware, "nominal": none
source          string   "real": a robot or its simulator; "generated": a world model
intervention    bool     whether a person or a script acted instead of the policy
segment_label   string   what a judge says of the row; "": none has

Text is lerobot's type "string": it has no statistics, and a reader gets it as str. meta/collection.json holds the rows
of `episodes.Row`, so that an evaluation goes on where it was broken off.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from worldmodel.datasets.interrupt import HeldSignals, Stopped
from worldmodel.datasets.lerobot import RECORD, LeRobotRecordings
from worldmodel.datasets.lerobot_groups import is_untouched, newest
from worldmodel.datasets.lerobot_writer import Episode, EpisodeSchema, EpisodeWriter
from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.policies.episodes import Case, Evaluated, Robots, Row, Settings, record_cases
from worldmodel.policies.observation import Interface
from worldmodel.policies.policy import AnyPolicy
from worldmodel.policies.robot import HandRobot
from worldmodel.policies.steps import Steps
from worldmodel.progress import progress_bar
from worldmodel.serial import from_json, read_json, to_json, write_json

COLUMNS = {
    "next.reward": "float32",
    "next.done": "bool",
    "next.success": "bool",
    "success": "bool",
    "policy_version": "string",
    "source": "string",
    "intervention": "bool",
    "segment_label": "string",
    "shift_id": "string",
}
REAL, GENERATED = "real", "generated"  # of the column `source`


def evaluate_and_save(
    policy: AnyPolicy,
    todo: Sequence[Case],
    settings: Settings,
    robots: Robots,
    folder: Path,
    filmed: int = 0,
    quiet: bool = False,
) -> Evaluated:
    """As `episodes.evaluate`, with all episodes in `folder`, in the order of the cases, whatever runs in parallel.

    SIGINT, SIGTERM and errors finalise the folder with the episodes that are over; a process that is killed loses its
    last group of episodes (`lerobot_writer.GROUP_FRAMES`). The same call goes on after those that are there, also with
    more cases, and its result is that of all of them (`seconds` too); films of episodes from before are read from
    their videos.

    Raises Stopped for a signal, with a note of what is saved, and UserError for a folder that holds anything else:
    episodes of another policy, of other settings (`parallel` aside) or of other cases; and for a horizon of 1.
    """
    if settings.horizon < 2:
        raise UserError("horizon: episodes that are saved need at least 2 steps")
    asked = _asked(policy, settings)
    _recorded(folder, asked, todo)  # what is wrong with the folder is said before the simulator starts
    schema = _schema(policy.interface, robots.get(todo[0].task, 0))
    rows: list[Row] = []
    began, before = time.perf_counter(), 0.0
    goes_on = False

    def write_record(group: Path, count: int) -> None:
        made = {"wanted": len(todo), "seconds": before + time.perf_counter() - began}
        episodes = {"episodes": [row.to_json() for row in rows[:count]]}
        write_json(asked | {"worldmodel": version("worldmodel")} | made | episodes, group / RECORD)

    writer = EpisodeWriter(folder, schema, resume=True, beside=write_record)
    films: list[tuple[Row, list[NDArray[np.uint8]]]] = []
    try:
        with HeldSignals() as signals, writer:
            known, before = _recorded(folder, asked, todo)
            if len(known) != writer.episodes:
                raise UserError(f"{folder / RECORD}: {len(known)} episodes, but the dataset has {writer.episodes}")
            rows += known
            films += _films(folder, rows[:filmed], policy)
            goes_on = True
            missing = record_cases(policy, todo[len(rows) :], settings, robots, len(rows))
            with progress_bar(str(folder), len(todo), len(rows), "episodes", shown=not quiet) as advance:
                for row, trial, steps in signals.between(missing):
                    rows.append(row)
                    writer.write(_episode(row, steps, asked["policy_version"], policy.interface.cameras))
                    if len(films) < filmed:
                        films.append((row, trial.film))
                    advance(1)
    except (Exception, Stopped) as error:
        kept = f"{writer.saved} of {len(todo)} episodes are saved in {folder}: the same command goes on after them"
        if goes_on:
            error.add_note(kept if writer.saved else "no episode was saved")
        raise
    return Evaluated(tuple(rows), tuple(films), before + time.perf_counter() - began)


def version_of(policy: AnyPolicy) -> str:
    """The fingerprint of a policy's weights, ours or lerobot's."""
    model: Any = policy.model
    return fingerprint(model if isinstance(model, nn.Module) else model.policy)


def _asked(policy: AnyPolicy, settings: Settings) -> dict[str, Any]:
    """What the rows of a case depend on."""
    chosen = {name: value for name, value in asdict(settings).items() if name != "parallel"}
    return {
        "command": "evaluate policy",
        "policy_version": version_of(policy),
        "acting": to_json(policy.acting),
        **chosen,
    }


def _recorded(folder: Path, asked: dict[str, Any], todo: Sequence[Case]) -> tuple[list[Row], float]:
    """The rows that are there and the seconds that they took; a UserError unless they are the first of what is asked
    for."""
    if not folder.exists() or is_untouched(folder):
        return [], 0.0
    path = newest(folder, RECORD)
    record: Any = read_json(path) if path.is_file() else None
    if not isinstance(record, dict) or record.get("command") != asked["command"]:
        raise UserError(f"{folder} exists already, and no evaluation was saved in it: give a new folder")
    for name, value in asked.items():
        if record.get(name) != value:
            raise UserError(
                f"{folder} exists already, with the {name} {record.get(name)}, not {value}: give a new folder"
            )
    found, seconds = record.get("episodes"), record.get("seconds")
    if not isinstance(found, list) or not isinstance(seconds, float):
        raise UserError(f"{path}: no list of 'episodes' or no 'seconds': {folder} cannot be added to")
    if len(found) > len(todo):
        raise UserError(f"{folder} exists already, with {len(found)} episodes, not {len(todo)}: give a new folder")
    rows = [from_json(item, Row, f"{path}: episodes[{index}]") for index, item in enumerate(found)]
    for index, (row, case) in enumerate(zip(rows, todo, strict=False)):
        if (known := Case(row.task, row.seed, row.shift)) != case:
            raise UserError(f"{path}: episodes[{index}] is {_named(known)}, not {_named(case)}: give a new folder")
    return rows, seconds


def _named(case: Case) -> str:
    return f"{case.task} with the seed {case.seed} under {case.shift}"


def _schema(interface: Interface, robot: HandRobot) -> EpisodeSchema:
    """As demonstrations on this robot have it, with what the policy sees."""
    return EpisodeSchema(
        fps=robot.facts.fps,
        cameras=dict.fromkeys(interface.cameras, interface.size),
        state_names=robot.facts.state_names,
        action_names=robot.facts.action_names,
        columns=COLUMNS,
    )


def _episode(row: Row, steps: Steps, policy_version: str, cameras: tuple[str, ...]) -> Episode:
    length = len(steps.action)
    return Episode(
        task=steps.task,
        video={camera: steps.image[:, number] for number, camera in enumerate(cameras)},
        state=steps.state,
        action=steps.action,
        depth={},
        columns={
            "next.reward": steps.reward,
            "next.done": np.arange(length) == length - 1,
            "next.success": steps.success,
            "success": np.full(length, row.success),
            "policy_version": np.full(length, policy_version),
            "source": np.full(length, REAL),
            "intervention": np.zeros(length, np.bool_),
            "segment_label": np.full(length, ""),
            "shift_id": np.full(length, row.shift),
        },
    )


def _films(folder: Path, rows: Sequence[Row], policy: AnyPolicy) -> list[tuple[Row, list[NDArray[np.uint8]]]]:
    """Films of the first episodes from their videos: one picture of the first camera per observation."""
    if not rows:
        return []
    data, camera = LeRobotRecordings.open(folder), policy.interface.cameras[0]
    every = policy.acting.execute
    return [(row, list(islice(data.frames(number, camera), 0, None, every))) for number, row in enumerate(rows)]
