"""Set-up, locks, checks and the rule that a test skips only for a reason that doctor shows."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PLUGIN = "policies/lerobot_plugin"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()


def test_licence_is_the_unmodified_text() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_lock_pins_every_line() -> None:
    assert not [line for line in LOCK if not re.fullmatch(r"[a-z0-9-]+==[0-9a-z.!+]+( ; .+)?", line)]


def test_lock_satisfies_pyproject() -> None:
    pins = dict(line.split(" ;")[0].split("==") for line in LOCK)
    extras = PROJECT["optional-dependencies"].values()
    wanted = [Requirement(line) for group in (PROJECT["dependencies"], *extras) for line in group]
    assert len(wanted) > 30
    bad = [str(line) for line in wanted if not line.specifier.contains(pins.get(canonicalize_name(line.name), "0"))]
    assert not bad


@pytest.mark.parametrize("second_owner", ["opencv-python", "pygame"])
def test_lock_has_one_owner_per_folder(second_owner: str) -> None:
    (line,) = (line for line in LOCK if line.startswith(f"{second_owner}=="))
    assert line.endswith("; sys_platform == 'never'")


# Set-up, with stand-ins for Python and uv that write down how they are called.

STUB_PYTHON = """#!/bin/bash
case "$*" in
    -c*) exec {python} "$@" ;;
    *"pip install"*uv==*) echo "python $*" >>calls; exit {get_uv} ;;
    *"pip install"*) echo "python $*" >>calls ;;
esac
"""
STUB_UV = """#!/bin/bash
case "$*" in
    --version) echo "uv $(sed -n 's/^uv_version=//p' setup/install.sh)" ;;
    *) echo "uv $*" >>calls; exit $(cat fails 2>/dev/null || echo 0) ;;
esac
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "setup", tmp_path / "setup", symlinks=True)
    (tmp_path / PLUGIN).mkdir(parents=True)
    for name in ("pyproject.toml", "requirements.lock", f"{PLUGIN}/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    executable(tmp_path / ".venv/bin/python", STUB_PYTHON.format(python=sys.executable, get_uv=0))
    executable(tmp_path / ".venv/bin/uv", STUB_UV)
    return tmp_path


def install(checkout: Path, kind: str, **environment: str) -> tuple[int, str, list[str]]:
    """Exit code, stderr and the calls made by one run of the set-up."""
    (checkout / "calls").unlink(missing_ok=True)
    command = ["bash", "setup/install.sh", kind]
    done = subprocess.run(command, cwd=checkout, env=os.environ | environment, capture_output=True, text=True)
    calls = (checkout / "calls").read_text().splitlines() if (checkout / "calls").exists() else []
    return done.returncode, done.stderr, calls


def test_set_up_runs_once(checkout: Path) -> None:
    code, _, (call,) = install(checkout, "base")
    assert code == 0 and call.startswith("uv pip install") and call.endswith(f"--editable . --editable ./{PLUGIN}")
    assert install(checkout, "base") == (0, "", [])
    code, _, (call,) = install(checkout, "all")
    assert code == 0 and call.endswith(f"--editable .[sim,gpu,face,cluster,dev] --editable ./{PLUGIN}")
    assert install(checkout, "all") == (0, "", [])
    assert install(checkout, "base") == (0, "", [])


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock", f"{PLUGIN}/pyproject.toml"])
def test_set_up_runs_again_after_a_change(checkout: Path, name: str) -> None:
    install(checkout, "all")
    with (checkout / name).open("a") as file:
        file.write("\n# changed\n")
    assert len(install(checkout, "base")[2]) == 1


def test_set_up_runs_again_after_a_failure(checkout: Path) -> None:
    (checkout / "fails").write_text("7")
    code, errors, _ = install(checkout, "base")
    assert code == 1 and errors.splitlines()[-1].startswith("set-up: the packages could not be installed")
    (checkout / "fails").unlink()
    assert len(install(checkout, "base")[2]) == 1


def test_set_up_falls_back_to_pip_and_says_so(checkout: Path) -> None:
    (checkout / ".venv/bin/uv").unlink()
    executable(checkout / ".venv/bin/python", STUB_PYTHON.format(python=sys.executable, get_uv=1))
    code, errors, calls = install(checkout, "base")
    assert code == 0
    assert "pip does it" in errors
    assert calls[-1].startswith("python -m pip install") and calls[-1].endswith(f"--editable . --editable ./{PLUGIN}")


def test_set_up_without_python_312_says_so_in_one_line(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    for tool in ("bash", "dirname", "cat", "cksum"):
        executable(checkout / "bin" / tool, f'#!/bin/sh\nexec {shutil.which(tool)} "$@"\n')
    executable(checkout / "bin/python3", "#!/bin/sh\nexit 1\n")
    code, errors, calls = install(checkout, "base", PATH=str(checkout / "bin"), HOME=str(checkout), PYENV_ROOT="/x")
    assert code == 1 and not calls
    assert len(errors.splitlines()) == 1 and errors.startswith("set-up: Python 3.12 is needed")


@pytest.mark.parametrize(("default", "slow", "expected"), [(0, 0, 0), (2, 0, 1), (0, 1, 1), (0, 5, 1)])
def test_ci_fails_if_either_part_fails(tmp_path: Path, default: int, slow: int, expected: int) -> None:
    executable(tmp_path / ".ci/run", (ROOT / ".ci/run").read_text())
    executable(tmp_path / ".venv/bin/pytest", "")
    executable(tmp_path / "bin/make", f'#!/bin/sh\n[ "$1" = test ] && exit {default}\nexit {slow}\n')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    assert subprocess.run(["bash", ".ci/run"], cwd=tmp_path, env=os.environ | {"PATH": path}).returncode == expected


def test_make_test_runs_every_check() -> None:
    done = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    for part in ("install.sh all", "ruff check", "ruff format --check", "basedpyright", "system.sh", "-m pytest"):
        assert part in done.stdout


# Skips.


def test_a_missing_capability_skips_with_the_reason_of_doctor(tmp_path: Path) -> None:
    missing = "capabilities.CAPABILITIES['luck'] = lambda: capabilities.Check('luck', 'missing', 'none', 'wait')"
    (tmp_path / "conftest.py").write_text(f"{(ROOT / 'tests/conftest.py').read_text()}\n{missing}\n")
    test = "@pytest.mark.needs('h264', 'luck')\ndef test_a(): assert False\ndef test_b(): pass\n"
    (tmp_path / "test_planted.py").write_text(f"import pytest\n{test}")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", ".", "."]
    done = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True)
    assert "luck missing: none (wait)" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout


def test_an_unknown_capability_is_an_error(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    request.node.add_marker(pytest.mark.needs("wings"))
    with pytest.raises(pytest.UsageError, match=r"test_an_unknown.*needs\('wings'\), known are"):
        conftest.pytest_collection_modifyitems([request.node])


def skips(source: str) -> list[int]:
    """Lines that skip or excuse a test in another way than the `needs` mark."""
    ways = {"skip", "skipif", "skipIf", "skipUnless", "skipTest", "importorskip", "xfail"}
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.Attribute) and node.attr in ways]


def test_every_skip_is_one_that_doctor_shows() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert not [f"{path.relative_to(ROOT)}:{line}" for path in files for line in skips(path.read_text())]


@pytest.mark.parametrize("way", ["pytest.skip('x')", "pytest.importorskip('x')", "pytest.mark.skipif(True)(f)"])
def test_other_skips_are_found(way: str) -> None:
    assert skips(f"import pytest\n{way}") == [2]
