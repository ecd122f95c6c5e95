"""Which arms are understood, and which models compare."""

from dataclasses import replace
from typing import Any

import panorama
import pytest
import torch
from known_worlds import WORLDS

from worldmodel.errors import UserError
from worldmodel.evaluate.compare import Arm, parse_arms
from worldmodel.evaluate.compare.arms import check_same

ARMS = (Arm("noisy", ("n0", "n1")), Arm("exact", ("e0", "e1")))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("base", "b=y"), "arm 'base': give NAME=FOLDER"),
        (("=x", "b=y"), "arm '=x': give NAME=FOLDER"),
        (("a=x,,y", "b=y"), "arm 'a=x,,y': give NAME=FOLDER"),
        (("a=x", "a=y"), "arm 'a' is named twice"),
        (("a=x,y", "b=z,w/../z"), "arm 'b=z,w/../z': names a folder twice"),
        (("a=x",), "arms given: 1; 2 or more are needed"),
        (("a/b=x", "c=y"), "holds no '/'"),
        (("recorded=x", "c=y"), "is not 'recorded'"),
    ],
)
def test_bad_arms(texts, message):
    with pytest.raises(UserError, match=message):
        parse_arms(texts)


def test_a_run_and_the_model_that_it_made_are_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    with pytest.raises(UserError, match="names a folder twice"):
        parse_arms(("a=x,y", f"b={tmp_path},{tmp_path}/model"))


def test_arms_keep_their_order():
    assert parse_arms(("base=x, y", "new=z")) == (Arm("base", ("x", "y")), Arm("new", ("z",)))


def other(**changes: Any) -> Any:
    return lambda folder: replace(WORLDS["e1"], **changes) if folder == "e1" else WORLDS[folder]


def test_what_does_not_compare():
    with pytest.raises(UserError, match=r"e1 \(arm 'exact'\) has another frame rate than n0: 30.0, not 12.0"):
        check_same(ARMS, other(fps=30.0))
    spec = replace(WORLDS["e1"].actions, names=("tilt",))
    with pytest.raises(UserError, match=r"has another kind of actions than n0: \['tilt'\], 1 .*, not \['pan'\], 1"):
        check_same(ARMS, other(actions=spec))
    with pytest.raises(UserError, match=r"has another kind of actions than n0: none, not \['pan'\]"):
        check_same(ARMS, other(actions=None))
    tokenizer: Any = panorama.PixelTokenizer(panorama.PixelTokenizerConfig())
    tokenizer.extra = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match=r"e1 \(arm 'exact'\) has another tokenizer"):
        check_same(ARMS, other(tokenizer=tokenizer))


def test_models_may_normalise_actions_in_their_own_ways():
    spec = replace(WORLDS["e1"].actions, low=(-9.0,))
    assert check_same(ARMS, other(actions=spec)) is WORLDS["n0"]
