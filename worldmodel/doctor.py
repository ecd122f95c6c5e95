"""What works on this machine and why not: versions, devices, codecs, backends, simulators, tests that will be skipped.

Needs nothing but the standard library, so that it also runs where the install is broken: `python -m worldmodel.doctor`.
"""

import ast
import importlib.metadata
import importlib.util
import json as jsonlib
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import worldmodel
from worldmodel.capabilities import CAPABILITIES, SIM, Check, check, installed, probe, torch_answer
from worldmodel.errors import UserError

BASE = (
    "torch",
    "torchvision",
    "diffusers",
    "transformers",
    "accelerate",
    "lerobot",
    "datasets",
    "gymnasium",
    "numpy",
    "av",
    "opencv-python-headless",
    "einops",
    "msgpack",
    "safetensors",
    "huggingface-hub",
    "httpx",
    "tyro",
    "rich",
    "matplotlib",
    "tensorboard",
    "fastapi",
    "uvicorn",
    "websockets",
    "vizdoom",
)
OPTIONAL = {
    "decord": "videos are read with PyAV instead",
    "metaworld": f"for Meta-World: {SIM}",
    "mujoco": f"for Meta-World: {SIM}",
    "gym-pusht": f"for PushT: {SIM}",
    "xformers": f"for attention on an NVIDIA GPU: {SIM}",
    "triton": f"for the Triton kernels: {SIM}",
    "ray": f"for many machines: {SIM}",
}
AGAIN = "`rm -f .venv/.installed-*` and `bash setup/install.sh base` in a checkout"  # which skips what it has done once
NEEDED = {*BASE, "python", "torch works", "cv2 works", "h264 works"}  # exit code 1 if one of these is not ok
FREE_GIB = 10.0  # a dataset, its latents and the checkpoints of one small run


def report() -> list[Check]:
    """Every check, in the order in which they are printed. About 8 s on 2 cores: imports in other processes."""
    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2)) as pool:
        runs, opencv = pool.submit(_torch), pool.submit(_opencv)
        able = [replace(found, name=f"{found.name} works") for found in pool.map(check, CAPABILITIES)]
    calibration = _calibration(runs.result())  # alone: the other processes would slow it
    system = [_python(), *_versions(), _cores(), _memory(), _disk()]
    return [*system, runs.result(), opencv.result(), *able, *_attention(), *_kernels(runs.result()), calibration]


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] == (3, 12):
        return Check("python", "ok", found)
    return Check("python", "broken", found, "worldmodel needs Python 3.12")


def _versions() -> Iterator[Check]:
    bounds = _bounds()
    for name in (*BASE, *OPTIONAL):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "missing", "not installed", OPTIONAL.get(name, AGAIN))
            continue
        wanted = bounds.get(name, "")
        if _outside(version, wanted):
            yield Check(name, "broken", f"{version}, but worldmodel asks for {wanted}", f'pip install "{name}{wanted}"')
        else:
            yield Check(name, "ok", version)


def _bounds() -> dict[str, str]:
    """What worldmodel asks of each package, "" for any version; empty if it is not installed as a package."""
    if not installed("packaging"):
        return {}
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        lines = importlib.metadata.requires("worldmodel") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {canonicalize_name((asked := Requirement(line)).name): str(asked.specifier) for line in lines}


def _outside(version: str, wanted: str) -> bool:
    if not wanted:
        return False
    from packaging.specifiers import SpecifierSet

    return not SpecifierSet(wanted).contains(version, prereleases=True)


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return Check("cores", "ok", f"{usable} usable, load {load}, {platform.machine()} {platform.system()}")


