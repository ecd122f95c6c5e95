"""The live line of a training, and the signals that ask it to stop."""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Line:
    """Loss, frames/s and time left on one line; notes stay above it. Silent on all but the main process."""

    def __init__(self, shown: bool, steps: int, done: int, every: float = 30.0) -> None:
        console = Console(file=sys.stderr)
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
        self._shown = shown
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown)
        self._task = self._bar.add_task("", total=steps, completed=done, text="")
        self._plain, self._every, self._said = shown and not console.is_terminal, every, 0.0
        if not self._plain:
            self._bar.start()
        self._updates, self._seconds = 0, 0.0

    def update(self, step: int, metrics: Mapping[str, float], frames: int, seconds: float) -> None:
        """After a step that took `seconds` for `frames` frames over all processes."""
        self._updates += 1  # the first step may compile for minutes: the average starts at the second
        self._seconds = seconds if self._updates <= 2 else 0.9 * self._seconds + 0.1 * seconds
        text = f"{listed(metrics)}  {frames / self._seconds:.0f} frames/s"
        self._bar.update(self._task, completed=step, text=text)
        if self._plain and time.monotonic() - self._said > self._every:  # a log file gets a line now and then
            self._said = time.monotonic()
            total = self._bar.tasks[0].total or step
            left = f"  {(total - step) * self._seconds / 60:.0f} min left" if self._updates > 1 else ""
            print(f"step {step}/{int(total)}  {text}{left}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        if not self._shown:
            return
        if self._plain:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(text, highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._plain:
            self._bar.stop()


def listed(metrics: Mapping[str, float]) -> str:
    """Numbers on one line."""
    return "  ".join(f"{name.removeprefix('model/')} {value:.4f}" for name, value in metrics.items())


class StopSignal:
    """Remembers SIGTERM and Ctrl-C, so that the loop can stop at a safe point; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
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
