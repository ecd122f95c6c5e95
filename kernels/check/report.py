"""`worldmodel kernels check`: both parts in processes of their own, at the same time, and what they found."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found: one entry per case and operator, and one per configuration and architecture."""

    cases: tuple[dict[str, Any], ...]
    compiled: tuple[dict[str, Any], ...]
    broken: tuple[str, ...] = ()  # parts that ended before they were through, and how

    @property
    def ops(self) -> int:
        return len({found["op"] for found in (*self.cases, *self.compiled)})

    @property
    def spills(self) -> int:
        """Bytes, over all shipped configurations and architectures."""
        return sum(found["spills"] for found in self.compiled)

    @property
    def failures(self) -> int:
        return len(self.broken) + sum(bool(found["faults"]) for found in (*self.cases, *self.compiled))

    def metrics(self) -> dict[str, dict[str, Any]]:
        """As every measuring command writes them."""
        return {
            "ops": {"value": self.ops, "unit": "ops"},
            "failures": {"value": self.failures, "unit": "checks", "n": len(self.cases) + len(self.compiled)},
            "spills": {"value": self.spills, "unit": "bytes", "n": len(self.compiled)},
        }

    def found(self) -> list[dict[str, Any]]:
        """Every finding, for other programs."""
        return [*self.cases, *self.compiled]

    def table(self) -> str:
        """What a person reads: the compiled kernels, the cases by op, everything that is wrong."""
        lines = [f"{'op':18} {'configuration':26} {'sm':>4} {'registers':>9} {'spills':>6} {'shared':>7}  matrix"]
        for found in self.compiled:
            matrix = " ".join(f"{kind} {count}" for kind, count in (found["matrix"] or {}).items()) or "-"
            lines.append(
                f"{found['op']:18} {found['name']:26} {found['arch']:>4} {found['registers']:>9} {found['spills']:>6} "
                f"{found['shared']:>7}  {matrix}"
            )
        lines.append("")
        for op in dict.fromkeys(found["op"] for found in self.cases):
            own = [found for found in self.cases if found["op"] == op]
            good = sum(not found["faults"] for found in own)
            lines.append(f"{op:18} {good} of {len(own)} cases right, {sum(found['seconds'] for found in own):.1f} s")
        bad = [
            f"{found['op']}: {found['case'] if 'case' in found else f'{found["name"]} sm{found["arch"]}'}: {fault}"
            for found in (*self.cases, *self.compiled)
            for fault in found["faults"]
        ]
        lines += ["", *(f"FAILED {line}" for line in (*self.broken, *bad))]
        lines.append(f"{self.ops} ops, {self.failures} failures, {self.spills} bytes of spills; no time was measured")
        return "\n".join(lines)


PARTS = ("correct", "compile")


def check(quick: bool = False, ops: tuple[str, ...] = ()) -> Report:
    """Run both parts, side by side. As `started`, and wait."""
    with started(quick, ops) as running:
        for _ in running.findings():
            pass
        return running.report()


@contextmanager
def started(quick: bool = False, ops: tuple[str, ...] = ()) -> Iterator["Running"]:
    """Both parts in their processes, which end with the block.

    quick: only cases and configurations that say so, two architectures. ops: only these; () for all.
    """
    with tempfile.TemporaryDirectory() as folder:
        running = Running([_Part(part, quick, ops, Path(folder)) for part in PARTS])
        try:
            yield running
        finally:
            running.stop()


class Running:
    """A check that is under way."""

    def __init__(self, parts: list["_Part"]) -> None:
        self._parts = parts

    def total(self) -> int:
        """How many checks there will be; waits until both parts know."""
        waits = True
        while waits:
            states = [part.runs() and part.total is None for part in self._parts]
            waits = any(states)
            time.sleep(0.05 * waits)
        return sum(part.total or 0 for part in self._parts)

    def findings(self) -> Iterator[dict[str, Any]]:
        """Every finding as it comes, until both parts have ended."""
        told, on = [0] * len(self._parts), True
        while on:
            states = [part.runs() for part in self._parts]
            on = any(states)
            for i, part in enumerate(self._parts):
                yield from part.findings[told[i] :]
                told[i] = len(part.findings)
            time.sleep(0.05 * on)

    def report(self) -> Report:
        """After the last finding."""
        correct, compiled = (tuple(part.findings) for part in self._parts)
        return Report(correct, compiled, tuple(part.broken for part in self._parts if part.broken))

    def stop(self) -> None:
        for part in self._parts:
            part.stop()


class _Part:
    """A worker in its process, and what it has said so far."""

    def __init__(self, name: str, quick: bool, ops: tuple[str, ...], folder: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        # A fresh cache, so that no earlier result hides a change; one thread, as the parts run side by side.
        environment |= {"TRITON_CACHE_DIR": str(folder / f"{name}_cache"), "OMP_NUM_THREADS": "1"}
        if name == "correct":
            environment["TRITON_INTERPRET"] = "1"
        self.name, self.findings = name, list[dict[str, Any]]()
        self.total: int | None = None
        self._out, self._errors = ((folder / f"{name}.{kind}").open("w+", encoding="utf-8") for kind in ("out", "err"))
        self._said = (folder / f"{name}.out").open(encoding="utf-8")
        command = [sys.executable, "-m", "worldmodel.kernels.check.worker", name, *(["--quick"] if quick else []), *ops]
        self._process = subprocess.Popen(command, env=environment, stdout=self._out, stderr=self._errors)
        self._rest = ""

    def runs(self) -> bool:
        """Whether it still does; reads what it has said."""
        running = self._process.poll() is None
        *lines, self._rest = (self._rest + self._said.read()).split("\n")
        for line in lines:
            said = json.loads(line)
            if "total" in said:
                self.total = said["total"]
            else:
                self.findings.append(said)
        return running

    @property
    def broken(self) -> str:
        """How it ended, if that was before it was through; else empty."""
        code = self._process.returncode
        if code == 0 and len(self.findings) == self.total:
            return ""
        self._errors.seek(0)
        last = " ".join(self._errors.read().strip().splitlines()[-1:])
        return f"{self.name}: ended with code {code} after {len(self.findings)} of {self.total or '?'} checks: {last}"

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        for file in (self._out, self._errors, self._said):
            file.close()