def _memory() -> Check:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return Check("memory", "ok", "size unknown on this system")
    return Check("memory", "ok", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB")


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    if free >= FREE_GIB:
        return Check("disk", "ok", f"{free:.0f} GiB free here")
    return Check("disk", "broken", f"{free:.1f} GiB free here", f"runs and datasets want {FREE_GIB:.0f} GiB")


def _torch() -> Check:
    answer = torch_answer()
    if not answer.ok:
        return Check("torch works", "broken", answer.line, "reinstall torch and torchvision as requirements.lock pins")
    facts = jsonlib.loads(answer.line)
    return Check("torch works", "ok", "on " + (", ".join(facts["cuda"]) or ("mps" if facts["mps"] else "cpu")))


def _opencv() -> Check:
    """Two distributions own the folder cv2/: the one installed last wins."""
    owners = []
    for name in ("opencv-python-headless", "opencv-python"):
        try:
            owners.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if not owners or not installed("cv2"):
        return Check("cv2 works", "missing", "not installed", "pip install opencv-python-headless")
    code = """
import cv2
from cv2 import version
print(cv2.__version__, "of opencv-python-headless" if version.headless else "of opencv-python")
"""
    answer = probe(code)
    both = f"; installed: {', '.join(owners)}" if len(owners) > 1 else ""
    if answer.ok:
        return Check("cv2 works", "ok", answer.line + both)
    repair = "pip uninstall opencv-python opencv-python-headless, then pip install opencv-python-headless"
    return Check("cv2 works", "broken", answer.line + both, repair)


def _attention() -> Iterator[Check]:
    """The backends of torch; xformers is a capability."""
    answer = torch_answer()
    if not answer.ok:
        yield Check("attention sdpa", "broken", "torch does not run", "see `torch works`")
        return
    yield Check("attention sdpa", "ok", ", ".join(jsonlib.loads(answer.line)["sdpa"]))
    if check("cuda").state == "ok":
        yield Check("attention flex", "ok", "forward and backward")
    else:
        limit = "forward only: it has no backward on the CPU, training uses SDPA with a mask"
        yield Check("attention flex", "ok", limit)


def _kernels(torch_runs: Check) -> Iterator[Check]:
    """What `--backend auto` takes here for every kernel, and why not the others."""
    if torch_runs.state != "ok":
        return
    import torch

    from worldmodel.kernels.overview import overview

    for i, each in enumerate(overview(torch.device("cuda" if torch.cuda.is_available() else "cpu"))):
        others = "".join(f"; not {name}: {reason}" for name, reason in each.others.items())
        yield Check(f"kernels {i + 1}", "ok", f"{each.backend} for {', '.join(each.ops)}{others}")


def _calibration(torch_runs: Check) -> Check:
    if torch_runs.state != "ok":
        return Check("calibration", "missing", "torch does not run", torch_runs.advice)
    from worldmodel.calibration import calibrate

    found = calibrate()
    detail = f"{found.gflops:.0f} GFLOP/s per core (one 1024^3 fp32 product), load {found.load:.1f}"
    if found.gflops >= 80:
        return Check("calibration", "ok", detail)
    return Check("calibration", "ok", detail, "below 80: times measured now are slower than documented ones")


def skipped_tests(tests: Path) -> dict[str, list[str]]:
    """Test names by the missing capability that skips them; read from the marks in the source, nothing is imported."""
    skipped: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for test, names in _tests(tree.body, path.relative_to(tests.parent).as_posix(), _marked(tree.body)):
            for name in sorted(names):
                if name in CAPABILITIES and check(name).state != "ok":
                    skipped.setdefault(name, []).append(test)
    return skipped


def _tests(body: list[ast.stmt], prefix: str, names: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Every test function below, with the capabilities that it, its class and its module name."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{prefix}::{node.name}", names | _capabilities(node.decorator_list)
        elif isinstance(node, ast.ClassDef):
            inner = names | _capabilities(node.decorator_list) | _marked(node.body)
            yield from _tests(node.body, f"{prefix}::{node.name}", inner)


def _marked(body: list[ast.stmt]) -> set[str]:
    """Capabilities in `pytestmark = ...` of a module or a class."""
    values = [
        node.value
        for node in body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
    ]
    return _capabilities(values)


def _capabilities(marks: list[ast.expr]) -> set[str]:
    names = set()
    for node in (node for mark in marks for node in ast.walk(mark)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "needs":
            names |= {
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            }
        elif isinstance(node, ast.Attribute) and node.attr == "browser":
            names.add("chromium")
    return names


def main(json: Path | None = None) -> int:
    """Say what works on this machine, what does not and why, and which tests are skipped here.

    Example: worldmodel doctor

    --json FILE also writes it. The exit code is 1 if something that the base install needs does not work.
    """
    found = report()
    tests = Path(worldmodel.__file__).resolve().parent.parent / "tests"
    skipped = skipped_tests(tests)
    for one in found:
        print(f"{one.state:8} {one.name:24} {one.detail}" + (f"  -> {one.advice}" if one.advice else ""))
    print()
    for name, names in skipped.items():
        print(f"{len(names)} tests will be skipped: {check(name).reason}")
        print(textwrap.indent("\n".join(names), "    "))
    if not skipped and tests.is_dir():
        print("No test will be skipped.")
    bad = [one.name for one in found if one.name in NEEDED and one.state != "ok"]
    print(f"The base install does not work here: {', '.join(bad)}." if bad else "The base install works here.")
    if json is not None:
        try:
            json.write_text(jsonlib.dumps(_to_json(found, skipped), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{json}: cannot be written: {error.strerror}") from error
    return 1 if bad else 0


def _to_json(found: list[Check], skipped: dict[str, list[str]]) -> dict[str, object]:
    by_name = {one.name: one for one in found}
    metrics: dict[str, object] = {}
    calibration = by_name["calibration"]
    if calibration.state == "ok":
        gflops = float(calibration.detail.split()[0])
        metrics["gflops_per_core"] = {"value": gflops, "unit": "GFLOP/s"}
    return {
        "command": "doctor",
        "versions": {name: by_name[name].detail for name in (*BASE, *OPTIONAL) if by_name[name].state != "missing"},
        "device": by_name["torch works"].detail,
        "seeds": [],
        "metrics": metrics,
        "checks": [asdict(one) for one in found],
        "skipped_tests": [
            {"test": test, "reason": check(name).reason} for name, names in skipped.items() for test in names
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
