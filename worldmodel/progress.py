"""How far a long command is, on stderr: a live bar in a terminal, a plain line now and then anywhere else.

Also the signals that ask a training to stop.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

EVERY = 10.0  # seconds between the lines of a log
WINDOW = 60.0  # seconds that a rate is the average of

Clock = Callable[[], float]  # seconds


class Advance(Protocol):
    def __call__(self, count: int) -> None: ...


class Bar:
    """Name, done/total, a text and the time left. In a terminal that is one line, which is drawn again and again; in a
    log file (nohup, SLURM, CI) a line every EVERY seconds, and a last one if there was any.
    """

    def __init__(self, name: str, total: int, done: int = 0, shown: bool = True, clock: Clock = time.monotonic) -> None:
        console = Console(file=sys.stderr)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self._name, self._total, self._shown, self._clock = name, total, shown, clock
        self._live = shown and sys.stderr.isatty() and not console.is_dumb_terminal
        self._bar = Progress(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task(name, total=total, completed=done, text="")
        self._said, self._line, self._printed = clock(), "", ""

    def show(self, done: int, text: str, left: float | None) -> None:
        """left: seconds, None where that is not known."""
        text = text if left is None else f"{text}  {_duration(left)} left"
        self._line = f"{self._name}: {done:,}/{self._total:,}  {text}"
        self._bar.update(self._task, completed=done, text=text)
        if self._shown and not self._live and self._clock() - self._said >= EVERY:
            self._say()

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._live:
            self._bar.console.print(text, highlight=False)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)

    def _say(self) -> None:
        self._said, self._printed = self._clock(), self._line
        print(self._line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        if self._printed != self._line and self._printed:
            self._say()


@contextmanager
def progress_bar(
    name: str, total: int, done: int = 0, unit: str = "frames", shown: bool = True, clock: Clock = time.monotonic
) -> Iterator[Advance]:
    """`with progress_bar("encode", 500) as advance: advance(20)`: counts up to `total`, from `done` on.

    A block that ends without an error is done, even if it has counted less.
    """
    seen = deque([(clock(), done)])  # when how much was done, over the last WINDOW

    with Bar(name, total, done, shown, clock) as bar:

        def advance(count: int) -> None:
            now, counted = clock(), seen[-1][1] + count
            seen.append((now, counted))
            while len(seen) > 2 and seen[1][0] <= now - WINDOW:
                seen.popleft()
            rate = (counted - seen[0][1]) / max(now - seen[0][0], 1e-9)
            bar.show(counted, f"{_rate(rate)} {unit}/s", max(total - counted, 0) / rate if rate > 0 else None)

        yield advance
        if (missing := total - seen[-1][1]) > 0:
            advance(missing)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _duration(seconds: float) -> str:
    """ "45 s", "12 min" or "3.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


class Line:
    """Of a training: loss, frames/s and time left; notes stay above it. Silent on all but the main process."""

    def __init__(self, shown: bool, steps: int, done: int, clock: Clock = time.monotonic) -> None:
        self._bar, self._steps = Bar("training", steps, done, shown, clock), steps
        self._updates, self._seconds = 0, 0.0

    def update(self, step: int, metrics: Mapping[str, float], frames: int, seconds: float) -> None:
        """After a step that took `seconds` for `frames` frames over all processes."""
        self._updates += 1  # the first step may compile for minutes: the average starts at the second
        self._seconds = seconds if self._updates <= 2 else 0.9 * self._seconds + 0.1 * seconds
        left = (self._steps - step) * self._seconds if self._updates > 1 else None
        self._bar.show(step, f"{listed(metrics)}  {_rate(frames / self._seconds)} frames/s", left)

    def note(self, text: str) -> None:
        """A line that stays."""
        self._bar.note(text)

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)


def listed(metrics: Mapping[str, float]) -> str:
    """Numbers on one line."""
    return "  ".join(f"{name.removeprefix('model/')} {value:.4f}" for name, value in metrics.items())


class StopSignal:
    """Remembers SIGTERM and Ctrl-C, so that the loop can stop at a safe point; a second Ctrl-C interrupts at once.

    at_once: as long as it is true, while there is nothing to lose, either signal interrupts at once.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.requested, self.at_once = False, at_once
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or (self.requested and number == signal.SIGINT):
            raise KeyboardInterrupt
        if not self.requested:
            os.write(2, b"stopping after this step\n")  # at once: a signal may come in the middle of a print
        self.requested = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
