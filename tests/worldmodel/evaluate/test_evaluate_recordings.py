"""Excerpts of recordings, and their control: a latent frame carries what was done since the one before it."""

from dataclasses import replace

import numpy as np
import panorama
import pytest
import torch

from worldmodel.actions import ActionSpec
from worldmodel.errors import UserError
from worldmodel.evaluate.continuation import beginning, context_frames, continuations, following, whole_chunks
from worldmodel.evaluate.recordings import (
    ArrayRecordings,
    Recording,
    Subset,
    check_fit,
    clip_of,
    control_of,
    cut,
    excerpts,
    onward_actions,
)
from worldmodel.sampler import Euler, Pipelined


def numbered(lengths=(30, 12, 40)):
    """Frames and actions that say where they are from: pixel value = frame, action = 100 * episode + frame."""
    made = []
    for episode, length in enumerate(lengths):
        pixels = np.zeros((length, 8, 8, 3), np.uint8) + np.arange(length, dtype=np.uint8)[:, None, None, None]
        actions = (100 * episode + np.arange(length, dtype=np.float32))[:, None]
        made.append(Recording(pixels, actions, np.arange(length, dtype=float)[:, None]))
    return ArrayRecordings(tuple(made), ("place",), ("frame",))


def test_excerpts_are_what_they_say():
    pieces = excerpts(numbered(), length=10, count=7, seed=3)
    assert pieces.pixels.shape == (7, 10, 8, 8, 3)
    for row in range(7):
        episode, start = int(pieces.episode[row]), int(pieces.start[row])
        assert pieces.pixels[row, :, 0, 0, 0].tolist() == list(range(start, start + 10))
        assert pieces.actions[row, :, 0].tolist() == [100 * episode + start + i for i in range(10)]
        assert pieces.before[row, 0] == (100 * episode + start - 1 if start else 0)
        assert pieces.first[row] == (start == 0)
        assert pieces.state[row, 0, 0] == start


def test_excerpts_are_spread_over_episodes_and_repeat():
    pieces = excerpts(numbered(), length=10, count=9)
    assert sorted(np.bincount(pieces.episode).tolist()) == [3, 3, 3]
    assert len(set(excerpts(numbered(), 10, 9, episodes=2).episode.tolist())) == 2
    again, other = excerpts(numbered(), 10, 9), excerpts(numbered(), 10, 9, seed=1)
    assert (again.start == pieces.start).all()
    assert (other.start != pieces.start).any()
    for episode in (0, 2):
        starts = np.sort(pieces.start[pieces.episode == episode])
        assert (np.diff(starts) > 0).all()


def test_short_episodes_are_left_out_or_named():
    assert set(excerpts(numbered(), 20, 6).episode.tolist()) == {0, 2}
    with pytest.raises(UserError, match="no held-out episode has 41 frames; the longest of 3 has 40"):
        excerpts(numbered(), 41, 2)
    with pytest.raises(UserError, match="episode 1 has 12 frames, none from 5 to 15"):
        cut(numbered(), [(1, 5)], 10)
    with pytest.raises(UserError, match="at least 1"):
        excerpts(numbered(), 10, 0)


def test_subset():
    part = Subset(numbered(), (2, 1))
    assert part.lengths == (40, 12)
    assert part.read(0, 3, 5).actions[:, 0].tolist() == [203, 204]
    assert (part.action_names, part.state_names) == (("place",), ("frame",))


def test_onward_actions_go_on_in_the_next_episode():
    recordings = numbered((6, 4, 5))
    pieces = cut(recordings, [(1, 1), (2, 0)], 3)
    found = onward_actions(recordings, pieces, 9)[..., 0].tolist()
    assert found == [[101, 102, 103, 200, 201, 202, 203, 204, 0], [200, 201, 202, 203, 204, 0, 1, 2, 3]]


def test_control_is_the_action_that_led_to_the_frame():
    world = panorama.world()
    actions = np.array([[1.0, -3, 2, 3]], np.float32)[..., None]
    control = control_of(world, actions, np.array([[-1.5]], np.float32), np.array([False]))
    assert control.action[0, :, 0].tolist() == pytest.approx([-0.5, 1 / 3, -1, 2 / 3])
    assert control.has_action.all()
    beginning_of_episode = control_of(world, actions, np.zeros((1, 1), np.float32), np.array([True]))
    assert beginning_of_episode.has_action.tolist() == [[False, True, True, True]]


