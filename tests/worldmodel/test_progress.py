"""The live line: fresh numbers only, a time left that leaves out the first step, and a stop that answers at once."""

import os
import signal

import pytest

from worldmodel import train as training
from worldmodel.capabilities import Check
from worldmodel.errors import UserError
from worldmodel.progress import Line, StopSignal
from worldmodel.run import load


def test_time_left_leaves_out_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    with Line(True, 101, 0, every=-1.0) as line:  # not a terminal here
        line.update(1, {"model/loss": 0.5}, 10, 600.0)
        line.update(2, {"model/loss": 0.25}, 10, 2.0)
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first == "step 1/101  loss 0.5000  0 frames/s"
    assert second == "step 2/101  loss 0.2500  5 frames/s  3 min left"


def test_a_stop_is_answered_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with StopSignal() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        assert capfd.readouterr().err == "stopping after this step\n"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_compiling_without_a_compiler_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "check", lambda name: Check(name, "missing", "no C++ compiler", "use --no-compile"))
    with pytest.raises(UserError, match="compile: no C\\+\\+ compiler; use --no-compile"):
        training.train(load("configs/doom.py"))
