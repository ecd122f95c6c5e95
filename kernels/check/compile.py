"""Ahead-of-time compilation of kernels to cubins, without a GPU: what they take, and whether it is what may ship."""

import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .declare import Configuration

SHARED_LIMITS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KB a program may have, by architecture
MATRIX = {80: "mma.sync", 86: "mma.sync", 89: "mma.sync", 90: "wgmma", 100: "tcgen05", 120: "mma.sync"}
INSTRUCTIONS = {
    "mma.sync": re.compile(r"\bmma\.sync"),
    "wgmma": re.compile(r"\bwgmma\.mma_async"),
    "tcgen05": re.compile(r"\btcgen05\.mma"),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one configuration became for one architecture. error: the compiler's, and then nothing else is known."""

    name: str
    arch: int
    registers: int = 0
    spills: int = 0  # bytes of spill stores and loads
    shared: int = 0  # bytes
    matrix: Mapping[str, int] | None = None  # matrix instructions by kind
    wanted: str | None = None  # the kind that must be there
    error: str | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it may not ship; empty if it may."""
        if self.error is not None:
            return (f"does not compile: {self.error}",)
        limit, found = SHARED_LIMITS[self.arch] * 1024, []
        if self.spills:
            found.append(f"spills {self.spills} bytes")
        if self.shared > limit:
            found.append(f"takes {self.shared} bytes of shared memory, of {limit}")
        if self.wanted is not None and not (self.matrix or {}).get(self.wanted):
            found.append(f"uses no {self.wanted}")
        return tuple(found)


def compile_for(configuration: Configuration, arch: int) -> Compiled:
    """Compile for compute capability `arch` (89 is 8.9)."""
    name, wanted = configuration.name, MATRIX[arch] if configuration.matrix else None
    options = {"num_warps": configuration.warps, "num_stages": configuration.stages}
    log, before = io.StringIO(), knobs.nvidia.dump_ptxas_log
    knobs.nvidia.dump_ptxas_log = True
    try:
        with redirect_stdout(log):
            made: Any = triton.compile(_source(configuration), target=GPUTarget("cuda", arch, 32), options=options)
    except Exception as error:  # noqa: BLE001 whatever the compiler raises is the finding
        while error.__cause__ is not None:
            error = error.__cause__
        return Compiled(name, arch, wanted=wanted, error=" ".join(f"{type(error).__name__}: {error}".split())[-300:])
    finally:
        knobs.nvidia.dump_ptxas_log = before
    text = log.getvalue()
    registers, spills = (
        re.findall(r"Used (\d+) registers", text),
        re.findall(r"(\d+) bytes spill (?:stores|loads)", text),
    )
    if not registers or not spills:
        return Compiled(name, arch, wanted=wanted, error="ptxas told nothing of registers: was it a cached result?")
    matrix = {kind: len(pattern.findall(made.asm["ptx"])) for kind, pattern in INSTRUCTIONS.items()}
    return Compiled(
        name, arch, int(registers[0]), sum(map(int, spills)), made.metadata.shared,
        {kind: count for kind, count in matrix.items() if count}, wanted,
    )  # fmt: skip


def _source(configuration: Configuration) -> ASTSource:
    order = {name: i for i, name in enumerate(configuration.kernel.arg_names)}

    def key(name: Any) -> tuple[int, ...]:
        return (order[name[0]], name[1]) if isinstance(name, tuple) else (order[name],)

    aligned = [["tt.divisibility", 16]]
    attributes = {key(name): aligned for name in configuration.divisible}
    for name, kind in configuration.signature.items():
        parts = {(name, i): part for i, part in enumerate(kind)} if isinstance(kind, tuple) else {name: kind}
        attributes |= {key(place): aligned for place, part in parts.items() if part.startswith("*")}
    constants = {key(name): value for name, value in configuration.constants.items()}
    return ASTSource(configuration.kernel, dict(configuration.signature), constexprs=constants, attrs=attributes)
