"""A robot's loop around a served policy: it never waits, and never carries out an action that is too old.

    with connect("ws://127.0.0.1:8000", prompt="reach the goal") as client:
        while running:
            command = client.act(robot.observe())  # once per control step
            if command.action is not None:
                robot.move_to(command.action)

While a chunk is carried out the next one is asked for; the request holds what is planned from this moment on and how
many steps the answer is expected to take, so that the server can continue it (real-time chunking, 2506.07339; see
`planning`): that many steps are carried out as planned even if the answer is early. Time is counted in control steps,
that is in calls of `act`: but for `finish`, between trials, there is no clock in here.

Letters: K actions of a chunk, A numbers of an action.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.policies.serving.learning import Learning
from worldmodel.policies.serving.link import Backoff, Link, PolicyLink, Reply

Action = NDArray[np.float32]
Hold = Callable[[Mapping[str, Any], Action | None], Action | None]
"""From an observation and the last action that was carried out to the action that holds the robot where it is."""
RECENT = 10  # answers whose delay says what the next one may take


def repeat_last(observation: Mapping[str, Any], last: Action | None) -> Action | None:
    """Holds a robot whose actions are absolute targets; None, do nothing, before the first one."""
    return last


@dataclass(frozen=True, slots=True)
class Command:
    """What the robot does in a control step.

    action: [A] in its units; None: nothing, it has not been told to go anywhere yet. state: `policy` if the action was
    planned; `hold` if there is none that may be carried out, `stopped` after `stop`: the action then holds the robot.
    age: steps since the observation that the action was planned from, None for a hold. why: of a hold, in one line.
    """

    action: Action | None
    state: Literal["policy", "hold", "stopped"]
    age: int | None = None
    why: str = ""


@dataclass(slots=True)
class Counts:
    """What has happened since the beginning."""

    chunks: int = 0  # that were taken over
    stale: int = 0  # that came when all their actions were in the past, or the robot had been stopped meanwhile
    late: int = 0  # that took more steps than expected
    failed: int = 0  # requests without a chunk
    held: int = 0  # steps


@dataclass(frozen=True, slots=True)
class _Plan:
    """actions: [n, A], one for each moment from `first` on. born: [n] the moments of their observations."""

    first: int
    actions: Action
    born: NDArray[np.int64]
    newest: int  # the moment of the newest observation in it

    def after(self, moment: int) -> "_Plan":
        """What is planned from a moment on."""
        done = max(0, moment - self.first)
        return replace(self, first=moment, actions=self.actions[done:], born=self.born[done:])


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request under way."""

    moment: int
    expected: int  # steps that the answer may take
    fixed: int  # of the actions planned then, as the server was told
    turn: int  # of the robot, which each stop and reset ends
    seen: Mapping[str, Any]  # the observation


