"""Rates and percentiles of the newest chunks, for the overlay."""

import threading
from collections import deque

RECENT = 1024  # chunks
STAGES = ("sample", "remember", "decode", "encode", "send")


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p95, p99 (nearest rank) and n of a sample; zeros for an empty one."""
    ordered, n = sorted(values), len(values)
    ranks = {f"p{q}": ordered[max(0, -(-q * n // 100) - 1)] if n else 0.0 for q in (50, 95, 99)}
    return ranks | {"n": n}


class Meter:
    """One session's numbers. Times go in as seconds and come out as milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latency: deque[float] = deque(maxlen=RECENT)
        self._stages = {name: deque[float](maxlen=64) for name in STAGES}
        self._made: deque[tuple[float, int]] = deque(maxlen=256)  # when, how many pictures

    def chunk(self, now: float, pictures: int, latency: float, stages: dict[str, float]) -> None:
        """A chunk is ready to be sent."""
        with self._lock:
            self._latency.append(latency)
            self._made.append((now, pictures))
            for name, seconds in stages.items():
                self._stages[name].append(seconds)

    def sent(self, seconds: float) -> None:
        """A picture has left, `seconds` after it was queued."""
        with self._lock:
            self._stages["send"].append(seconds)

    def rate(self, now: float, window: float = 2.0) -> float:
        """Pictures per second over the last `window` seconds."""
        with self._lock:
            recent = [(when, count) for when, count in self._made if now - when <= window]
        if len(recent) < 2:
            return 0.0
        span = recent[-1][0] - recent[0][0]  # the first chunk starts the clock, the others are counted
        return sum(count for _, count in recent[1:]) / span if span > 0 else 0.0

    def latency(self) -> dict[str, float]:
        """p50, p95 and p99 of the chunk latency in milliseconds, and n."""
        with self._lock:
            values = [1e3 * v for v in self._latency]
        return {name: round(value, 2) for name, value in percentiles(values).items()}

    def stages(self) -> dict[str, float]:
        """Median milliseconds of every stage."""
        with self._lock:
            return {name: round(percentiles([1e3 * v for v in kept])["p50"], 2) for name, kept in self._stages.items()}
