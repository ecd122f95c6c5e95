"""Numbers out of range are one line that names the option as it is typed."""

import pytest

from worldmodel.errors import UserError
from worldmodel.kernels import backend
from worldmodel.options import MAX_SEED, check_range, check_seeds, check_threads, use_backend, with_backend


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


def test_a_backend_is_in_force_while_a_command_runs() -> None:
    def command(frames: int, scale: int = 2) -> int:
        """What it does."""
        seen.append((backend.setting(), frames, scale))
        return 3

    seen, run = [], with_backend(command)
    assert run(4, backend="sdpa") == 3 and run(5, scale=6) == 3
    assert seen == [("sdpa", 4, 2), ("auto", 5, 6)] and backend.setting() == "auto"
    assert run.__doc__ == "What it does."


def test_a_backend_that_cannot_and_one_that_there_is_not_are_one_line() -> None:
    told = r"^--backend triton: euler: the backend triton cannot: no GPU$"
    with pytest.raises(UserError, match=told), use_backend("triton"):
        raise backend.BackendError("euler: the backend triton cannot: no GPU")
    assert backend.setting() == "auto"
    told = r"^--backend must be one of auto, triton, xformers, flex, sdpa, grid_sample, reference, not 'cuda'$"
    with pytest.raises(UserError, match=told), use_backend("cuda"):
        pass