class RobotClient:
    """An action for every control step, from a policy that is asked in the background. Use it as a context manager.

    Not for several threads, but for `stop`, which may come from any.
    """

    def __init__(
        self,
        link: Link,
        *,
        prompt: str | None = None,
        execute: int | None = None,
        delay: int = 1,
        max_age: int | None = None,
        hold: Hold = repeat_last,
        seed: int = 0,
        way: Literal["sum", "mean"] = "sum",
    ) -> None:
        """prompt: the instruction, sent with every observation that has none. execute: steps of a chunk until the next
        is asked for (the policy's own number if None). delay: steps that the first answers are expected to take; later
        the longest of the last ten is. max_age: the watchdog; an action planned from an observation more than so many
        steps ago is not carried out (None: K - 1, a whole chunk). hold: makes the robot stay where it is. seed: of the
        policy's noise. way: how the tokens of failed trials are put together (`finish`). Raises UserError for numbers
        out of range, and a server that does not say what it serves.
        """
        shape = link.metadata.get("actions", {}).get("shape")
        if not isinstance(shape, list) or len(shape) != 2:
            raise UserError("the server does not say the shape of its actions: a robot client needs a server of ours")
        self._chunk, self._width = shape
        self._execute = link.metadata.get("execute", self._chunk) if execute is None else execute
        self._max_age = self._chunk - 1 if max_age is None else max_age
        for name, value, least in (("execute", self._execute, 1), ("delay", delay, 0), ("max_age", self._max_age, 0)):
            if not least <= value <= self._chunk:
                raise UserError(f"{name} must be in [{least}, {self._chunk}], the policy's chunk, not {value}")
        self._link, self._hold, self._seed, self._prompt = link, hold, seed, prompt
        self._continues = link.metadata.get("chunking", "naive") != "naive"  # else it makes nothing of what is planned
        self._delays = deque([delay], maxlen=RECENT)
        self._plan: _Plan | None = None
        self._asked: _Asked | None = None
        self._last: Action | None = None
        self._moment, self._turn, self._why = 0, 0, "no chunk has come yet"
        self._stopped = threading.Event()
        self._learning = Learning(link.metadata.get("context"), way)
        self.counts = Counts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the server said on connecting: observation keys, actions, fps."""
        return self._link.metadata

    @property
    def delay(self) -> int:
        """Steps that the next answer is expected to take."""
        return max(self._delays)

    def act(self, observation: Mapping[str, Any]) -> Command:
        """The command of this control step, at once. observation: keys and arrays as the server's metadata says."""
        moment = self._moment
        self._moment += 1
        self._take_over(moment)
        if not self._stopped.is_set():
            self._ask(observation, moment)
        command = self._command(observation, moment)
        self._last = command.action
        if self._asked is not None and self._asked.moment == moment:
            self._learning.keep(self._asked.seen, command.action)
        self.counts.held += command.state != "policy"
        return command

    def stop(self) -> None:
        """From the next step on the robot holds, and nothing that was planned is carried out, until `reset`."""
        self._stopped.set()

    def reset(self, prompt: str | None = None) -> None:
        """A new episode: the plan is forgotten and the robot goes on. prompt: a new instruction, if one is given."""
        self._prompt = self._prompt if prompt is None else prompt
        self._plan, self._moment, self._why = None, 0, "no chunk has come yet"
        self._turn += 1
        self._learning.begin()
        self._stopped.clear()

    @property
    def tokens(self) -> int:
        """How many failed trials correct the policy now."""
        return len(self._learning.tokens)

    def finish(self, success: bool, timeout: float = 30.0) -> None:
        """The trial is over and the robot stands, until `reset`. What a failed one shows corrects the policy from then
        on. Waits for the server, at most `timeout` seconds.

        Raises UserError if the server has no context encoder, or refuses the trial; ConnectionError if none answers.
        """
        self.stop()
        if success:
            self._learning.begin()
            return
        request = self._learning.trial()
        reply = self._waited(request, time.monotonic() + timeout)
        if reply.token is None:
            raise UserError(f"this trial has taught nothing: {reply.why or 'the server sent no token'}")
        self._learning.tokens.append(reply.token)
        self._learning.begin()

    def forget(self) -> None:
        """Another robot, or one that was repaired: nothing is known of it."""
        self._learning.forget()

    def _waited(self, request: Mapping[str, Any], end: float) -> Reply:
        """The reply to a request that is made as soon as the last one is answered."""
        asked = False
        while time.monotonic() < end:
            if self._link.trouble:
                raise ConnectionError(self._link.trouble)
            if (reply := self._link.reply()) is not None:
                if asked:
                    return reply
                self._asked = None  # of the trial that is over
            if not asked and self._link.ready:
                self._link.ask(request)
                asked = True
            time.sleep(0.002)
        raise ConnectionError("the policy server has not answered in time")

    def close(self) -> None:
        """Leave the server."""
        self._link.close()

    def _take_over(self, moment: int) -> None:
        """A reply that has come becomes the plan, but for what it comes too late for."""
        if self._asked is None or (reply := self._link.reply()) is None:
            return
        asked, self._asked = self._asked, None
        if asked.turn != self._turn or self._stopped.is_set():
            self.counts.stale += 1
            return
        if (wrong := self._wrong(reply)) is not None:
            self.counts.failed += 1
            self._why = wrong
            return
        assert reply.actions is not None
        taken = moment - asked.moment
        self._delays.append(min(taken, self._chunk))
        if taken >= self._chunk:
            self.counts.stale += 1
            self._why = f"the last chunk took {taken} steps, longer than it lasts"
            return
        self.counts.late += taken > asked.expected
        self.counts.chunks += 1
        self._why = ""
        made = _Plan(asked.moment, reply.actions, np.full(self._chunk, asked.moment), asked.moment)
        self._plan = _joined(self._plan, made, moment, asked.moment + asked.fixed)

    def _wrong(self, reply: Reply) -> str | None:
        if reply.actions is None:
            return reply.why
        if reply.actions.shape != (self._chunk, self._width):
            return f"the server sent actions of shape {reply.actions.shape}, not {(self._chunk, self._width)}"
        return None

    def _ask(self, observation: Mapping[str, Any], moment: int) -> None:
        """Ask for the next chunk when enough of this one is done, or so much that the next would come too late."""
        done = self._chunk if self._plan is None else moment - self._plan.newest
        if self._asked is not None or done < max(1, min(self._execute, self._chunk - self.delay)):
            return
        if not self._link.ready:
            return
        copied = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in observation.items()}
        request: dict[str, Any] = {"seed": self._seed, "step": moment, **copied}  # it is sent while the robot goes on
        if self._prompt is not None and "prompt" not in request:
            request["prompt"] = self._prompt
        planned = None if self._plan is None else self._plan.after(moment)
        fixed = 0
        if self._continues and planned is not None and len(planned.actions):
            fixed = min(self.delay, len(planned.actions))
            request |= {"committed": planned.actions, "delay": fixed}
        if (token := self._learning.token) is not None:
            request["token"] = token
        self._link.ask(request)
        self._asked = _Asked(moment, self.delay, fixed, self._turn, copied)

    def _command(self, observation: Mapping[str, Any], moment: int) -> Command:
        if self._stopped.is_set():
            return Command(self._hold(observation, self._last), "stopped", why="stop was called; reset goes on")
        place = None if self._plan is None else moment - self._plan.first
        if self._plan is not None and place is not None and place < len(self._plan.actions):
            age = moment - int(self._plan.born[place])
            if age <= self._max_age:
                return Command(self._plan.actions[place], "policy", age)
            why = f"the newest action is {age} steps old, the limit is {self._max_age}"
        elif self._plan is not None:
            why = f"the plan has ended {moment - self._plan.first - len(self._plan.actions) + 1} steps ago"
        else:
            why = ""
        reasons = filter(None, (why, self._link.trouble or self._why))
        return Command(self._hold(observation, self._last), "hold", why="; ".join(reasons))


