"""Episodes of a policy on simulated robots: a fixed list of cases, one row each, whatever runs beside it.

A case is (task, seed, shift). Its row is a function of the case, the policy and the settings alone: the robot's places
come from the seed, the sampler's noise from the run's seed and the case's number in the list, and observations go
through the policy one by one, so that the same numbers are added in the same order whether 1 or 16 robots run. A robot
that has finished stands still until all of its group have: no case is left out because others were faster. With
`together` the observations of a group share a batch, which is faster and agrees only to rounding.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel import noise
from worldmodel.errors import UserError
from worldmodel.policies.observation import Interface, Observation
from worldmodel.policies.planning import Chunking, Committed, ensembled, plan
from worldmodel.policies.policy import AnyPolicy
from worldmodel.policies.robot import ACTIONS, HandRobot
from worldmodel.policies.shifts import parse_shift
from worldmodel.policies.steps import StepLog, Steps

UNSEEN = 1_000_000  # the first seed of evaluations: recordings and trials begin far below
SEEDS = 2**31  # of a simulator


@dataclass(frozen=True, slots=True)
class Case:
    """One episode to run."""

    task: str
    seed: int
    shift: str = "nominal"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a case. score: the best reward of the episode, in [0, 1]; in some tasks it stays below 1 where
    they are solved. steps: until success, or all. border_jerk: root mean square of the third differences of the
    commanded targets across the borders of chunks, in metres; None where there was no border."""

    task: str
    seed: int
    shift: str
    success: bool
    score: float
    steps: int
    border_jerk: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """horizon: control steps of an episode. parallel: robots that run side by side. together: see the module. delay:
    control steps that making a chunk takes, during which the robot carries out the last one; chunking: how chunks join.
    seed: of the sampler's noise."""

    horizon: int = 200
    parallel: int = 1
    together: bool = False
    delay: int = 0
    chunking: Chunking = "naive"
    seed: int = 0

    def check(self, policy: AnyPolicy) -> None:
        """UserError for numbers out of range, and for what this policy cannot do."""
        execute, chunk = policy.acting.execute, policy.model.chunk
        for name, value, least, most in (
            ("horizon", self.horizon, 1, 500),
            ("parallel", self.parallel, 1, 64),
            ("delay", self.delay, 0, min(execute, chunk - execute)),
        ):
            if not least <= value <= most:
                more = f" (the policy executes {execute} of {chunk} actions)" if name == "delay" else ""
                raise UserError(f"{name} must be in [{least}, {most}]{more}, not {value}")
        if self.delay and self.chunking not in policy.chunkings:
            raise UserError(f"chunking: this policy can join its chunks by {', '.join(policy.chunkings)} only")
        if self.delay and policy.acting.ensemble is not None:
            raise UserError("delay: chunks that are made while moving cannot be ensembled; set acting.ensemble to None")


