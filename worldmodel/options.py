"""Options that many commands have, and ranges of the numbers that a person types: one line that names the option for
whatever lies outside."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from worldmodel.errors import UserError
from worldmodel.kernels.names import SETTINGS, Setting

MAX_SEED = 2**62 - 1  # of a stream
MAX_THREADS = 1024


def check_range(least: int, most: int | None = None, **options: int | None) -> None:
    """A UserError for the first option that is not in [least, most]. None stands for one that was not given."""
    for name, value in options.items():
        if value is not None and (value < least or (most is not None and value > most)):
            span = f"at least {least}" if most is None else f"in [{least}, {most}]"
            raise UserError(f"{_flag(name)} must be {span}, not {value}")


def check_seeds(**options: int | tuple[int, ...]) -> None:
    """A UserError unless each option is a seed of a stream, or different ones."""
    for name, value in options.items():
        seeds = value if isinstance(value, tuple) else (value,)
        for seed in seeds:
            if not 0 <= seed <= MAX_SEED:
                raise UserError(f"{_flag(name)} must be in [0, 2**62), not {seed}")
        if not seeds or len(set(seeds)) < len(seeds):
            raise UserError(f"{_flag(name)} takes different numbers, one or more, not '{' '.join(map(str, seeds))}'")


def check_threads(threads: int) -> None:
    check_range(1, MAX_THREADS, threads=threads)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Compute what is in the block by the kernels' backend of this name.

    A UserError if there is none of this name, or if it cannot serve what it is asked for: with its reasons.
    """
    if name not in SETTINGS:
        raise UserError(f"--backend must be one of {', '.join(SETTINGS)}, not '{name}'")
    from worldmodel.kernels import backend

    try:
        with backend.using(name):
            yield
    except backend.BackendError as error:
        raise UserError(f"--backend {name}: {error}") from error


def with_backend(command: Callable[..., int]) -> Callable[..., int]:
    """The same command with the option --backend, in force while it runs."""
    signature = inspect.signature(command)
    option = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default="auto", annotation=Setting)

    def run(*args: Any, backend: Setting = "auto", **options: Any) -> int:
        with use_backend(backend):
            return command(*args, **options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = signature.replace(  # pyright: ignore[reportFunctionMemberAccess]
        parameters=[*signature.parameters.values(), option]
    )
    run.__annotations__ = command.__annotations__ | {"backend": Setting}
    return run


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
