import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from worldmodel.errors import UserError
from worldmodel.sampler import Pipelined
from worldmodel.serve.dream import from_start
from worldmodel.serve.replay import Deed, Replay, play, read_replay, write_replay


def some(world, chunks: int = 4, index: int = 1) -> Replay:
    rng = torch.Generator().manual_seed(0)
    deeds = [Deed(torch.rand(4, 3, generator=rng) * 2 - 1, steps) for steps in (0, 3, 3, 1)[:chunks]]
    return Replay(from_start(world, index, 11), tuple(deeds))


def shown(world, replay: Replay) -> np.ndarray:
    return np.concatenate([pictures.frames for pictures in play(world, replay)])


def edited(data: bytes, facts: dict | None = None, **tensors: torch.Tensor | None) -> bytes:
    """A replay file with other facts or tensors (None removes one)."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    metadata = {"replay": json.dumps(json.loads(header["replay"]) | (facts or {}))}
    values = {name: value for name, value in (load(data) | tensors).items() if value is not None}
    return save(values, metadata)


@pytest.mark.parametrize("starts", [True, False])
def test_a_file_makes_the_stream_again(world, starts: bool) -> None:
    world = world if starts else replace(world, starts=None)
    original = some(world, index=1 if starts else 0)
    again = read_replay(world, write_replay(world, original))
    assert again.opening.seed == 11
    assert [deed.steps for deed in again.deeds] == [0, 3, 3, 1]
    assert np.array_equal(shown(world, again), shown(world, original))


def test_an_empty_stream(world) -> None:
    assert read_replay(world, write_replay(world, some(world, 0))).deeds == ()


def test_steps_matter(world) -> None:
    one = some(world, 2)
    other = Replay(one.opening, (one.deeds[0], Deed(one.deeds[1].action, 1)))
    assert not np.array_equal(shown(world, one), shown(world, other))


@pytest.mark.parametrize("part", ["transformer", "tokenizer"])
def test_another_model_is_refused(world, part: str) -> None:
    data = write_replay(world, some(world))
    module = world.dit.patch_out if part == "transformer" else world.tokenizer.decoder[0]
    module.bias[0] += 1e-3
    with pytest.raises(UserError, match="another model"):
        read_replay(world, data)


def test_other_stream_settings_are_refused(world) -> None:
    data = write_replay(world, some(world))
    with pytest.raises(UserError, match="other stream settings"):
        read_replay(replace(world, stream=replace(world.stream, context_time=0.1)), data)


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(world, cut: int) -> None:
    with pytest.raises(UserError, match="not a whole replay file"):
        read_replay(world, write_replay(world, some(world))[:cut])


@pytest.mark.parametrize(
    "data", [b"x" * 400, save({"a": torch.zeros(1)}), save({"a": torch.zeros(1)}, {"replay": "[]"})]
)
def test_other_files_are_refused(world, data: bytes) -> None:
    with pytest.raises(UserError, match=r"not a (whole )?replay file"):
        read_replay(world, data)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"facts": {"format": 2}}, "format 2 is newer"),
        ({"facts": {"format": "x"}}, "format 'x' is none"),
        ({"facts": {"format": None}}, "format None is none"),
        ({"facts": {"format": True}}, "format True is none"),
        ({"facts": {"format": 0}}, "format 0 is none"),
        ({"facts": {"seed": "7"}}, "seed '7' is none"),
        ({"facts": {"seed": None}}, "seed None is none"),
        ({"facts": {"seed": -1}}, "seed -1 is none"),
        ({"facts": {"seed": 2**63}}, "seed 9223372036854775808 is none"),
        ({"facts": {"seed": 10**30}}, "is none, it is a whole number"),
        ({"actions": None}, "'actions' is missing"),
        ({"actions": torch.zeros(4, 4, 2)}, r"'actions' is F32 \[4, 4, 2\], it should be F32 \[4, 4, 3\]"),
        ({"actions": torch.zeros(3, 4, 3)}, "'actions' is F32"),
        ({"actions": torch.zeros(4, 4, 3).to(torch.float8_e4m3fn)}, "'actions' is F8_E4M3"),
        ({"actions": torch.zeros(4, 4, 3, dtype=torch.complex64)}, "'actions' is C64"),
        ({"actions": torch.full((4, 4, 3), torch.nan)}, "'actions' holds values that no stream had"),
        ({"actions": torch.full((4, 4, 3), 1.6)}, "'actions' holds values that no stream had"),
        ({"steps": None}, "'actions' is F32"),
        ({"steps": torch.full((4,), 1000)}, "no stream had so many"),
        ({"steps": torch.full((4,), -1)}, "no stream had so many"),
        ({"steps": torch.tensor(4)}, "'steps' has shape"),
        ({"steps": torch.ones(4)}, "'steps' is F32"),
        ({"steps": torch.ones(4, 1, dtype=torch.int64)}, "'steps' has shape"),
        ({"other": torch.ones(4)}, "a tensor 'other', which no replay has"),
        ({"x": None}, "a tensor 'action', which no replay has"),
        ({"x": torch.zeros(2, 8, 4, 4, 4)}, "its opening has shape"),
        ({"x": torch.zeros(1, 0, 4, 4, 4)}, "its opening has shape"),
        ({"x": torch.zeros(1, 8, 4, 4, 4, dtype=torch.bool)}, "'x' is BOOL"),
        ({"x": torch.full((1, 8, 4, 4, 4), torch.nan)}, "'x' holds values"),
        ({"x": torch.full((1, 8, 4, 4, 4), 1e30)}, "'x' holds values"),
        ({"action": torch.full((1, 8, 3), torch.inf)}, "'action' holds values"),
        ({"has_action": torch.ones(1, 8)}, "'has_action' is F32"),
        ({"has_action": torch.full((1, 8), 2, dtype=torch.uint8).view(torch.bool)}, "neither true nor false"),
        ({"x": torch.zeros(1, 7, 4, 4, 4)}, "its opening has shape"),
        ({"x": torch.zeros(1, 8, 4, 4, 5)}, "its opening has shape"),
        ({"x": torch.zeros(3)}, "its opening has shape"),
        ({"has_action": None}, "'has_action' is missing"),
        ({"action": torch.zeros(1, 8, 5)}, "'action' is F32"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_broken_content_is_refused(world, change: dict, text: str) -> None:
    data = edited(write_replay(world, some(world)), **change)
    with pytest.raises(UserError, match=text) as refused:
        read_replay(world, data)
    assert "\n" not in str(refused.value)


def test_steps_that_the_sampler_has_not_are_refused(world) -> None:
    staggered = replace(world, stream=replace(world.stream, sampler=Pipelined(chunks=2, steps=4)))
    data = edited(write_replay(staggered, some(staggered)), steps=torch.tensor([0, 2, 3, 4]))
    with pytest.raises(UserError, match="3 steps do not divide"):
        read_replay(staggered, data)


def test_metadata_that_no_reader_takes_is_refused(world) -> None:
    for facts in ("[" * 100_000, '{"kind": "replay", "seed": ' + "9" * 5000 + "}", "7"):
        with pytest.raises(UserError, match=r"not a (whole )?replay file"):
            read_replay(world, save({"a": torch.zeros(1)}, {"replay": facts}))