def cases(tasks: Sequence[str], shifts: Sequence[str], episodes: int, first_seed: int) -> tuple[Case, ...]:
    """`episodes` seeds of every task and shift, the same seeds for all; UserErrors for none of them, or bad shifts."""
    if not 1 <= episodes <= 1_000_000:
        raise UserError(f"an evaluation needs 1 to 1,000,000 episodes, not {episodes}")
    if not 0 <= first_seed <= SEEDS - episodes:
        raise UserError(f"seeds from {first_seed} on must be in [0, 2**31)")
    names = [parse_shift(shift).name for shift in shifts]
    for what, named in (("task", tasks), ("shift", names)):
        if not named:
            raise UserError(f"an evaluation needs a {what} or more")
        if twice := sorted({name for name in named if list(named).count(name) > 1}):
            raise UserError(f"an evaluation counts every {what} once, {', '.join(twice)} is named twice")
    return tuple(Case(task, first_seed + n, shift) for n in range(episodes) for task in tasks for shift in names)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a policy saw and did in an episode, at its M observations."""

    image: NDArray[np.uint8]  # [M, N, 3, H, W]
    state: NDArray[np.float32]  # [M, S]
    action: NDArray[np.float32]  # [M, A] the first action that was carried out after it

    @property
    def film(self) -> list[NDArray[np.uint8]]:
        """What the first camera saw, [H, W, 3] each."""
        return list(self.image[:, 0].transpose(0, 2, 3, 1))


@dataclass(slots=True)
class _Lane:
    """One robot with the case that it runs."""

    case: Case
    robot: HandRobot
    words: list[int]
    seed: int  # of the sampler's noise
    state: NDArray[np.float32]
    recent: deque[tuple[NDArray[np.uint8], NDArray[np.float32]]]  # pictures and states that the policy looks at
    last: Tensor | None = None  # normalised, the chunk that is being carried out
    chunks: list[tuple[int, Tensor]] = field(default_factory=list)  # for ensembling, in the robot's units
    targets: list[NDArray[np.float32]] = field(default_factory=list)  # that were commanded
    borders: list[int] = field(default_factory=list)  # moments at which another chunk took over
    score: float = 0.0
    success: bool = False
    over: bool = False
    context: Tensor | None = None  # [D] what is known of this robot
    seen: list[NDArray[np.uint8]] = field(default_factory=list)  # pictures [N, 3, H, W] at every observation,
    read: list[NDArray[np.float32]] = field(default_factory=list)  # the state then [S],
    told: list[NDArray[np.float32]] = field(default_factory=list)  # and the action [A] that was carried out first
    log: StepLog | None = None  # of every control step, where that is asked for


@dataclass(slots=True)
class Robots:
    """Robots for policies of one interface, reused from case to case: as many of a task as run at once.

    To be closed.
    """

    interface: Interface
    opens: Callable[[str, Interface], HandRobot]
    opened: dict[tuple[str, int], HandRobot] = field(default_factory=dict)

    def get(self, task: str, number: int) -> HandRobot:
        if (task, number) not in self.opened:
            self.opened[task, number] = self.opens(task, self.interface)
        return self.opened[task, number]

    def close(self) -> None:
        for robot in self.opened.values():
            robot.close()
        self.opened.clear()


def open_for(task: str, interface: Interface) -> HandRobot:
    """The robot that a policy of this interface acts on. UserErrors for what is missing and what does not fit."""
    return HandRobot(check_interface(task, interface), cameras=interface.cameras, size=interface.size[0])


def check_interface(task: str, interface: Interface) -> str:
    """The name of a task whose robot a policy of this interface can act on. UserErrors as those of `open_for`."""
    from worldmodel.datasets.worlds.metaworld import CAMERAS, FPS, STATES, check_task

    name, _ = check_task(task, None, interface.size[0])
    wrong = [f"no camera '{camera}': there are {', '.join(CAMERAS)}" for camera in interface.cameras
             if camera not in CAMERAS]  # fmt: skip
    if interface.size[0] != interface.size[1]:
        wrong.append(f"the policy sees pictures of {interface.size}, this robot's are square")
    wrong += interface.misfits(STATES, ACTIONS, FPS)
    if wrong:
        raise UserError(f"robot/{name}: {'; '.join(wrong)}")
    return name


def run_cases(
    policy: AnyPolicy,
    todo: Sequence[Case],
    settings: Settings,
    robots: Robots,
    start: int = 0,
    contexts: Sequence[Tensor | None] | None = None,
) -> Iterator[tuple[Row, Trial]]:
    """The row of every case in order, and what was seen and done.

    start: place of the first case in the whole list, where `todo` is a part of it. contexts: of each case's robot, [D]
    as `Observation.context`; None where nothing is known.
    """
    for lane in _run(policy, todo, settings, robots, start, contexts, logged=False):
        yield _row(lane), _trial(lane)


def record_cases(
    policy: AnyPolicy, todo: Sequence[Case], settings: Settings, robots: Robots, start: int = 0
) -> Iterator[tuple[Row, Trial, Steps]]:
    """As `run_cases`, with every control step: the rows are the same. Pictures are drawn at every step, which takes
    longer, and those of an episode stay in memory until it is over, for each robot that runs. A robot done after
    one step holds its command for another, which is in the steps and not in the row: a video takes two frames."""
    for lane in _run(policy, todo, settings, robots, start, None, logged=True):
        assert lane.log is not None
        yield _row(lane), _trial(lane), lane.log.steps(lane.robot.facts.task)


def _run(
    policy: AnyPolicy,
    todo: Sequence[Case],
    settings: Settings,
    robots: Robots,
    start: int,
    contexts: Sequence[Tensor | None] | None,
    logged: bool,
) -> Iterator[_Lane]:
    """What every case has become, in order."""
    settings.check(policy)
    seeds = noise.row_seed(settings.seed, torch.arange(start, start + len(todo))).tolist()
    for first in range(0, len(todo), settings.parallel):
        group = todo[first : first + settings.parallel]
        lanes = list[_Lane]()
        for number, case in enumerate(group):
            robot = robots.get(case.task, sum(lane.case.task == case.task for lane in lanes))
            lanes.append(_begin(case, robot, policy, seeds[first + number]))
            lanes[-1].context = None if contexts is None else contexts[first + number]
            lanes[-1].log = StepLog() if logged else None
        for moment in range(0, settings.horizon, policy.acting.execute):
            running = [lane for lane in lanes if not lane.over]
            _plan(policy, running, moment, settings)
            for lane in running:
                _carry_out(policy, lane, moment, settings)
        yield from lanes


def _begin(case: Case, robot: HandRobot, policy: AnyPolicy, seed: int) -> _Lane:
    robot.become(parse_shift(case.shift))
    observation, _ = robot.reset(seed=case.seed)
    recent = deque[tuple[NDArray[np.uint8], NDArray[np.float32]]](maxlen=policy.history)
    return _Lane(case, robot, policy.interface.encode(robot.facts.task), seed, observation["state"], recent)


def _plan(policy: AnyPolicy, lanes: list[_Lane], moment: int, settings: Settings) -> None:
    """The next chunk of every lane: in one batch, or one after another, which is the same to the last bit always."""
    for group in [lanes] if settings.together and lanes else [[lane] for lane in lanes]:
        for lane in group:
            _look(policy, lane)
            lane.seen.append(lane.recent[-1][0])
            lane.read.append(lane.state)
        made = plan(
            policy.model,
            policy.acting.sampler,
            _observation(policy, group),
            torch.tensor([lane.seed for lane in group]),
            torch.full((len(group),), moment),
            settings.chunking,
            _committed(policy, group, settings),
        )
        for lane, chunk in zip(group, made, strict=True):
            if settings.delay and lane.last is not None:  # meanwhile the old chunk is carried out
                until = policy.acting.execute + settings.delay
                chunk = torch.cat((lane.last[policy.acting.execute : until], chunk[settings.delay :]))
            lane.last = chunk
            lane.borders.append(moment + settings.delay)
            if policy.acting.ensemble is not None:
                lane.chunks.append((moment, policy.model.in_units(chunk)))


def _look(policy: AnyPolicy, lane: _Lane) -> None:
    """Keep what the robot sees and reads now."""
    lane.recent.append((_pictures(policy, lane), lane.state))


def _pictures(policy: AnyPolicy, lane: _Lane) -> NDArray[np.uint8]:
    """What the policy's cameras see now, [N, 3, H, W]."""
    views = lane.robot.look()
    pictures = np.stack([views[camera] for camera in policy.interface.cameras])
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))


