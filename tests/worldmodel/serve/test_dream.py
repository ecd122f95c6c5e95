from dataclasses import replace

import numpy as np
import pytest
import torch

from worldmodel.chunk import ActionControl
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig
from worldmodel.pixels import to_uint8
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler, Pipelined
from worldmodel.serve.dream import (
    NotFinite,
    advance,
    begin,
    chunk_action,
    from_footage,
    from_picture,
    from_start,
    holding,
    picture_size,
)
from worldmodel.serve.sources import Footage


def actions(chunks: int, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.rand(chunks, 4, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1)


def play(world, dream, given) -> np.ndarray:
    shown = []
    for action in given:
        pictures, dream = advance(world, world.stream.sampler, action, dream)
        shown.append(pictures.frames)
    return np.concatenate(shown)


def test_a_dream_is_the_rollout_decoded(world) -> None:
    given = actions(5)
    shown = play(world, begin(world, from_start(world, 1, 7)), given)
    control = ActionControl(torch.cat(given)[None], torch.ones(1, 20, dtype=torch.bool))
    with torch.no_grad():
        context = world.starts.select(torch.tensor([1]))
        state = start(world.dit, world.stream.memory, torch.tensor([7]), context)
        latents = join(rollout(world.dit, replay(control, 4), world.stream.sampler, state))
        expected = to_uint8(world.tokenizer.decode(latents)[0])
    assert expected.std() > 1
    assert np.array_equal(shown, expected)


def test_seed_action_and_beginning_matter(world) -> None:
    def shown(index: int, seed: int, action_seed: int) -> np.ndarray:
        return play(world, begin(world, from_start(world, index, seed)), actions(2, action_seed))

    one = shown(0, 0, 0)
    assert np.array_equal(one, shown(0, 0, 0))
    for other in (shown(1, 0, 0), shown(0, 1, 0), shown(0, 0, 1)):
        assert not np.array_equal(one, other)


def test_the_first_picture_is_the_last_of_the_beginning(painted) -> None:
    dream = begin(painted, from_start(painted, 2, 0))
    assert np.array_equal(dream.last, to_uint8(painted.starts.x[2, -1]))
    assert holding(painted, dream).frames == 8


def test_a_copy_goes_its_own_way(world) -> None:
    dream = begin(world, from_start(world, 0, 0))
    mark = dream.copy()
    one = play(world, dream, actions(4, 1))
    assert np.array_equal(one, play(world, mark.copy(), actions(4, 1)))
    assert not np.array_equal(one, play(world, mark.copy(), actions(4, 2)))
    with pytest.raises(RuntimeError, match="consumed"):
        play(world, dream, actions(1))


def test_actions_are_normalised_and_packed(painted) -> None:
    action = np.array([[8, 0, -1], [-8, 0.5, 1], [4, 1, 0], [0, 0, 0]], np.float32)
    packed = chunk_action(painted, action)
    assert torch.allclose(packed, torch.tensor([[1, 0, -1], [-1, 0.5, 1], [0.5, 1, 0], [0, 0, 0]]))
    double = replace(painted, actions=replace(painted.actions, pack=2))
    assert torch.equal(chunk_action(double, action), packed.repeat(1, 2))


def test_footage_becomes_a_beginning(painted) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    moved = np.arange(21, dtype=np.float32).reshape(7, 3) / 21
    context = from_footage(painted, Footage(pixels, moved), 5).context
    assert np.array_equal(to_uint8(context.x[0]), pixels)
    assert context.control.has_action.tolist() == [[False] + [True] * 7]
    assert torch.allclose(context.control.action[0, 1:], painted.actions.normalise(torch.from_numpy(moved)))
    with pytest.raises(UserError, match="6 latent frames is no multiple of the chunk of 4"):
        from_footage(painted, Footage(pixels[:6], None), 5)
    with pytest.raises(UserError, match="8 latent frames have 7 actions of 3"):
        from_footage(painted, Footage(pixels, moved[:6]), 5)


def test_a_picture_becomes_a_chunk_without_motion(painted) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    opening = from_picture(painted, picture, 3)
    assert opening.context.x.shape[1] == 4
    assert (opening.context.control.action == 0).all()
    assert np.array_equal(begin(painted, opening).last, picture)


def test_a_model_without_beginnings_starts_from_nothing(world) -> None:
    bare = replace(world, starts=None)
    dream = begin(bare, from_start(bare, 0, 1))
    assert holding(bare, dream).frames == 0
    given = actions(2)
    changed = [given[0].clone(), given[1]]
    changed[0][0] += 0.5  # the very first frame has no action, whatever is pressed
    assert np.array_equal(play(bare, dream, given), play(bare, begin(bare, from_start(bare, 0, 1)), changed))
    with pytest.raises(UserError, match="0 beginnings, number 1"):
        from_start(bare, 1, 0)


def test_beginnings_count_from_zero(world) -> None:
    with pytest.raises(UserError, match="3 beginnings, number 3"):
        from_start(world, 3, 0)


def test_memory_length(world) -> None:
    full = replace(world, stream=replace(world.stream, memory=FullConfig()))
    for each, expected in ((world, 12), (full, 24)):
        dream = begin(each, from_start(each, 0, 0))
        for action in actions(4):
            _, dream = advance(each, each.stream.sampler, action, dream)
        assert holding(each, dream).frames == expected


def test_a_pipelined_sampler_streams(world) -> None:
    piped = replace(world, stream=replace(world.stream, sampler=Pipelined(chunks=2, steps=4)))
    assert play(piped, begin(piped, from_start(piped, 0, 0)), actions(3)).shape == (12, 16, 16, 3)


def test_broken_values_hold_the_picture_and_rebuild_the_memory(painted) -> None:
    painted.dit.broken = (13,)  # in the second chunk after a beginning of 8
    dream, given = begin(painted, from_start(painted, 0, 0)), actions(4)
    first, dream = advance(painted, Euler(steps=1), given[0], dream)
    second, dream = advance(painted, Euler(steps=1), given[1], dream)
    assert second.held
    assert not first.held
    assert np.array_equal(second.frames, np.repeat(first.frames[-1:], 4, 0))
    assert (dream.held, dream.failing, dream.chunks) == (1, 1, 2)
    assert int(dream.state.frame[0]) == 12  # the beginning and the good chunk are remembered again
    assert int(dream.state.seed[0]) != 0  # with other noise
    painted.dit.broken = ()
    third, dream = advance(painted, Euler(steps=1), given[2], dream)
    assert not third.held
    assert (dream.held, dream.failing, dream.chunks) == (1, 0, 3)
    assert dream.opening.seed == 0


def test_values_that_stay_broken_end_the_dream(painted) -> None:
    painted.dit.broken = tuple(range(8, 40))
    dream = begin(painted, from_start(painted, 0, 0))
    for _ in range(3):
        pictures, dream = advance(painted, Euler(steps=1), actions(1)[0], dream)
        assert pictures.held
        assert np.array_equal(pictures.frames[0], to_uint8(painted.starts.x[0, -1]))
    with pytest.raises(NotFinite, match="4 chunks in a row"):
        advance(painted, Euler(steps=1), actions(1)[0], dream)


def test_poisoned_memory_is_left_behind(world) -> None:
    """Finite pictures whose memory is not: the first rebuild must not read that memory again."""
    dream = begin(world, from_start(world, 0, 0))
    _, dream = advance(world, world.stream.sampler, actions(1)[0], dream)
    dream.state.memory.values.fill_(torch.nan)
    held, dream = advance(world, world.stream.sampler, actions(1)[0], dream)
    assert held.held
    good, dream = advance(world, world.stream.sampler, actions(1)[0], dream)
    assert not good.held


def test_size_and_stages(world) -> None:
    assert picture_size(world) == (16, 16)
    pictures, _ = advance(world, world.stream.sampler, actions(1)[0], begin(world, from_start(world, 0, 0)))
    assert set(pictures.seconds) == {"sample", "remember", "decode"}
    assert min(pictures.seconds.values()) > 0


def test_a_world_without_actions_streams(painted) -> None:
    assert chunk_action(replace(painted, actions=None), np.zeros((4, 0), np.float32)).shape == (4, 0)
