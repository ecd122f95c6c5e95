"""The ops that `kernels check` looks at. A new op is a line here and a `checks.py` in its folder."""

from collections.abc import Sequence
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


OPS = tuple(name.split(".")[2] for name in MODULES)  # folders of kernels/, which are the names of their checks


def checks_of(ops: Sequence[str] = ()) -> tuple[OpChecks, ...]:
    """What these ops declare, () for all; imports their kernels. ValueError for an op that there is not."""
    if unknown := set(ops) - set(OPS):
        raise ValueError(f"no op {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    return tuple(import_module(name).CHECKS for name, op in zip(MODULES, OPS, strict=True) if not ops or op in ops)