def _observation(policy: AnyPolicy, group: list[_Lane]) -> Observation:
    """What the robots see now, and before as far as the policy looks back."""
    words = torch.tensor([lane.words for lane in group])
    seen = None
    for moment in zip(*(lane.recent for lane in group), strict=True):  # they have all begun together
        seen = Observation(
            image=torch.from_numpy(np.stack([pictures for pictures, _ in moment])),
            state=torch.from_numpy(np.stack([state for _, state in moment])),
            words=words,
            length=policy.model.chunk,
            context=_contexts(group),
            past=seen,
        )
    assert seen is not None
    return seen


def _contexts(group: list[_Lane]) -> Tensor | None:
    """[B, D], or None where nothing is known of any; zeros change nothing."""
    known = next((lane.context for lane in group if lane.context is not None), None)
    if known is None:
        return None
    return torch.stack([torch.zeros_like(known) if lane.context is None else lane.context for lane in group])


def _committed(policy: AnyPolicy, group: list[_Lane], settings: Settings) -> Committed | None:
    if not settings.delay or any(lane.last is None for lane in group):
        return None
    last = torch.stack([lane.last for lane in group if lane.last is not None])
    planned = policy.model.chunk - policy.acting.execute
    held = torch.cat((last[:, policy.acting.execute :], last[:, -1:].expand(-1, policy.acting.execute, -1)), 1)
    return Committed(held, planned, settings.delay)


