"""One-step models in the rollout engine, and the Fourier neural operator against PyTorch's FFT."""

from dataclasses import replace

import pytest
import torch
from tiny import close

from worldmodel.chunk import ActionControl, Clip
from worldmodel.errors import UserError
from worldmodel.memory.last_frame import LastFrameConfig
from worldmodel.models.fno import FNOConfig, SpectralMix
from worldmodel.models.one_step import Apply
from worldmodel.rollout import join, replay, rollout, start
from worldmodel.sampler import Euler

CFG = FNOConfig(points=12, channels=2, width=6, modes=4, depth=2, hidden=8)


def small_fno(seed=0):
    torch.manual_seed(seed)
    return CFG.build()


def no_actions(rows, frames):
    return ActionControl(torch.zeros(rows, frames, 0), torch.zeros(rows, frames, dtype=torch.bool))


def fields(rows, frames, seed=1, points=12):
    x = torch.randn(rows, frames, 2, 1, points, generator=torch.Generator().manual_seed(seed))
    return Clip(x, no_actions(rows, frames), torch.arange(rows))


def begin(model, clip):
    return start(model, LastFrameConfig(), torch.arange(clip.batch), clip)


@pytest.mark.parametrize(("points", "modes"), [(12, 3), (12, 7), (11, 6)])
def test_spectral_mix_equals_the_fft(points, modes):
    mix = SpectralMix(points, 3, modes)
    x = torch.randn(2, points, 3)
    found = torch.fft.rfft(x, dim=1)[:, :modes]
    mixed = torch.einsum("bmi,mio->bmo", found, torch.view_as_complex(mix.weight.movedim(0, -1).contiguous()))
    close(mix(x), torch.fft.irfft(mixed, points, dim=1), 1e-6)


def test_the_operator_commutes_with_shifts_and_starts_as_a_small_change():
    model, x = small_fno(), fields(3, 1).x[:, 0]
    close(model(x.roll(5, -1)), model(x).roll(5, -1), 1e-6)
    assert 0 < (model(x) - x).abs().max() < 3
    with pytest.raises(UserError, match="7 modes, not 8"):
        FNOConfig(points=12, modes=8)


def test_a_rollout_is_the_model_applied_again_and_again():
    model, clip = small_fno(), fields(3, 2)
    made = join(rollout(model, replay(no_actions(3, 4), 1), Apply(), begin(model, clip)))
    x = clip.x[:, -1]
    for frame in made.unbind(1):
        x = model(x)
        assert torch.equal(frame, x)
    close(join(rollout(model, replay(no_actions(3, 4), 1), Euler(steps=1), begin(model, clip))), made, 1e-5)
    close(join(rollout(model, replay(no_actions(3, 4), 1), Euler(steps=3), begin(model, clip))), made, 1e-5)


def test_rows_of_a_state_are_independent():
    model, clip = small_fno(), fields(2, 1)
    state = begin(model, clip)
    forked = state.fork(2)
    made = join(rollout(model, replay(no_actions(4, 2), 1), Apply(), forked))
    alone = join(rollout(model, replay(no_actions(1, 2), 1), Apply(), state.select(torch.tensor([1]))))
    close(made[2:], alone.expand(2, -1, -1, -1, -1), 1e-6)
    memory = forked.memory
    assert (memory.batch, memory.nbytes, memory.select(torch.tensor([3, 0, 1])).batch) == (4, 0, 3)
    assert LastFrameConfig().restore(memory.tensors()).batch == 4
    idle = replace(state, active=torch.tensor([True, False]))
    *_, (_, after) = rollout(model, replay(no_actions(2, 3), 1), Apply(), idle)
    assert after.frame.tolist() == [4, 1] and torch.equal(after.last[1], clip.x[1, 0])


def test_without_a_first_frame_there_is_no_next():
    model = small_fno()
    state = start(model, LastFrameConfig(), torch.arange(2))
    with pytest.raises(ValueError, match="first frame"):
        Apply()(model, no_actions(2, 1), state)
