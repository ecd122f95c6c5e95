"""What the overlay shows of a stream: rates, latencies, and the time of every stage."""

import threading
from collections import deque
from typing import Any

from worldmodel.serve.meter import percentiles

STAGES = ("decode", "track", "crop", "generate", "paste", "mark", "encode")
RECENT = 256  # pictures, or chunks
WINDOW = 2.0  # seconds over which rates are taken


class Numbers:
    """Of one stream; times go in as seconds and come out as milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latency: deque[float] = deque(maxlen=RECENT)
        self._stages = {name: deque[float](maxlen=64) for name in STAGES}
        self._came: deque[float] = deque(maxlen=RECENT)
        self._made: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self.pictures = self.swapped = 0

    def begin(self) -> None:
        """Something else is made from now on: its times are not those from before."""
        with self._lock:
            self._latency.clear()
            for kept in self._stages.values():
                kept.clear()

    def came(self, now: float) -> None:
        """A picture has come in."""
        with self._lock:
            self._came.append(now)

    def chunk(self, now: float, swapped: int, latencies: list[float], stages: dict[str, float]) -> None:
        """Pictures are ready to be sent. latencies: of each, since it came; stages: seconds of all together."""
        with self._lock:
            self.pictures += len(latencies)
            self.swapped += swapped
            self._latency.extend(latencies)
            self._made.append((now, len(latencies)))
            for name, seconds in stages.items():
                self._stages[name].append(seconds / len(latencies))

    def report(self, now: float) -> dict[str, Any]:
        """Rates in pictures/s, latencies and medians of the stages per picture in milliseconds."""
        with self._lock:
            came = [(when, 1) for when in self._came if now - when <= WINDOW]
            made = [each for each in self._made if now - each[0] <= WINDOW]
            latency = percentiles([1e3 * value for value in self._latency])
            stages = {name: percentiles([1e3 * v for v in kept])["p50"] for name, kept in self._stages.items()}
            counts = {"pictures": self.pictures, "swapped": self.swapped}
        rounded = {name: {key: round(value, 2) for key, value in each.items()}
                   for name, each in (("latency", latency), ("stages", stages))}  # fmt: skip
        return {"came": round(_rate(came), 2), "made": round(_rate(made), 2), **rounded, **counts}


def _rate(recent: list[tuple[float, int]]) -> float:
    """Per second; the first event starts the clock, the others are counted."""
    span = recent[-1][0] - recent[0][0] if recent else 0.0
    return sum(count for _, count in recent[1:]) / span if span > 0 else 0.0
