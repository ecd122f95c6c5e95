"""The command line: every command explains itself, bad input is one line and exit code 2."""

from pathlib import Path

import pytest

from worldmodel.cli import COMMANDS, RUN_MODELS, main

ROOT = Path(__file__).parents[2]
OWN_HELP = ("train", "estimate")


@pytest.mark.parametrize("words", [["evaluate"], ["evaluate", "--help"], ["evaluate", "-h"]])
def test_a_group_lists_its_commands(words, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    commands = ("evaluate drift", "evaluate compare", "evaluate actions", "evaluate latency")
    assert all(name in printed for name in commands)
    assert "collect" not in printed


def test_overview_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name}" in printed for name in COMMANDS)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in OWN_HELP])
def test_help_has_an_example(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert f"Example: worldmodel {name}" in printed
    assert ("--backend {auto,triton" in printed) == (name.split()[0] in RUN_MODELS)


@pytest.mark.parametrize("name", OWN_HELP)
def test_help_of_commands_that_take_a_configuration(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"Example: worldmodel {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("fly", "fly"),
        ("train no/such.py", "no/such.py"),
        ("rollout no/such/model --out x.mp4", "no/such/model"),
        ("serve no/such/model", "no/such/model"),
        ("inspect no/such/data", "no/such/data"),
        ("convert no/such/videos out", "no/such/videos"),
        ("encode no/such/data --tokenizer pixels --out out", "no/such/data"),
        ("collect atlantis --out out", "atlantis"),
        ("export no/such/model out", "no/such/model"),
        ("evaluate latency no/such/model --out out", "no/such/model"),
        ("evaluate compare a=no/such/model b=no/such/model --data x --out out", "no/such/model"),
        ("evaluate compare a=x no/such/model --data x --out out", "arm 'no/such/model': give NAME=FOLDER"),
    ],
)
def test_bad_input_is_one_line_and_code_2(line, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    printed = capsys.readouterr().err
    assert named in printed and len(printed.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_configuration_that_is_none_is_named(tmp_path, capsys):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    assert main(["train", str(path)]) == 2
    assert "empty.py" in capsys.readouterr().err


def test_every_configuration_describes_a_run(monkeypatch):
    from worldmodel.run import load_training

    for path in sorted((ROOT / "configs").glob("*.py")):
        run = load_training(path)
        assert run.out.parts[0] == "runs" and run.steps > 0


@pytest.mark.parametrize(
    ("options", "lora", "init"),
    [
        ("", 64, "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"),
        ("--lora None", None, "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"),
        ("--init None --lora None --steps 3", None, None),
        ("--steps 3 --lora=None --init=None", None, None),
        ("--lora.rank 4 --init x", 4, "x"),
    ],
)
def test_options_are_turned_off(options, lora, init, monkeypatch):
    monkeypatch.setattr("worldmodel.train.train", lambda run: runs.append(run) or {})
    runs = []
    assert main(["train", str(ROOT / "configs" / "wan_1_3b.py"), *options.split()]) == 0
    assert (runs[0].lora and runs[0].lora.rank, runs[0].init) == (lora, init)
    assert runs[0].steps == (3 if "--steps" in options else 5000)


def test_what_cannot_be_turned_off(monkeypatch, capsys):
    monkeypatch.setattr("worldmodel.train.train", lambda run: {})
    assert main(["train", str(ROOT / "configs" / "wan_1_3b.py"), "--init", "None"]) == 2
    assert "lora adapts pretrained weights, which init must name" in capsys.readouterr().err
    assert main(["train", str(ROOT / "configs" / "doom.py"), "--lora", "None", "--init", "None"]) == 0  # is off
    for option in ("--data", "--model"):
        with pytest.raises(SystemExit) as stop:
            main(["train", str(ROOT / "configs" / "doom.py"), option, "None"])
        assert stop.value.code == 2
