"""The ops that `kernels check` looks at. A new op is a line here and a `checks.py` in its folder."""

from importlib import import_module

from .declare import OpChecks

MODULES: tuple[str, ...] = ()


def all_checks() -> tuple[OpChecks, ...]:
    """What every op declares; imports their kernels."""
    return tuple(import_module(name).CHECKS for name in MODULES)
