"""Two worlds of one server under the same keys: what a switch shows is what a stream of that world alone shows."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from talk import HELLO, fast, get, last_words
from test_stream_resume import cut, resuming

from worldmodel.sampler import Pipelined
from worldmodel.serve.client import Client, Frame
from worldmodel.serve.dream import from_start
from worldmodel.serve.limits import Limits
from worldmodel.serve.protocol import (
    UPLOAD_REPLAY,
    Bookmark,
    Pause,
    Restart,
    Save,
    Settings,
    Switch,
    Takeover,
    upload,
)
from worldmodel.serve.replay import Replay, play, read_replay


def shown(world, replay: Replay) -> np.ndarray:
    """The pictures of a stream of this world alone, [P, H, W, 3], without the beginning's own."""
    return np.concatenate([pictures.frames for pictures in play(world, replay)])


def driven(client: Client) -> list[Frame]:
    """Drive a little, with three kinds of keys; the pictures that arrived."""
    frames, seen = client.frames(), []
    for action in ({"turn": 5.0}, {"forward": 1.0, "turn": -3.3}, {}):
        seq = client.hold(**action)
        while not seen or seen[-1].header.input < seq or seen[-1].header.place != 3:
            seen.append(next(frames))
    return seen


def saved(address: str, client: Client) -> bytes:
    client.send(Save())
    return get(address + client.message("file")["url"])


def switched(address: str, client: Client, world) -> Replay:
    """Switch to "base"; returns all that was done before, in `world`."""
    client.send(Pause(on=True))
    replay = read_replay(world, saved(address, client))
    client.send(Switch(world="base"))
    client.send(Pause(on=False))
    return replay


def of_stream(frames: list[Frame], number: int) -> np.ndarray:
    """The dreamt pictures of a stream."""
    return np.stack([f.picture for f in frames if f.header.stream == number and f.header.index])


def rest_of(client: Client, stream: int, count: int) -> list[Frame]:
    """So many pictures of a stream, its beginning's own included."""
    return list(islice((f for f in client.frames() if f.header.stream == stream), count))


def test_the_same_world_shows_the_same_pictures(world, base, serving) -> None:
    with serving(world, base=base) as (address, _), Client(address, fast(start=1, seed=5, window=4)) as client:
        assert client.message("started")["world"] == "world"
        first = of_stream(driven(client), 1)
        client.send(Switch(world="world"))
        started = client.message("started")
        count = started.pop("scripted")
        assert started == {
            "type": "started", "stream": 2, "source": "start", "index": 1, "seed": 5, "context": 8, "world": "world",
        }  # fmt: skip
        assert count >= len(first) >= 12 and count % 4 == 0
        again = of_stream(rest_of(client, 2, 1 + len(first)), 2)
        assert np.array_equal(again, first)


def test_another_world_shows_what_it_shows_alone_under_these_keys(world, base, serving) -> None:
    with serving(world, base=base) as (address, _), Client(address, fast(start=2, seed=5, window=4)) as client:
        first = of_stream(driven(client), 1)
        replay = switched(address, client, world)
        started = client.message("started")
        assert (started["world"], started["scripted"]) == ("base", 4 * len(replay.deeds))
        again = of_stream(rest_of(client, 2, 1 + started["scripted"]), 2)
        data = saved(address, client)
    expected = shown(base, replay)
    assert np.array_equal(again, expected)
    assert not np.array_equal(again[: len(first)], first)  # the worlds are not one
    of_base = read_replay(base, data)  # and a replay file names the world that made it
    assert of_base.opening.seed == 5 and len(of_base.deeds) >= len(replay.deeds)
    for one, two in zip(of_base.deeds, replay.deeds, strict=False):
        assert one.steps == two.steps and (one.action == two.action).all()


def test_a_hello_chooses_its_world_and_one_without_gets_the_first(world, base, serving) -> None:
    with serving(world, base=base) as (address, _):
        for name, model in (("base", base), (None, world)):
            with Client(address, fast(start=1, seed=3, world=name)) as client:
                welcome = client.message("welcome")
                facts = [(each["name"], each["title"], each["steps"]) for each in welcome["worlds"]]
                assert facts == [("world", "noise", 2), ("base", "noise", 2)]
                assert client.message("started")["world"] == (name or "world")
                seen = list(islice(client.frames(), 9))
                replay = read_replay(model, saved(address, client))
                assert np.array_equal(of_stream(seen, 1), shown(model, replay)[:8])
                assert (replay.opening.context.x == from_start(world, 1, 3).context.x).all()  # of the first world


def test_a_name_that_no_world_has_is_an_error(world, base, serving) -> None:
    with serving(world, base=base) as (address, _):
        line, code = last_words(address, HELLO.replace("}", ', "world": "sea"}'))
        assert (line, code) == ("this server has no world 'sea', only world, base", 4400)
        line, code = last_words(address, HELLO, '{"type": "switch"}')
        assert "world" in line and code == 4400
        with Client(address, fast()) as client:
            client.message("started")
            client.send(Switch(world="sea"))
            with pytest.raises(ConnectionError, match="no world 'sea', only world, base"):
                client.message("never")
            assert next(client.frames()).header.stream == 1