class Causal(torch.nn.Module):
    channels, spatial, temporal = 3, 1, 4


def test_control_of_a_temporal_tokenizer_packs_and_masks_the_first():
    spec = ActionSpec(names=("a", "b"), low=(-1.0, -10.0), high=(1.0, 10.0), pack=4)
    world = replace(panorama.world(), tokenizer=Causal(), actions=spec)
    actions = np.stack((np.arange(9) / 10, np.arange(9)), 1).astype(np.float32)[None]  # 9 frames: latents 0, 1-4, 5-8
    control = control_of(world, actions, np.full((1, 2), 0.5, np.float32), np.array([False]))
    assert control.has_action.tolist() == [[False, True, True]]
    expected = [v for i in range(4, 8) for v in (i / 10, i / 10)]
    assert control.action[0, 2].tolist() == pytest.approx(expected)
    with pytest.raises(UserError, match="takes 1 \\+ a multiple of 4"):
        control_of(world, actions[:, :8], np.zeros((1, 2), np.float32), np.array([False]))


def test_clip_of_encodes_the_pixels():
    pieces = excerpts(panorama.recordings(), 8, 3)
    clip = clip_of(panorama.world(), pieces)
    assert clip.x.shape == (3, 8, 3, 32, 32)
    assert clip.control.length == 8
    torch.testing.assert_close(clip.x[1, 2, 0], torch.from_numpy(pieces.pixels[1, 2, ..., 0]) / 127.5 - 1)


def test_check_fit_names_what_does_not():
    world, good = panorama.world(), panorama.recordings(2, 10)
    check_fit(world, good)
    with pytest.raises(UserError, match=r"actions \['turn'\], the model takes \['pan'\]"):
        check_fit(world, replace(good, action_names=("turn",)))
    small = replace(good, episodes=tuple(Recording(e.pixels[:, :16, :16], e.actions) for e in good.episodes))
    with pytest.raises(UserError, match="16 x 16 pixels, the model makes 32 x 32"):
        check_fit(world, small)
    with pytest.raises(UserError, match="no held-out recordings"):
        check_fit(world, replace(good, episodes=()))
    packed = replace(world, actions=replace(world.actions, pack=2))
    with pytest.raises(UserError, match="packs 2 actions into a latent frame of 1"):
        check_fit(packed, good)


@pytest.mark.parametrize("sampler", [Euler(steps=1), Euler(steps=3), Pipelined(chunks=2, steps=2)])
def test_an_exact_model_continues_as_recorded(sampler):
    world = panorama.with_sampler(panorama.world(), sampler)
    pieces = excerpts(panorama.recordings(), 20, 3)
    begin = context_frames(world, 2)
    assert (begin, whole_chunks(world, 9)) == (8, 3)
    control = following(world, pieces, 2, pieces.actions)
    made = continuations(world, beginning(world, pieces, 2), control, seed=0)
    if isinstance(
        sampler, Pipelined
    ):  # a memory of one position cannot serve chunks in flight: only the first is exact
        assert np.abs(made[:, :4].astype(int) - pieces.pixels[:, begin : begin + 4]).max() <= 1
    else:
        assert np.abs(made.astype(int) - pieces.pixels[:, begin:]).max() <= 1


def test_rows_do_not_depend_on_their_batch(monkeypatch):
    world = panorama.world(jitter=20)
    pieces = excerpts(panorama.recordings(), 16, 5)
    context, control = beginning(world, pieces, 1), following(world, pieces, 1, pieces.actions)
    told = []
    whole = continuations(world, context, control, seed=4, progress=told.append)
    assert sum(told) == 5 * 12
    monkeypatch.setattr("worldmodel.evaluate.continuation.ROWS", 2)
    assert (continuations(world, context, control, seed=4) == whole).all()
    rows = torch.tensor([3, 1])
    assert (continuations(world, context.select(rows), control.select(rows), seed=4) == whole[[3, 1]]).all()
    assert (continuations(world, context, control, seed=5) != whole).any()
