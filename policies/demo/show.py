"""The robot on show: one thread that owns simulator and policy, makes trial after trial, and tells whoever watches.

MuJoCo's contexts belong to the thread that made them, so everything of the robot happens here; wishes of the viewers
wait in a line that is looked at between two control steps. Pictures go into the viewers' outboxes, where slow ones lose
the oldest: nobody slows the robot. While nobody watches, it rests.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from worldmodel.errors import UserError, out_of_memory
from worldmodel.options import check_range
from worldmodel.policies.adaptation import Adaptation
from worldmodel.policies.demo.messages import Again, Break, Clear, Correct, Pause, Speed, Wish, write
from worldmodel.policies.demo.rounds import TRIALS, Attempt, Rounds
from worldmodel.policies.demo.shown import Opens, ShownRobot
from worldmodel.policies.episodes import SEEDS, Case, Robots, Settings, run_cases
from worldmodel.policies.policy import AnyPolicy, Policy
from worldmodel.serve.outbox import Outbox, Picture
from worldmodel.serve.pictures import encode
from worldmodel.serve.protocol import CLOSE_FAILED, Codec, FrameHeader, in_words

_log = logging.getLogger("worldmodel.policies.demo")
QUALITY = 88  # of JPEG
GAP = 1 / 15  # seconds between the end of one drawing and the beginning of the next, at least
STAY = 0.7  # seconds that the end of a trial is shown
WISHES = 64  # that may wait


class Full(Exception):
    """There is no room for one more viewer."""


class _Interrupted(Exception):
    """The trial under way is over without a result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """horizon: control steps of a trial. trials: of a round after its first one. seed: of the first trial's places and
    noise; later ones count on. viewers: at once, at most."""

    task: str
    horizon: int = 200
    trials: int = TRIALS
    seed: int = 0
    viewers: int = 8

    def check(self) -> None:
        """UserError for numbers out of range."""
        check_range(1, 500, horizon=self.horizon)
        check_range(1, 50, trials=self.trials)
        check_range(1, 1024, max_viewers=self.viewers)
        check_range(0, SEEDS - 1, seed=self.seed)


