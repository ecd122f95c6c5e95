import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from worldmodel.errors import UserError
from worldmodel.serve.dream import from_start
from worldmodel.serve.replay import Deed, Replay, fingerprint, play, read_replay, write_replay


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


def test_fingerprint_sees_every_weight(world) -> None:
    before = fingerprint(world)
    assert before == fingerprint(world)
    world.tokenizer.decoder[0].bias[1] += 1e-3
    assert fingerprint(world) != before


def test_another_model_is_refused(world) -> None:
    data = write_replay(world, some(world))
    world.dit.patch_out.bias[0] += 1
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
        ({"facts": {"seed": "7"}}, "with steps and a seed"),
        ({"actions": None}, "with steps and a seed"),
        ({"actions": torch.zeros(4, 4, 2)}, "with steps and a seed"),
        ({"actions": torch.full((4, 4, 3), torch.nan)}, "that no stream had"),
        ({"steps": torch.full((4,), 1000)}, "that no stream had"),
        ({"x": torch.zeros(1, 7, 4, 4, 4)}, "its opening has shape"),
        ({"x": torch.zeros(1, 8, 4, 4, 5)}, "its opening has shape"),
        ({"x": torch.zeros(3)}, "its opening has shape"),
        ({"has_action": None}, "no actions"),
        ({"action": torch.zeros(1, 8, 5)}, "its opening has shape"),
    ],
    ids=str,
)
def test_broken_content_is_refused(world, change: dict, text: str) -> None:
    data = edited(write_replay(world, some(world)), **change)
    with pytest.raises(UserError, match=text):
        read_replay(world, data)
