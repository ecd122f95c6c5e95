"""One part of a check in a process of its own: `python -m worldmodel.kernels.check.worker PART [--quick] [OPS...]`.

PART is "correct", where TRITON_INTERPRET=1 must be set, or "compile", where it must not be: Triton looks at it when a
kernel is defined. The first line on stdout is {"total": how many checks}, every other one a finding, all JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from .declare import Case, OpChecks
from .ops import checks_of

QUICK_ARCHS = (86, 90)  # the smallest shared memory, and the other kind of matrix instruction
Job = Callable[[], dict[str, Any]]


def main(arguments: list[str]) -> int:
    part, *rest = arguments
    quick, ops = "--quick" in rest, [name for name in rest if name != "--quick"]
    jobs = {"correct": _correct, "compile": _compile}[part]
    todo = [job for checks in checks_of(ops) for job in jobs(checks, quick)]
    _say({"total": len(todo)})
    for job in todo:
        began = time.perf_counter()
        _say(job() | {"seconds": time.perf_counter() - began})
    return 0


def _correct(checks: OpChecks, quick: bool) -> Iterator[Job]:
    from .correct import examine, opcheck_faults

    def look(case: Case) -> dict[str, Any]:
        try:
            faults, worst = examine(case)
        except Exception as error:  # noqa: BLE001 what a kernel raises is the finding
            faults, worst = (f"raised {type(error).__name__}: {error}",), 0.0
        return {"op": checks.op, "case": case.name, "faults": faults, "worst": worst}

    for case in checks.cases():
        if not quick or case.quick:
            yield lambda case=case: look(case)
    for check in checks.opchecks():
        name = f"opcheck {check.operator}"
        yield lambda check=check, name=name: {"op": checks.op, "case": name, "faults": opcheck_faults(check, quick)}


def _compile(checks: OpChecks, quick: bool) -> Iterator[Job]:
    from .compile import compile_for

    def job(configuration: Any, arch: int) -> dict[str, Any]:
        made = compile_for(configuration, arch)
        return {"op": checks.op, **asdict(made), "faults": made.faults}

    done = set[str]()  # a configuration that equals an earlier one but for its name is the same machine code
    for configuration in checks.configurations():
        for arch in configuration.archs:
            key = repr((replace(configuration, name="", quick=True, archs=()), arch))
            if key not in done and (not quick or (configuration.quick and arch in QUICK_ARCHS)):
                done.add(key)
                yield lambda configuration=configuration, arch=arch: job(configuration, arch)


def _say(finding: dict[str, Any]) -> None:
    print(json.dumps(finding), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
