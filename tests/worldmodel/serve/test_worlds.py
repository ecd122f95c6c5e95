"""Which models can be driven by the same keys."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Plain, noise

from worldmodel.actions import ActionSpec
from worldmodel.cli.worlds import _named
from worldmodel.errors import UserError
from worldmodel.serve.limits import Limits
from worldmodel.serve.studio import Studio
from worldmodel.serve.worlds import Worlds


def test_all_have_the_beginnings_of_the_first(world, base) -> None:
    worlds = Worlds.of({"forced": world, "base": base})
    assert (worlds.first_name, list(worlds.named)) == ("forced", ["forced", "base"])
    assert worlds.find("base").starts is world.starts and worlds.find("base").dit is base.dit


def shifted(tokenizer):
    tokenizer.decoder[0].bias[0] += 1e-3
    return tokenizer


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda w: replace(w, fps=12.0), "frame rate 24.0 and 12.0"),
        (lambda w: replace(w, actions=replace(w.actions, low=(-9.0, -1.0, -1.0))), "range of actions .*-8.* and .*-9"),
        (lambda w: replace(w, actions=ActionSpec(names=("a",), low=(0,), high=(1,))), "actions .*turn.* and .*'a'"),
        (lambda w: replace(w, actions=None), "actions .*turn.* and none"),
        (lambda w: replace(w, tokenizer=Plain()), r"picture size \[16, 16\] and \[4, 4\]"),
        (lambda w: replace(w, tokenizer=shifted(w.tokenizer)), "tokenizer [0-9a-f]{32} and [0-9a-f]{32}"),
    ],
)
def test_another_format_is_one_line_that_names_both(world, change, text) -> None:
    with pytest.raises(UserError, match=f"'one' and 'two' cannot be driven by the same keys: .*{text}") as error:
        Worlds.of({"one": world, "two": change(noise(7))})
    assert "\n" not in str(error.value)


def test_names_are_checked(world, base) -> None:
    for name in ("", " base", "a\nb", "x" * 41):
        with pytest.raises(UserError, match="use 1 to 40 printable characters"):
            Worlds.of({"forced": world, name: base})
    with pytest.raises(UserError, match="two worlds have the name 'base'"):
        Studio(world, Limits(), name="base", also={"base": base})


def test_names_on_the_command_line() -> None:
    also = ("base=runs/a", "runs/b/model", "runs/lr=3/c")
    expected = {"base": Path("runs/a"), "b": Path("runs/b/model"), "c": Path("runs/lr=3/c")}
    assert _named("forced", also) == expected
    for twice in (("forced=x",), ("a=x", "a=y"), ("runs/forced/model",)):
        with pytest.raises(UserError, match=f"--also {twice[-1]}: another model has the name"):
            _named("forced", twice)
