"""A bar with rate and time left for a stage of known size."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def stage(name: str, total: int, unit: str = "frames", quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A line on stderr, which stays; the yielded function is told of units as they are done."""
    columns = (TextColumn("{task.description:24}"), BarColumn(), TextColumn("{task.fields[rate]:14}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr), disable=quiet) as bar:
        task = bar.add_task(name, total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            state = bar.tasks[0]
            if state.elapsed:
                bar.update(task, rate=f"{state.completed / state.elapsed:.0f} {unit}/s")

        yield advance
        bar.update(task, completed=total)
