"""The script that times the loop on a CPU: what a user can do wrong is one line, before anything is timed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from worldmodel.errors import UserError

SCRIPT = Path(__file__).parents[1] / "demos" / "cpu_loop.py"
SPEC = importlib.util.spec_from_file_location("cpu_loop", SCRIPT)
assert SPEC and SPEC.loader
cpu_loop = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(cpu_loop)
ME = ("-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def checkout(tmp_path):
    """A folder with one commit."""
    for command in (("init", "-q"), (*ME, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(("git", *command), cwd=tmp_path, check=True)
    return tmp_path


def test_a_commit_is_found_by_any_of_its_names(checkout):
    full = cpu_loop.find_commit("HEAD", checkout)
    assert len(full) == 40 and set(full) <= set("0123456789abcdef")
    assert cpu_loop.find_commit(full[:7], checkout) == full


@pytest.mark.parametrize("revision", ["0000000", "no-such-branch", "", "--help", "HEAD~1"])
def test_a_revision_that_there_is_not(checkout, revision):
    with pytest.raises(UserError, match="has no commit") as error:
        cpu_loop.find_commit(revision, checkout)
    assert str(checkout) in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_git(tmp_path):
    with pytest.raises(UserError, match="no checkout of git") as error:
        cpu_loop.find_commit("HEAD", tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_machine_without_git(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="git is not installed"):
        cpu_loop.find_commit("HEAD", checkout)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--chunks", "1"), "--chunks must be at least 2, not 1"),
        (("--chunks", "-3"), "--chunks must be at least 2, not -3"),
        (("--seed", "-1"), "--seed must be in [0, 2**62), not -1"),
        (("--model", "no/model"), "no/model: no such folder"),
        (("--out", str(SCRIPT / "out.json")), "cannot be made"),
    ],
)
def test_options_are_looked_at_first(wrong, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cpu_loop.py", "HEAD", *wrong])
    monkeypatch.setattr(cpu_loop, "find_commit", lambda *_: pytest.fail("was not refused"))
    assert cpu_loop.main() == 2
    line = capsys.readouterr().err
    assert line.startswith("cpu_loop: ") and said in line and line.count("\n") == 1


def test_an_arm_that_ends_early_is_named(tmp_path):
    """A tree without the code: its process ends, and its own message stands above ours."""
    arm = cpu_loop.Arm(tmp_path, tmp_path / "model", 0, "")
    with pytest.raises(UserError, match="ended before it had made its chunk") as error:
        arm.next()
    assert str(tmp_path) in str(error.value)
    arm.close()
