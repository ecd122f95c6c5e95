"""`evaluate chunking`: every delay and way on the same cases, jerk and success told apart, paired with naive's."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_episodes import FakeRobot, fake_policy

from worldmodel.cli import main
from worldmodel.evaluate.statistics import mean_interval
from worldmodel.policies import chunking as command
from worldmodel.policies.chunking import Cell, report_of
from worldmodel.policies.episodes import UNSEEN, Row
from worldmodel.policies.success import mcnemar, wilson


def rows(*each: tuple[bool, float | None]) -> tuple[Row, ...]:
    return tuple(Row("go", seed, "nominal", success, 0.5, 9, jerk) for seed, (success, jerk) in enumerate(each))


CELLS = [
    Cell(0, "naive", rows((True, 1.0), (True, 2.0), (True, 3.0), (True, None))),
    Cell(2, "naive", rows((True, 4.0), (False, 90.0), (True, 6.0), (True, 8.0))),
    Cell(2, "prefix", rows((True, 1.0), (True, 2.0), (True, 5.0), (False, 70.0))),
]


def test_cells_are_counted_and_paired_with_naive_under_the_same_delay():
    metrics = report_of(CELLS).metrics
    assert metrics["success_rate__2__naive"].value == 0.75
    assert metrics["success_rate__2__naive"].interval == wilson(3, 4)
    assert metrics["border_jerk__0__naive"].value == 2.0 and metrics["border_jerk__0__naive"].n == 3
    assert metrics["border_jerk__2__prefix"].value == 19.5
    assert metrics["difference__2__prefix"].value == 0.0 and metrics["p_value__2__prefix"].value == mcnemar(1, 1)
    assert metrics["jerk_difference__2__prefix"].value == np.mean([-3, -88, -1, 62])
    assert not [name for name in metrics if name.startswith(("difference__0", "difference__2__naive"))]


def test_jerk_of_solved_episodes_leaves_out_those_that_any_cell_failed():
    report = report_of(CELLS)
    assert report.metrics["solved_by_all"].value == 2
    assert report.metrics["border_jerk_solved__2__naive"].value == 5.0
    assert report.metrics["jerk_difference_solved__2__prefix"].value == -2.0
    assert report.metrics["jerk_difference_solved__2__prefix"].interval == mean_interval(np.array([-3.0, -1.0]))
    assert report.tables[0].rows[2][:3] == ("2", "prefix", "3 of 4")
    assert report.curves["border_jerk"]["2__prefix"] == [1.0, 2.0, 5.0, 70.0]


def test_nothing_is_told_of_solved_episodes_where_there_are_none():
    report = report_of([Cell(1, "naive", rows((False, 1.0))), Cell(1, "guided", rows((True, None)))])
    assert not [name for name in report.metrics if "solved__" in name or name == "border_jerk__1__guided"]
    assert report.tables[0].rows[1][4:] == ("-", "-", "-", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "open_for", lambda task, _: FakeRobot(task))
    fake_policy().save(tmp_path / "model")
    return tmp_path / "model"


def test_the_command_runs_every_way_under_every_delay_on_the_same_cases(folder, tmp_path, capsys):
    todo = ["evaluate", "chunking", str(folder), "--tasks", "go", "--delays", "0", "2", "--episodes", "4"]
    for name, more in (("one", ["--parallel", "1"]), ("four", ["--parallel", "4"])):
        assert main([*todo, "--horizon", "11", *more, "--json", str(tmp_path / f"{name}.json")]) == 0
    one, four = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "four"))
    jerk = one["curves"]["border_jerk"]
    assert list(jerk) == ["0__naive", "2__naive", "2__guided", "2__prefix"]
    assert one["curves"]["cases"] == [f"go {UNSEEN + n}" for n in range(4)]
    assert len({tuple(values) for values in jerk.values()}) == 4
    assert four["curves"] == one["curves"]
    assert "4 of 4" in (told := capsys.readouterr().out) or "0 of 4" in told


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--delays", "3"], "delay must be in [0, 2]"),
        (["--delays", "1", "1"], "--delays: give at least one, and none twice"),
        (["--delays", "1", "--ways", "naive", "naive"], "--ways: give at least one, and none twice"),
    ],
)
def test_what_cannot_be_asked_is_told_before_a_robot_runs(folder, asked, said, capsys, monkeypatch):
    monkeypatch.setattr(command, "open_for", lambda *_: pytest.fail("a robot was opened"))
    assert main(["evaluate", "chunking", str(folder), "--tasks", "go", *asked]) == 2
    assert said in capsys.readouterr().err
