"""Statistics of success: intervals of rates, paired comparison of two policies, and when a comparison may stop early.

Whether an episode succeeds is a yes or no, so intervals and tests are those of counts: exact, with no normal
approximation of a handful of failures.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


def wilson(successes: int, episodes: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a success rate (Wilson, 1927). ValueError without episodes."""
    if not 0 <= successes <= episodes or episodes < 1:
        raise ValueError(f"no interval of {successes} successes in {episodes} episodes")
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate, square = successes / episodes, z * z / episodes
    centre = (rate + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(rate * (1 - rate) / episodes + square / (4 * episodes))
    low = 0.0 if successes == 0 else centre - half  # exactly, whatever rounding says
    return max(0.0, low), 1.0 if successes == episodes else min(1.0, centre + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value that two policies are equally good, from the pairs in which only one succeeded.

    Among these, each side is as likely under equality: a binomial test at 1/2 (McNemar, 1947, in its exact form).
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number by Holm's step-down procedure (Holm, 1979), in the given order."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def evidence(only_first: int, only_second: int) -> float:
    """Evidence against equality that may be looked at after every pair: an e-value.

    The likelihood ratio of the discordant pairs, with the first policy's share of them uniform in [0, 1], against a
    share of 1/2: 2^n B(a + 1, b + 1). Under equality its mean is 1 at every stopping time, so by Ville's inequality the
    chance that it ever reaches 1 / alpha is at most alpha (Howard et al., 2102.06476; Turner et al., 2106.02693).
    """
    n = only_first + only_second
    log = n * math.log(2) + math.lgamma(only_first + 1) + math.lgamma(only_second + 1) - math.lgamma(n + 2)
    return math.exp(log)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two policies on the same cases."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> "Paired":
        """From the successes of both, case by case."""
        pairs = list(zip(first, second, strict=True))
        return cls(pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True)),
                   pairs.count((False, False)))  # fmt: skip

    @property
    def pairs(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Success rate of the first less that of the second."""
        return (self.only_first - self.only_second) / self.pairs

    @property
    def p_value(self) -> float:
        return mcnemar(self.only_first, self.only_second)


def decided(first: Sequence[bool], second: Sequence[bool], alpha: float) -> int | None:
    """After how many pairs the comparison could stop: the first number at which the evidence reaches 1 / alpha."""
    a = b = 0
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        a, b = a + (one and not other), b + (other and not one)
        if evidence(a, b) >= 1 / alpha:
            return number
    return None
