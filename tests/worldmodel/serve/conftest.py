"""Two small worlds: one with random weights, and one whose pictures show the actions that it was given."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Clip
from worldmodel.memory import WindowConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiT, DiTConfig, DiTControl
from worldmodel.models.world import StreamConfig, WorldModel
from worldmodel.sampler import Euler
from worldmodel.serve.limits import Limits
from worldmodel.serve.server import background
from worldmodel.serve.studio import Studio

SPEC = ActionSpec(names=("turn", "forward", "strafe"), low=(-8.0, -1.0, -1.0), high=(8.0, 1.0, 1.0))


def randomised(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """AdaLN-Zero starts as identity: with random weights everywhere, actions and memory matter."""
    rng = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=rng)
    return module.eval().requires_grad_(False)


def starts(count: int, channels: int, size: tuple[int, int], frames: int = 8) -> Clip:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(count, frames, channels, *size, generator=rng)
    has_action = torch.ones(count, frames, dtype=torch.bool)
    has_action[:, 0] = False
    action = torch.rand(count, frames, 3, generator=rng) * 2 - 1
    return Clip(x, ActionControl(action, has_action), torch.arange(count))


def noise(seed: int = 1) -> WorldModel:
    cfg = DiTConfig(channels=4, size=(4, 4), dim=32, depth=2, heads=2, hidden=64, actions=3)
    dit = randomised(cfg.build(), seed)
    tokenizer = randomised(AutoencoderConfig(channels=4, widths=(8, 16), blocks=(1, 1)).build(), 2)
    stream = StreamConfig(memory=WindowConfig(sink=1, ring=11), sampler=Euler(steps=2))
    return WorldModel(dit, tokenizer, SPEC, 24.0, stream, starts(3, 4, (4, 4)), {"title": "noise"})


@pytest.fixture
def world() -> WorldModel:
    """Random weights; pictures of 16 x 16, chunks of 4."""
    return noise()


class Plain(torch.nn.Module):
    """A tokenizer that does nothing: a latent is a picture."""

    channels, spatial, temporal = 3, 1, 1

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return latents.clamp(-1, 1)

    def decode_stream(self, latents: torch.Tensor, state: object) -> tuple[torch.Tensor, tuple]:
        return self.decode(latents), ()


class Painted(DiT):
    """Every pixel of a frame is its action: red turn, green forward, blue strafe, each from -1 to 1.

    `broken` frames are always NaN, `glitches` only when they are made for the first time.
    """

    broken: tuple[int, ...] = ()
    glitches: frozenset[int] = frozenset()

    def prepare(self, control: DiTControl, state) -> Any:
        assert isinstance(control, ActionControl)
        return control.action, state.frame

    def velocity(self, x_t: torch.Tensor, t: torch.Tensor, prepared: Any) -> torch.Tensor:
        action, frame = prepared
        goal = action[..., None, None].expand_as(x_t).clone()
        for i in range(x_t.shape[1]):
            index = int(frame[0]) + i
            if index in self.broken or index in self.glitches:
                goal[:, i] = torch.nan
                self.glitches -= {index}
        return (x_t - goal) / t[..., None, None, None]

    def remember(self, chunk, state, time: float = 0.0):
        keys = chunk.x.new_zeros(2, 1, 2, chunk.x.shape[1] * 4, 16)
        keep = torch.ones(1, chunk.x.shape[1], dtype=torch.bool)
        return state.memory.append(keys, keys, chunk.start, keep, self.rope)


@pytest.fixture
def painted() -> WorldModel:
    """The world that shows its actions; pictures of 32 x 32."""
    cfg = DiTConfig(channels=3, size=(32, 32), patch=16, dim=32, depth=2, heads=2, hidden=64, actions=3)
    dit = Painted(cfg).eval().requires_grad_(False)
    stream = StreamConfig(memory=WindowConfig(ring=12), sampler=Euler(steps=1))
    beginnings = starts(3, 3, (32, 32))
    beginnings = Clip(beginnings.x.clamp(-1, 1) * 0.1, beginnings.control, beginnings.index)
    return WorldModel(dit, Plain(), SPEC, 24.0, stream, beginnings, {"title": "paint"})


@pytest.fixture
def base() -> WorldModel:
    """Another model of the same format, without beginnings of its own."""
    return replace(noise(7), starts=None)


Serve = Callable[..., AbstractContextManager[tuple[str, Studio]]]


@pytest.fixture
def serving() -> Serve:
    """serving(world, limits, token, real=, ..., **also) runs a server; gives its address and its studio."""

    return serve_for_a_test


@contextmanager
def serve_for_a_test(
    world, limits=None, token=None, *, real=None, recordings=None, port=0, **also
) -> Iterator[tuple[str, Studio]]:
    studio = Studio(world, limits or Limits(), also=also, real=real, recordings=recordings)
    with background(studio, token=token, port=port) as address:
        yield address, studio


@pytest.fixture(scope="module")
def standing() -> Iterator[tuple[str, Studio]]:
    """Address and studio of one server with the random world, for tests that leave it as it was."""
    with serve_for_a_test(noise(), Limits(requests=3)) as both:
        yield both
