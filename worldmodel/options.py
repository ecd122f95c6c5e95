"""Ranges of the numbers that a person types: one line that names the option for whatever lies outside."""

from worldmodel.errors import UserError

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


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
