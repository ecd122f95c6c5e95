"""The robot demo from nothing: which commands run, in which order, and where it goes on."""

from pathlib import Path

import pytest

from worldmodel import cli
from worldmodel.errors import UserError
from worldmodel.policies.demo.making import QUICK, Effort, Made, make
from worldmodel.run import load_training

CONFIGS = Path(__file__).parents[3] / "configs"


def test_every_command_runs_once_and_a_stopped_one_again(tmp_path):
    made, ran = Made(tmp_path / "demo"), []

    def run(line: list[str], stops: str = "") -> int:
        ran.append(line[0])
        return 130 if line[0] == stops else 0

    assert make(made, "reach", QUICK, CONFIGS, lambda line: run(line, stops="trials")) == 130
    assert ran == ["collect", "train", "trials"]
    assert make(made, "reach", QUICK, CONFIGS, run) == 0
    assert ran == ["collect", "train", "trials", "trials", "train"]
    assert make(made, "reach", QUICK, CONFIGS, run) == 0 and len(ran) == 5
    for task, effort in (("push", QUICK), ("reach", Effort())):
        with pytest.raises(UserError, match="another demo lies here"):
            make(made, task, effort, CONFIGS, run)
    with pytest.raises(UserError, match="holds something else"):
        make(Made(tmp_path), "reach", QUICK, CONFIGS, run)


def test_the_commands_fit_together():
    made = Made(Path("demo"))
    collect, policy, trials, encoder = made.lines("push", Effort(episodes=5, steps=6, trials=7, corrections=8), CONFIGS)

    def given(line: list[str], option: str) -> str:
        return line[line.index(option) + 1]

    assert collect[1] == "robot/push" and given(collect, "--episodes") == "5"
    assert given(policy, "--data.path") == given(encoder, "--demonstrations.path") == given(collect, "--out")
    assert trials[1] == given(encoder, "--policy") == given(policy, "--out") == str(made.policy)
    assert given(encoder, "--trials") == given(trials, "--out") and given(encoder, "--out") == str(made.encoder)
    assert (given(policy, "--steps"), given(trials, "--episodes"), given(encoder, "--steps")) == ("6", "7", "8")
    for line in (policy, encoder):  # what the options name are fields of the configuration
        run = load_training(line[1])
        for option in line[2::2]:
            part = run
            for name in option.removeprefix("--").split("."):
                part = getattr(part, name)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("robot-demo no/such/policy", "no/such/policy: no such folder"),
        ("robot-demo --encoder runs/encoder", "--encoder: a context encoder belongs to a policy"),
        ("robot-demo no/such/policy --trials 0", "--trials must be in [1, 50]"),
        ("robot-demo no/such/policy --horizon 501", "--horizon must be in [1, 500]"),
        ("robot-demo no/such/policy --max-viewers 0", "--max-viewers must be in [1, 1024]"),
        ("robot-demo no/such/policy --seed -1", "--seed must be in [0"),
    ],
)
def test_wrong_options_are_one_line(line, said, capsys):
    assert cli.main(line.split()) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1
