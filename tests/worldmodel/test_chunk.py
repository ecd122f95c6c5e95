"""Clips, chunks and controls are cut, picked and moved without loss."""

import dataclasses

import pytest
import torch

from worldmodel.chunk import ActionControl, Chunk, Clip


def clip(rows=3, frames=6, text=True):
    x = torch.arange(rows * frames, dtype=torch.float32).reshape(rows, frames, 1, 1, 1)
    action = x.reshape(rows, frames, 1) + 0.5
    has_action = (torch.arange(frames) > 0).expand(rows, -1)
    words = torch.arange(rows, dtype=torch.float32).reshape(rows, 1, 1).expand(rows, 2, 4) if text else None
    return Clip(x, ActionControl(action, has_action, words), torch.arange(rows) + 100)


def test_chunks_cut_the_clip():
    whole = clip()
    parts = list(whole.chunks(2))
    assert torch.equal(torch.cat([p.x for p in parts], 1), whole.x)
    assert torch.equal(torch.cat([p.control.action for p in parts], 1), whole.control.action)
    assert torch.equal(torch.cat([p.control.has_action for p in parts], 1), whole.control.has_action)
    assert [p.start.tolist() for p in parts] == [[0] * 3, [2] * 3, [4] * 3]
    assert all(p.executed.tolist() == [2] * 3 and p.executed.dtype == torch.int64 for p in parts)
    assert all(p.control.text is whole.control.text for p in parts)  # a text belongs to every chunk
    with pytest.raises(ValueError, match="6 frames does not cut into chunks of 4"):
        list(whole.chunks(4))


def test_select_and_frames():
    whole, rows = clip(), torch.tensor([2, 0, 2])
    picked = whole.select(rows)
    assert picked.batch == picked.control.batch == 3
    assert picked.index.tolist() == [102, 100, 102] and torch.equal(picked.x, whole.x[rows])
    assert torch.equal(picked.control.text, whole.control.text[rows])
    part = whole.frames(1, 3)
    assert torch.equal(part.x, whole.x[:, 1:3]) and part.control.length == 2
    assert torch.equal(part.index, whole.index)
    assert clip(text=False).select(rows).control.text is None


def test_drop_takes_the_actions_of_its_rows_and_nothing_else():
    control = clip().control
    rows = torch.arange(control.batch) == 1
    dropped = control.drop(rows)
    assert not dropped.has_action[1].any() and torch.equal(dropped.has_action[~rows], control.has_action[~rows])
    assert torch.equal(dropped.action, control.action) and dropped.text is control.text
    assert control.has_action[~rows].any() and control.has_action[1].any()


def test_to_and_whole():
    moved = clip().to("meta")
    assert {t.device.type for t in (moved.x, moved.index, moved.control.action, moved.control.text)} == {"meta"}
    assert clip(text=False).control.to("meta").text is None
    chunk = Chunk.whole(torch.zeros(2, 5, 1, 1, 1), clip().control, torch.tensor([7, 8]))
    assert chunk.executed.tolist() == [5, 5]


def test_values_are_frozen():
    whole = clip()
    for value in (whole, whole.control, next(whole.chunks(2))):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)
        assert not hasattr(value, "__dict__")
