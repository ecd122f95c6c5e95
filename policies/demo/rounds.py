"""The trials of one robot, in rounds: what the policy is told before each, and what has come of it.

A round begins with nothing known. The tokens of its failed trials, summed or averaged, correct the policy in the next
one, as in `recovery.adapt`; after `most` more trials another round begins, so that every place in a round is seen again
and again and has a success rate with an interval. Without correction every trial is a round of its own. Another shift
is another robot: what was known of the last one is forgotten.

Nothing in here knows a simulator or a page. One thread uses it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.policies.context_encoder import ensemble
from worldmodel.policies.episodes import Row, Trial
from worldmodel.policies.success import wilson

Way = Literal["sum", "mean"]
TRIALS = 6  # of a round after its first one, unless said otherwise
REMEMBERED = 60  # outcomes that are shown
ROBOTS = 32  # whose counts are kept
NOMINAL = "nominal"


@dataclass(frozen=True, slots=True)
class Condition:
    """What trials that are counted together have in common.

    after: trials of the same round before. way: how the tokens of failed ones were put together, None where there is
    no trial before.
    """

    shift: str
    after: int = 0
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class Count:
    successes: int = 0
    trials: int = 0

    def to_json(self) -> dict[str, Any]:
        """With rate and Wilson's 95 % interval, None where there is no trial."""
        known = self.trials > 0
        return {
            "successes": self.successes,
            "trials": self.trials,
            "rate": self.successes / self.trials if known else None,
            "interval": list(wilson(self.successes, self.trials)) if known else None,
        }


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trial to make. number: over all; round: which it belongs to; tokens: how many `token` was made of."""

    number: int
    round: int
    condition: Condition
    tokens: int
    token: Tensor | None  # [W]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt."""

    attempt: Attempt
    success: bool
    score: float
    steps: int

    def to_json(self) -> dict[str, Any]:
        attempt = self.attempt
        return {
            "number": attempt.number, "round": attempt.round, "shift": attempt.condition.shift,
            "after": attempt.condition.after, "tokens": attempt.tokens, "success": self.success,
            "score": round(self.score, 3), "steps": self.steps,
        }  # fmt: skip


class Rounds:
    """See the module. token_of: makes the token [W] of a trial; None: there is no context encoder."""

    def __init__(self, token_of: Callable[[Trial], Tensor] | None = None, most: int = TRIALS) -> None:
        self._token_of, self.most = token_of, most
        self.shift = NOMINAL
        self.correcting = False
        self.way: Way = "mean"
        self.round = 0
        self.outcomes: deque[Outcome] = deque(maxlen=REMEMBERED)
        self._number = 0
        self._place = 0  # of the next trial in the round
        self._tokens: list[Tensor] = []
        self._counts: dict[str, dict[Condition, Count]] = {NOMINAL: {}}

    @property
    def tokens(self) -> int:
        """How many failed trials of this round have been turned into tokens."""
        return len(self._tokens)

    def attempt(self) -> Attempt:
        """The next trial to make."""
        number, self._number = self._number, self._number + 1
        way = self.way if self._place else None
        token = ensemble(self._tokens, self.way) if self._tokens else None
        return Attempt(number, self.round, Condition(self.shift, self._place, way), len(self._tokens), token)

    def finish(self, attempt: Attempt, row: Row, trial: Trial) -> Outcome:
        """Count what came of an attempt; what it shows serves the next trial of its round, if that goes on."""
        made = Outcome(attempt, row.success, row.score, row.steps)
        counts = self._counts.setdefault(attempt.condition.shift, {})
        before = counts.get(attempt.condition, Count())
        counts[attempt.condition] = Count(before.successes + row.success, before.trials + 1)
        self.outcomes.append(made)
        if attempt.round == self.round:
            if self.correcting and self._token_of is not None and not row.success:
                self._tokens.append(self._token_of(trial))
            self._place += 1
            if not self.correcting or self._place > self.most:
                self.begin()
        return made

    def begin(self) -> None:
        """Begin another round: nothing is known of the robot."""
        self.round += 1
        self._place, self._tokens = 0, []

    def become(self, shift: str) -> bool:
        """Another robot. shift: its name as `Shift.name` gives it. False, and nothing happens, if it is the same."""
        if shift == self.shift:
            return False
        self.shift = shift
        self._counts[shift] = self._counts.pop(shift, {})  # the newest stands last
        others = [name for name in self._counts if name not in (NOMINAL, shift)]
        for name in others[: max(0, len(self._counts) - ROBOTS)]:
            del self._counts[name]
        self.begin()
        return True

    def correct(self, on: bool, way: Way) -> None:
        """Whether failed trials correct the policy from the next trial on, and how their tokens are put together.

        A round that is under way goes on when correction is switched on: its trial is the first. UserError as `check`.
        """
        self.check(on)
        if (self.correcting and not on) or (way != self.way and self._place):
            self.begin()
        self.correcting, self.way = on, way

    def check(self, on: bool) -> None:
        """UserError if correction is asked for and there is no context encoder. Any thread may ask."""
        if on and self._token_of is None:
            raise UserError("there is no context encoder that could correct the policy: start with --encoder FOLDER")

    def clear(self) -> None:
        """Forget all counts and outcomes, and begin another round."""
        self._counts = {NOMINAL: {}, self.shift: {}}
        self.outcomes.clear()
        self.begin()

    def count(self, condition: Condition) -> Count:
        return self._counts.get(condition.shift, {}).get(condition, Count())

    def table(self) -> list[tuple[str, Condition, Count]]:
        """What is counted of this robot, beside the robot as built: names, conditions and counts."""
        rows = [("as built", Condition(NOMINAL))]
        if self.shift != NOMINAL:
            rows.append(("broken", Condition(self.shift)))
        rows += [(f"after {n}", Condition(self.shift, n, self.way)) for n in range(1, self.most + 1)]
        return [(name, condition, self.count(condition)) for name, condition in rows]
