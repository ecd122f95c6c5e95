"""The ops that `kernels check` looks at. A new op is a line here and a `checks.py` in its folder."""

from importlib import import_module

from .declare import OpChecks

MODULES = (
    "worldmodel.kernels.attention.checks",
    "worldmodel.kernels.prefix_attention.checks",
    "worldmodel.kernels.modulate.checks",
    "worldmodel.kernels.qk_norm_rope.checks",
    "worldmodel.kernels.quantised.checks",
    "worldmodel.kernels.region_warp.checks",
    "worldmodel.kernels.sampler_step.checks",
)


def all_checks() -> tuple[OpChecks, ...]:
    """What every op declares; imports their kernels."""
    return tuple(import_module(name).CHECKS for name in MODULES)
