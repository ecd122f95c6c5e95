"""Numbers out of range are one line that names the option as it is typed."""

import pytest

from worldmodel.errors import UserError
from worldmodel.options import MAX_SEED, check_range, check_seeds, check_threads


def test_what_fits_passes() -> None:
    check_range(1, frames=1, steps=None)
    check_range(2, 4, a=2, b=4)
    check_seeds(seed=0, seeds=(MAX_SEED, 0))
    check_threads(1)
    check_threads(1024)


@pytest.mark.parametrize("value", [0, -1, -(10**30)])
def test_below(value: int) -> None:
    with pytest.raises(UserError, match=f"^--max-frames must be at least 1, not {value}$"):
        check_range(1, ok=5, max_frames=value)


@pytest.mark.parametrize("value", [0, 65, 10**30])
def test_outside(value: int) -> None:
    with pytest.raises(UserError, match=rf"^--scale must be in \[1, 64\], not {value}$"):
        check_range(1, 64, scale=value)


def test_seeds() -> None:
    for seed in (-1, MAX_SEED + 1):
        with pytest.raises(UserError, match=rf"^--seed must be in \[0, 2\*\*62\), not {seed}$"):
            check_seeds(seed=seed)
    with pytest.raises(UserError, match=r"^--seeds takes different numbers, one or more, not '5 6 5'$"):
        check_seeds(seeds=(5, 6, 5))
    with pytest.raises(UserError, match=r"^--seeds takes different numbers, one or more, not ''$"):
        check_seeds(seeds=())


def test_threads() -> None:
    with pytest.raises(UserError, match=r"^--threads must be in \[1, 1024\], not 0$"):
        check_threads(0)