def _joined(old: _Plan | None, new: _Plan, moment: int, committed: int) -> _Plan:
    """The new plan from this moment on, but up to `committed` still the old one, which the new one continues."""
    new = new.after(moment)
    if old is None or committed <= moment:
        return new
    kept = old.after(moment)
    count = min(committed - moment, len(kept.actions))
    return replace(
        new,
        actions=np.concatenate((kept.actions[:count], new.actions[count:])),
        born=np.concatenate((kept.born[:count], new.born[count:])),
    )


def connect(
    address: str,
    token: str | None = None,
    *,
    prompt: str | None = None,
    execute: int | None = None,
    delay: int = 1,
    max_age: int | None = None,
    hold: Hold = repeat_last,
    seed: int = 0,
    timeout: float = 10.0,
    backoff: Backoff | None = None,
    way: Literal["sum", "mean"] = "sum",
) -> RobotClient:
    """A robot client of the policy at an address (see `PolicyClient`, `RobotClient`, `Backoff`).

    Raises UserError if the server refuses or the numbers do not fit its policy, ConnectionError if nobody answers.
    """
    link = PolicyLink(address, token, timeout, backoff)
    try:
        return RobotClient(
            link, prompt=prompt, execute=execute, delay=delay, max_age=max_age, hold=hold, seed=seed, way=way
        )
    except UserError:
        link.close()
        raise