def _carry_out(policy: AnyPolicy, lane: _Lane, moment: int, settings: Settings) -> None:
    assert lane.last is not None
    chunk = policy.model.in_units(lane.last)
    for step in range(min(policy.acting.execute, settings.horizon - moment)):
        action = chunk[step]
        if policy.acting.ensemble is not None:
            action = ensembled(lane.chunks, moment + step, policy.acting.ensemble)
        command = action.numpy().astype(np.float32)
        lane.targets.append(command[:3])
        if step == 0:
            lane.told.append(command)
        if lane.log is not None:
            lane.log.see(lane.recent[-1][0] if step == 0 else _pictures(policy, lane), lane.state, command)
        observation, reward, ended, truncated, info = lane.robot.step(command)
        if lane.log is not None:
            lane.log.get(reward, bool(info["success"]))
        lane.state = observation["state"]
        lane.score = max(lane.score, reward)
        if info["success"]:
            lane.success = True
        if ended or truncated:
            lane.over = True
            if lane.log is not None and len(lane.targets) == 1:
                _hold(policy, lane, command)
            return
        if 0 < policy.acting.execute - 1 - step < policy.history:
            _look(policy, lane)


def _hold(policy: AnyPolicy, lane: _Lane, command: NDArray[np.float32]) -> None:
    assert lane.log is not None
    lane.log.see(_pictures(policy, lane), lane.state, command)
    _, reward, _, _, info = lane.robot.step(command)
    lane.log.get(reward, bool(info["success"]))


def _trial(lane: _Lane) -> Trial:
    return Trial(np.stack(lane.seen), np.stack(lane.read), np.stack(lane.told))


def _row(lane: _Lane) -> Row:
    targets = np.stack(lane.targets).astype(np.float64)
    jerk = np.diff(targets, 3, axis=0)  # entry i spans moments i to i + 3
    at = [i for border in lane.borders[1:] for i in range(border - 3, border) if 0 <= i < len(jerk)]
    border_jerk = float(np.sqrt((jerk[at] ** 2).sum(1).mean())) if at else None
    case = lane.case
    return Row(case.task, case.seed, case.shift, lane.success, lane.score, len(targets), border_jerk)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """All rows of an evaluation, films of its first cases, and how long it took."""

    rows: tuple[Row, ...]
    films: tuple[tuple[Row, list[NDArray[np.uint8]]], ...]
    seconds: float


def evaluate(
    policy: AnyPolicy,
    todo: Sequence[Case],
    settings: Settings,
    robots: Robots,
    filmed: int = 0,
    start: int = 0,
    told: Callable[[int], None] = lambda rows: None,
) -> Evaluated:
    """Run all cases. filmed: of how many, from the first on, to keep films. start: as of `run_cases`. told: after each
    row, how many are done."""
    rows: list[Row] = []
    films: list[tuple[Row, list[NDArray[np.uint8]]]] = []
    began = time.perf_counter()
    for row, trial in run_cases(policy, todo, settings, robots, start):
        rows.append(row)
        if len(films) < filmed:
            films.append((row, trial.film))
        told(len(rows))
    return Evaluated(tuple(rows), tuple(films), time.perf_counter() - began)
