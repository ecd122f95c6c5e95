"""What a stream says that its memory holds: the ledger's frames, named by the pictures that showed them."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from talk import fast
from torch import Tensor

from worldmodel.chunk import Clip
from worldmodel.memory import (
    FullConfig,
    Holding,
    Inspectable,
    LastFrameConfig,
    MemoryConfig,
    RetrievalConfig,
    SlowFastConfig,
    SlowFastMemory,
)
from worldmodel.models.world import WorldModel
from worldmodel.pixels import to_uint8
from worldmodel.sampler import Euler
from worldmodel.serve.client import Client, Frame
from worldmodel.serve.dream import Dream, advance, ago, begin, chunk_action, from_start, holding
from worldmodel.serve.protocol import Bookmark, Pause, Restart
from worldmodel.serve.replay import Deed
from worldmodel.serve.stream import Stream
from worldmodel.serve.worlds import Worlds


def remembering(world: WorldModel, memory: MemoryConfig) -> WorldModel:
    return replace(world, stream=replace(world.stream, memory=memory))


REST = torch.zeros(4, 3)


def dreams(world: WorldModel, count: int) -> list[Dream]:
    """The stream that nobody drives, at its beginning and after each chunk."""
    found = [begin(world, from_start(world, 0, 0))]
    for _ in range(count):
        found.append(advance(world, world.stream.sampler, REST, found[-1])[1])
    return found


def slow(dream: Dream) -> list[int]:
    assert isinstance(dream.state.memory, SlowFastMemory)
    return sorted(g for g in dream.state.memory.ledger.slow[0].tolist() if g >= 0)


@pytest.mark.parametrize("given", [SlowFastConfig(sink=1, slow=3, fast=5, every=2, surprise=0.9), None])
def test_a_stream_says_what_its_ledger_holds(world, serving, given: SlowFastConfig | None) -> None:
    """Beginnings have 8 frames, the last of them is picture 0: frame g is picture g - 7. None: retrieval memory."""
    chosen = remembering(world, given or RetrievalConfig(sink=1, bank=4, read=2, ring=5, every=3))
    expected = {}  # what is held after each chunk, by the newest picture
    for chunk, dream in enumerate(dreams(chosen, 9)):
        expected[4 * chunk] = [g - 7 for g in slow(dream)]
    assert len({tuple(held) for held in expected.values()}) > 3
    with serving(chosen) as (address, _), Client(address, fast()) as client:
        said, seen = {}, 0
        while seen < 36:
            received = client.receive()
            if isinstance(received, Frame):
                seen = received.header.index
            elif received["type"] == "memory":
                assert received == client.memory
                said[received["index"]] = received
        stats = client.message("stats")
    told = {newest: message for newest, message in said.items() if newest in expected}  # what was overtaken is not said
    assert len({tuple(message["slow"]) for message in told.values()}) > 2
    for newest, message in told.items():
        held = expected[newest]
        assert message["slow"] == held
        assert (message["stream"], message["pictures"], message["sink"], message["ring"]) == (1, 1, 1, 5)
        read = set(message["read"])
        assert read == set(held) if given else (len(read) == min(2, len(held)) and read <= set(held))
        assert message["places"] == (3 if given else 4)
    assert (stats["sink"], stats["ring"], stats["memory"]) == (1, 5, 6 + len(stats["slow"]))
    assert len(stats["slow"]) in range(1, 5)


def test_other_memories_choose_nothing(world, serving) -> None:
    full, last = (remembering(world, memory) for memory in (FullConfig(), LastFrameConfig()))
    assert holding(world, dreams(world, 4)[-1]) == Holding(1, ring=11)
    grown = dreams(full, 4)[-1]
    assert holding(full, grown) == Holding(ring=24)
    silent = last.dit.empty_memory(last.stream.memory, 1)
    assert not isinstance(silent, Inspectable)
    assert holding(last, replace(grown, state=replace(grown.state, memory=silent))) == Holding()
    with serving(world) as (address, _), Client(address, fast()) as client:
        assert len(list(islice(client.frames(), 41))) == 41
        stats = client.message("stats")
        assert (stats["sink"], stats["slow"], stats["ring"], stats["memory"]) == (1, [], 11, 12)
        assert client.memory is None


class Doubled(torch.nn.Module):
    """A tokenizer whose latent frames are two equal pictures each, the very first one."""

    channels, spatial, temporal = 3, 1, 2

    def decode_stream(self, latents: Tensor, state: object) -> tuple[Tensor, tuple]:
        pixels = latents.clamp(-1, 1).repeat_interleave(2, 1)
        return (pixels[:, 1:] if state is None else pixels), ()


def test_the_named_picture_shows_the_frame(painted) -> None:
    """Also where a latent frame is two pictures, and after the memory was rebuilt from good chunks or the beginning."""
    world = remembering(painted, SlowFastConfig(sink=0, slow=6, fast=4, every=2))
    world = replace(world, tokenizer=Doubled())
    generator = torch.Generator().manual_seed(1)
    stream = Stream(Worlds({"paint": world}), "paint", 100)
    stream.open(from_start(world, 0, 0), "start", 0)
    shown = [stream.now.last]  # pictures by index
    latents = list(_clip(world).x[0])  # by their number in the memory
    checked = 0
    for chunk in range(16):
        world.dit.broken = tuple(range(100)) if chunk in (3, 5, 10, 11) else ()
        action = chunk_action(world, torch.rand(4, 3, generator=generator).numpy() * 2 - 1)
        before = stream.now
        _, pictures = stream.advance(Deed(action, 0))
        shown.extend(pictures.frames)
        now = stream.now
        assert pictures.held == bool(world.dit.broken)
        if now.failing == 1:
            latents = [frame for each in before.recent for frame in each.x[0]]
        elif now.failing == 2:
            latents = list(_clip(world).x[0])
        else:
            latents.extend(now.recent[-1].x[0])
        message = stream.memory(1, len(shown))
        assert (message.index, message.pictures, message.places) == (len(shown) - 1, 2, 6)
        for frame, index in zip(slow(now), message.slow, strict=True):
            if index >= 0:
                assert np.array_equal(shown[index], to_uint8(latents[frame])), (chunk, frame, index)
                checked += 1
    assert checked > 40


def test_a_beginning_is_named_by_pictures_before_the_first(painted) -> None:
    world = remembering(painted, SlowFastConfig(sink=0, slow=6, fast=4, every=2))
    world.dit.broken = (8, 9, 10, 11)
    dream = begin(world, from_start(world, 0, 0))
    assert [ago(world, dream, g) for g in (0, 7)] == [7, 0]
    for held in range(1, 4):  # again and again from the beginning
        dream = advance(world, Euler(steps=1), REST, dream)[1]
        assert [ago(world, dream, g) for g in (0, 7)] == [7 + 4 * held, 4 * held]
    world.dit.broken = ()
    dream = advance(world, Euler(steps=1), REST, dream)[1]
    assert [ago(world, dream, g) for g in (0, 7, 8, 11)] == [7 + 16, 16, 3, 0]


def _clip(world: WorldModel) -> Clip:
    assert world.starts is not None
    return world.starts.select(torch.tensor([0]))


def test_a_new_stream_and_a_bookmark_say_it_anew(painted, serving) -> None:
    """Keys of zeros are always surprising: every fourth frame that has left the ring is held."""
    world = remembering(painted, SlowFastConfig(sink=1, slow=3, fast=4, every=4))
    with serving(world) as (address, _), Client(address, fast(window=4, paused=True)) as client:
        first = client.message("memory")
        assert first | {"type": "memory", "stream": 1, "index": 0, "slow": [], "ring": 4, "places": 3} == first
        client.send(Bookmark())
        client.message("notice")
        client.send(Pause(on=False))
        while not (client.memory and len(client.memory["slow"]) == 3):
            client.receive()
        newest = client.memory
        assert newest["slow"] == [newest["index"] - at for at in (15, 11, 7)]
        client.send(Restart(source="bookmark"))
        client.message("started")
        assert client.memory is None
        again = client.message("memory")
        assert again["stream"] == 2
        assert len(again["slow"]) <= len(newest["slow"])
        assert all(index < again["index"] for index in again["slow"])