class Show:
    """See the module. Use it as a context manager: entering opens the robot, or raises what is wrong with it."""

    def __init__(
        self,
        policy: AnyPolicy,
        plan: Plan,
        adaptation: Adaptation | None = None,
        opens: Opens = ShownRobot,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """adaptation: None if there is no context encoder. opens: the robot of a task; called in the thread, like all
        its methods. on_failure: called in the thread if it dies."""
        self.policy, self._adaptation, self.plan, self._opens = policy, adaptation, plan, opens
        self.on_failure = on_failure
        self.failure: BaseException | None = None
        self._settings = Settings(horizon=self.plan.horizon, seed=self.plan.seed)
        self._rounds = Rounds(None if adaptation is None else self._token, self.plan.trials)
        self._changed = threading.Condition()
        self._wishes: deque[Wish] = deque()
        self._viewers: list[Outbox] = []
        self._running, self._paused, self._speed = True, False, 0.5
        self._attempt: Attempt | None = None
        self._robot: ShownRobot | None = None
        self._due = self._drawn = self._began = 0.0
        self._state = self._last = None  # the newest of each, for who comes later
        self._open = threading.Event()
        self._thread = threading.Thread(target=self._run, name="robot", daemon=True)

    def __enter__(self) -> "Show":
        self._thread.start()
        self._open.wait()
        if self.failure is not None:
            self._thread.join()
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- from the event loop -------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self.failure is None

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def welcome(self) -> dict[str, Any]:
        """What a viewer is told first."""
        return {
            "task": self.plan.task.replace("-", " "), "horizon": self.plan.horizon, "trials": self.plan.trials,
            "encoder": self._adaptation is not None, "fps": self.policy.interface.fps,
        }  # fmt: skip

    def join(self, viewer: Outbox) -> None:
        """Let somebody watch. Raises Full."""
        with self._changed:
            if len(self._viewers) >= self.plan.viewers:
                raise Full(f"{self.plan.viewers} pages show this robot already, which is all that this server takes")
            viewer.say(write("welcome", **self.welcome()))
            if self._state is not None:
                viewer.say(self._state, "state")
            if self._last is not None:
                viewer.put([self._last])
            self._viewers.append(viewer)
            self._changed.notify()
        if self.failure is not None:
            viewer.end(CLOSE_FAILED, "the robot has stopped", self._obituary)

    def leave(self, viewer: Outbox) -> None:
        with self._changed:
            if viewer in self._viewers:
                self._viewers.remove(viewer)
            self._changed.notify()

    def wish(self, wish: Wish) -> None:
        """Ask for something, which happens before the next control step. UserError for what cannot be."""
        if isinstance(wish, Correct):
            self._rounds.check(wish.on)
        with self._changed:
            if len(self._wishes) >= WISHES:
                raise UserError(f"{WISHES} wishes wait already: slower, please")
            self._wishes.append(wish)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the control step that it makes; it closes the robot. Nothing happens a second time."""
        with self._changed:
            self._running = False
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            torch.set_num_threads(1)  # a setting of this thread
            robots = Robots(self.policy.interface, lambda task, interface: self._opens(task, interface, self._told))
            with closing(robots):
                robots.get(self.plan.task, 0)
                self.policy.interface.encode(self.plan.task.replace("-", " "))
                self._settings.check(self.policy)
                self._began = time.perf_counter()
                self._tell()
                self._open.set()
                for attempt in self._attempts():
                    self._make(attempt, robots)
        except BaseException as error:  # noqa: BLE001 - `__enter__` raises it, or the server ends with it
            self.failure = error
            if self._open.is_set():
                _log.exception("the robot has stopped")
                for viewer in list(self._viewers):
                    viewer.end(CLOSE_FAILED, "the robot has stopped", self._obituary)
                self.on_failure()
        finally:
            self._open.set()

    @property
    def _obituary(self) -> str:
        why = "out of memory" if self.failure and out_of_memory(self.failure) else in_words(self.failure)
        return write("error", message=f"the robot has stopped: {why}", fatal=True)

    def _attempts(self) -> Iterator[Attempt]:
        while self._ready():
            self._attempt = self._rounds.attempt()
            self._due = time.perf_counter()
            self._tell()
            yield self._attempt

    def _ready(self) -> bool:
        """Wait until a trial may begin; False at the end."""
        while True:
            try:
                self._obey()
                return True
            except _Interrupted:  # there is no trial that a wish could end, so it has come in time
                if not self._running:
                    return False

    def _make(self, attempt: Attempt, robots: Robots) -> None:
        case = Case(self.plan.task, (self.plan.seed + attempt.number) % SEEDS, attempt.condition.shift)
        known = None
        if attempt.token is not None and self._adaptation is not None:
            known = self._adaptation.context(attempt.token)
        try:
            for row, trial in run_cases(self.policy, [case], self._settings, robots, attempt.number, [known]):
                assert self._robot is not None
                self._show(self._robot)
                self._rounds.finish(attempt, row, trial)
                self._attempt = None
                self._tell()
                self._rest(STAY if self._speed else 0.0)
        except _Interrupted:
            self._attempt = None

    def _token(self, trial: Any) -> torch.Tensor:
        assert self._adaptation is not None and isinstance(self.policy, Policy)
        return self._adaptation.token(self.policy, trial)

    def _told(self, robot: ShownRobot) -> None:
        """Between two control steps: obey, keep to the time, draw. Raises _Interrupted when the trial is over."""
        self._robot = robot
        self._obey()
        if self._speed and robot.moment:
            self._due = max(self._due + 1 / (self._speed * self.policy.interface.fps), time.perf_counter() - 0.1)
            self._rest(self._due - time.perf_counter())
        if robot.moment == 0 or time.perf_counter() - self._drawn >= GAP:
            self._show(robot)

    def _rest(self, seconds: float) -> None:
        """Wait, unless the end comes."""
        if seconds > 0:
            with self._changed:
                self._changed.wait_for(lambda: not self._running, seconds)

    def _obey(self) -> None:
        """Do what is wished for, and wait while the robot rests. Raises _Interrupted if the trial under way is over."""
        interrupted = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wishes or not self._running or self._acts)
                wishes, self._wishes = list(self._wishes), deque()
                ends, acts = not self._running, self._acts
            for wish in wishes:
                interrupted |= self._grant(wish)
            if interrupted:
                self._attempt = None  # no viewer reads of another robot beside the trial of the one before
            if wishes:
                self._tell()
            if ends or interrupted:
                raise _Interrupted
            if acts and not self._paused:
                return

    @property
    def _acts(self) -> bool:
        return bool(self._viewers) and not self._paused

    def _grant(self, wish: Wish) -> bool:
        """Whether it ends the trial under way."""
        match wish:
            case Break(shift=shift):
                return self._rounds.become(shift)
            case Correct(on=on, way=way):
                self._rounds.correct(on, way)
            case Pause(on=on):
                self._paused = on
            case Speed(times=times):
                self._speed, self._due = times, time.perf_counter()
            case Again():
                self._rounds.begin()
                return True
            case Clear():
                self._rounds.clear()
                return True
        return False

    def _show(self, robot: ShownRobot) -> None:
        began = time.perf_counter()
        picture = robot.picture()
        data = encode(picture, "jpeg", QUALITY)
        self._drawn = time.perf_counter()
        header = FrameHeader(
            codec=Codec.JPEG, flags=0, width=picture.shape[1], height=picture.shape[0],
            stream=self._attempt.number if self._attempt else 0, input=0, index=robot.moment,
            pts=int(1e6 * (self._drawn - self._began)), latency=int(1e6 * (self._drawn - began)), place=0, size=1,
        )  # fmt: skip
        made = Picture(header.pack() + data, header.pts, False, self._drawn)
        with self._changed:
            self._last = made
            for viewer in self._viewers:
                viewer.put([made])

    def _tell(self) -> None:
        """Tell all viewers how things are."""
        rounds, attempt = self._rounds, self._attempt
        trial = None
        if attempt is not None:
            condition = attempt.condition
            trial = {
                "number": attempt.number, "round": attempt.round, "shift": condition.shift, "after": condition.after,
                "tokens": attempt.tokens,
            }  # fmt: skip
        table = [{"name": name, "after": each.after, "shift": each.shift, **count.to_json()}
                 for name, each, count in rounds.table()]  # fmt: skip
        state = write(
            "state", shift=rounds.shift, correct=rounds.correcting, way=rounds.way, paused=self._paused,
            speed=self._speed, trial=trial, round=rounds.round, tokens=rounds.tokens, table=table,
            outcomes=[outcome.to_json() for outcome in rounds.outcomes],
        )  # fmt: skip
        with self._changed:
            self._state = state
            for viewer in self._viewers:
                viewer.say(state, "state")
