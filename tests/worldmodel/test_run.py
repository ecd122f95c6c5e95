"""A run is a value that a Python file makes; what it cannot be is said before anything starts."""

import dataclasses

import pytest
from tiny import TinyData, tiny_run

from worldmodel.errors import UserError
from worldmodel.models.lora import LoraConfig
from worldmodel.run import Run, load

GOOD = """
from pathlib import Path
from worldmodel.models.dit import DiTConfig
from worldmodel.run import Run

def run():
    return Run(data=None, model=DiTConfig(channels=2, size=(4, 4)), out=Path("runs/x"), steps=7)
"""


BARE = """
from pathlib import Path
from worldmodel.run import Training
def run(): return Training(out=Path("runs/x"))
"""  # numbers, but nothing to train


def test_load(tmp_path):
    path = tmp_path / "my_run.py"
    path.write_text(GOOD)
    assert isinstance(load(path), Run) and load(str(path)).steps == 7


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.py", None, r"none\.py: no such configuration; a run is a Python file with a function run\(\) -> Run"),
        ("a.yaml", "steps: 3", r"a\.yaml: not a Python file"),
        ("empty.py", "", r"empty\.py: has no function run\(\) that returns a Run"),
        ("number.py", "run = 3", r"number\.py: has no function run\(\)"),
        ("other.py", "def run(): return 3", r"other\.py: has no function run\(\) that returns a Run"),
        ("bare.py", BARE, r"bare\.py: has no function run\(\) that returns a Run"),
    ],
)
def test_what_is_no_run(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def run():\n    return undefined\n", r"bad\.py:2: NameError: name 'undefined' is not defined"),
        ("x = 1\ndef run(:\n", r"bad\.py:2: SyntaxError: "),
        ("\nimport no_such_module\n", r"bad\.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("import json\ndef run():\n    x = 1\n    json.loads('{')\n", r"bad\.py:4: JSONDecodeError: "),
        ("x = 'a\0b'\n", r"bad\.py"),
        (
            "from worldmodel.optim import AdamW\ndef run():\n    return AdamW(lr=-1.0)\n",
            r"bad\.py:3: optimizer\.lr must be a finite number of at least 0, not -1\.0",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_its_place(text, message, tmp_path):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path / "bad.py")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -1}, "steps must be at least 0, not -1"),
        ({"micro": 0}, "micro must be at least 1, not 0"),
        ({"log_every": 0}, "log_every must be at least 1, not 0"),
        ({"validate": -1}, "validate must be at least 0"),
        ({"ema": 1.0}, r"ema 1\.0 must be in \[0, 1\)"),
        ({"ema": -0.1}, r"ema -0\.1 must be"),
        ({"ema": float("nan")}, "ema nan must be"),
        ({"clip_grad": float("nan")}, "clip_grad nan above 0"),
        ({"threads": 0}, r"threads must be in \[1, 1024\], not 0"),
        ({"seed": -1}, r"seed must be in \[0, 2\*\*63\), not -1"),
        ({"save_every": -1}, "save_every must be at least 0, not -1"),
        ({"clip_grad": 0.0}, r"clip_grad 0\.0 above 0"),
        ({"lora": LoraConfig()}, "lora adapts pretrained weights, which init must name"),
    ],
)
def test_bad_values(change, message, tmp_path):
    with pytest.raises(UserError, match=message):
        tiny_run(tmp_path / "run", **change)


def test_zero_means_only_at_the_end(tmp_path):
    run = tiny_run(tmp_path / "run", save_every=0, validate_every=0, sample_every=0)
    assert (run.save_every, run.validate_every, run.sample_every) == (0, 0, 0)


def test_a_run_is_frozen(tmp_path):
    run = tiny_run(tmp_path / "run")
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.steps = 3
    assert dataclasses.replace(run, steps=3).data == TinyData(folder=tmp_path / "tokenizer")
