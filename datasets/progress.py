"""A progress bar with rate and time left, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class Advance(Protocol):
    def __call__(self, frames: int) -> None: ...


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("- frames/s" if speed is None else f"{speed:,.0f} frames/s")


@contextmanager
def frames_bar(description: str, total: int, done: int = 0, console: Console | None = None) -> Iterator[Advance]:
    """`with frames_bar("encode", 500) as advance: advance(20)`: counts frames up to `total`, from `done` on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console or Console(stderr=True), speed_estimate_period=60) as progress:
        task = progress.add_task(description, total=total, completed=done)

        def advance(frames: int) -> None:
            progress.update(task, advance=frames)

        yield advance
