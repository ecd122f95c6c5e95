"""The live line: fresh numbers only, a time left that leaves out the first step, and a stop that answers at once."""

import io
import os
import signal
import sys

import pytest

from worldmodel import train as training
from worldmodel.capabilities import Check
from worldmodel.errors import UserError
from worldmodel.progress import Bar, Line, StopSignal, progress_bar
from worldmodel.run import load


class Clock:
    """Seconds that pass when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.splitlines()


def test_a_log_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress_bar("encode", 10_000, 4_000, clock=clock) as advance:
        for _ in range(25):  # 100 frames in 1 s
            clock.now += 1
            advance(100)
        assert lines(capsys) == [
            "encode: 5,000/10,000  100 frames/s  50 s left",
            "encode: 6,000/10,000  100 frames/s  40 s left",
        ]
        clock.now += 5
        advance(3_500)
    assert lines(capsys) == ["encode: 10,000/10,000  200 frames/s  0 s left"]


def test_the_rate_is_that_of_the_last_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress_bar("look", 100_000, unit="files", clock=clock) as advance:
        for count in (500, 40, 10, 10, 10, 10, 10, 10):  # every 10 s; the first two are older than a minute at the end
            clock.now += 10
            advance(count)
    assert lines(capsys)[7] == "look: 600/100,000  1 files/s  27.6 h left"


def test_short_and_silent_ones_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress_bar("encode", 100, clock=clock) as advance:
        clock.now += 9.9
        advance(100)
    with progress_bar("encode", 100, shown=False, clock=clock) as advance:
        clock.now += 100
        advance(50)
    assert lines(capsys) == []


def test_an_error_leaves_the_last_true_count(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with pytest.raises(UserError), progress_bar("convert", 100, clock=clock) as advance:
        clock.now += 10
        advance(20)
        advance(3)
        raise UserError("broken")
    assert lines(capsys) == ["convert: 20/100  2 frames/s  40 s left", "convert: 23/100  2.3 frames/s  33 s left"]


def test_a_terminal_gets_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress_bar("collect", 100, clock=(clock := Clock())) as advance:
        clock.now += 20
        advance(50)
    text = terminal.getvalue()
    assert "collect" in text and "100/100" in text and "\x1b[" in text and "collect: " not in text
    assert lines(capsys) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (100, "2 min"), (5969, "99 min"), (7200, "2.0 h")]
)
def test_time_left(capsys: pytest.CaptureFixture[str], seconds: float, text: str) -> None:
    clock = Clock()
    with Bar("x", 2, clock=clock) as bar:
        clock.now += 10
        bar.show(1, "", seconds)
    assert lines(capsys) == [f"x: 1/2    {text} left"]


def test_time_left_leaves_out_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Line(True, 101, 0, clock) as line:
        for step, loss, seconds in ((1, 0.5, 600.0), (2, 0.25, 2.0)):
            clock.now += seconds + 10
            line.update(step, {"model/loss": loss}, 10, seconds)
        line.note("a note")
    assert lines(capsys) == [
        "training: 1/101  loss 0.5000  0.017 frames/s",
        "training: 2/101  loss 0.2500  5 frames/s  3 min left",
        "a note",
    ]


def test_a_stop_is_answered_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with StopSignal() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        assert capfd.readouterr().err == "stopping after this step\n"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stop_before_there_is_anything_to_lose_interrupts() -> None:
    with StopSignal(at_once=True) as stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert not stop.requested
        stop.at_once = False
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


def test_compiling_without_a_compiler_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "check", lambda name: Check(name, "missing", "no C++ compiler", "use --no-compile"))
    with pytest.raises(UserError, match="compile: no C\\+\\+ compiler; use --no-compile"):
        training.train(load("configs/doom.py"))