def test_a_broken_connection_finds_its_world_and_its_keys_again(world, base, serving) -> None:
    with serving(world, base=base) as (address, _), Client(address, fast(seed=5, window=4)) as client:
        driven(client)
        replay = switched(address, client, world)
        before = rest_of(client, 2, 6)
        cut(client)
        with Client(address, resuming(client)) as again:
            assert again.message("welcome")["resumed"]
            started = again.message("started")
            assert (started["stream"], started["world"], started["scripted"]) == (2, "base", 4 * len(replay.deeds))
            frames = again.frames()
            after = [next(frames)]
            while after[-1].header.index < started["scripted"]:
                after.append(next(frames))
    expected = shown(base, replay)
    for frame in (*before[1:], *after):
        assert np.array_equal(frame.picture, expected[frame.header.index - 1])


def test_back_and_forth_in_the_midst_keeps_all_keys(world, base, serving) -> None:
    with serving(world, base=base) as (address, _), Client(address, fast(seed=5, window=4)) as client:
        driven(client)
        replay = switched(address, client, world)
        rest_of(client, 2, 6)
        client.send(Switch(world="world"))
        client.send(Pause(on=False))  # the recorded keys may just have ended
        assert client.message("started")["scripted"] == 4 * len(replay.deeds)
        again = of_stream(rest_of(client, 3, 1 + 4 * len(replay.deeds)), 3)
        assert np.array_equal(again, shown(world, replay))


def test_whoever_takes_over_drives(painted, serving) -> None:
    """Red is the turn: to the left in the recorded keys, to the right in what is held while they are repeated."""
    with serving(painted, other=painted) as (address, _), Client(address, fast(window=4)) as client:
        seq = client.hold(turn=8.0)
        next(f for f in client.frames() if f.header.index > 40 and f.header.input == seq)
        client.send(Switch(world="other"))
        assert client.message("started")["scripted"] >= 40
        seq = client.hold(turn=-8.0)
        frames = client.frames()
        held = next(f for f in frames if f.header.input == seq and f.header.index > 12)
        assert held.picture[0, 0, 0] >= 250
        client.send(Takeover())
        mine = next(f for f in frames if f.header.input == seq and f.header.place == 3 and f.picture[0, 0, 0] <= 5)
        later = list(islice(client.frames(), 60))  # no pause at what was the end
        assert later[-1].header.index > 60 and {f.picture[0, 0, 0] <= 5 for f in later} == {True}
        assert mine.header.stream == 2


def test_a_bookmark_and_a_replay_file_know_their_world(world, base, serving) -> None:
    with serving(world, base=base) as (address, _), Client(address, fast(window=4)) as client:
        driven(client)
        client.send(Bookmark())
        client.message("notice")
        client.send(Switch(world="base"))
        assert client.message("started")["world"] == "base"
        assert "yours to drive" in client.message("paused")["reason"]  # at the end of the recorded keys
        data = saved(address, client)
        client.send(Restart(source="bookmark"))
        started = client.message("started")
        assert (started["source"], started["world"], started["scripted"]) == ("bookmark", "world", 0)
        client.send(Restart(source="start", index=2))
        assert client.message("started")["world"] == "world"  # it stays where it is
        client.send(upload(UPLOAD_REPLAY, data))
        started = client.message("started")
        assert (started["source"], started["world"]) == ("replay", "base")
        assert started["scripted"] == 4 * len(read_replay(base, data).deeds)
        client.send(upload(UPLOAD_REPLAY, data.replace(b'\\"seed\\"', b'\\"sead\\"')))
        with pytest.raises(ConnectionError, match="seed None is none"):
            client.message("never")


def test_a_sampler_that_cannot_repeat_the_chunks_is_named(world, base, serving) -> None:
    other = replace(base, stream=replace(base.stream, sampler=Pipelined(chunks=2, steps=4)))
    with serving(world, base=other) as (address, _), Client(address, fast(window=4, steps=3)) as client:
        driven(client)
        client.send(Switch(world="base"))
        with pytest.raises(ConnectionError, match=r"world 'base' cannot repeat this stream: .*3 steps do not divide"):
            client.message("started")
        assert next(f for f in client.frames() if f.header.place == 3).header.stream == 1
        client.send(Switch(world="world"))
        client.send(Settings(steps=4))
        assert client.message("started")["world"] == "world"


def test_a_stream_that_is_not_remembered_cannot_be_repeated(world, base, serving) -> None:
    with serving(world, Limits(replay=2), base=base) as (address, _), Client(address, fast(window=4)) as client:
        list(islice(client.frames(), 16))
        client.send(Switch(world="base"))
        with pytest.raises(ConnectionError, match="longer than the 2 chunks"):
            client.message("started")
