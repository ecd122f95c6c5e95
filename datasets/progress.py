"""A progress bar with rate and time left, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class Advance(Protocol):
    def __call__(self, count: int) -> None: ...


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"- {self.unit}/s" if speed is None else f"{speed:,.0f} {self.unit}/s")


@contextmanager
def progress_bar(
    description: str,
    total: int,
    done: int = 0,
    unit: str = "frames",
    shown: bool = True,
    console: Console | None = None,
) -> Iterator[Advance]:
    """`with progress_bar("encode", 500) as advance: advance(20)`: counts up to `total`, from `done` on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(unit), TimeRemainingColumn())
    console = console or Console(stderr=True)
    with Progress(*columns, console=console, speed_estimate_period=60, disable=not shown) as progress:
        task = progress.add_task(description, total=total, completed=done)

        def advance(count: int) -> None:
            progress.update(task, advance=count)

        yield advance
