"""What a client keeps of a stream, and gives to it: replays, videos, pictures."""

import io
from itertools import islice

import av
import numpy as np
import pytest
from PIL import Image
from talk import fast, get

from worldmodel.serve.client import Client, Frame
from worldmodel.serve.limits import Limits
from worldmodel.serve.protocol import (
    UPLOAD_PICTURE,
    UPLOAD_REPLAY,
    Pause,
    Record,
    Save,
    Settings,
    upload,
)
from worldmodel.serve.replay import play, read_replay


def test_a_replay_file_makes_the_stream_again_bit_for_bit(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(start=1, seed=5, window=4)) as client:
        frames, seen = client.frames(), []
        for action, steps in (({"turn": 5.0}, 1), ({"forward": 1.0, "turn": -3.3}, 3), ({}, 2)):
            client.send(Settings(steps=steps))
            seq = client.hold(**action)
            while not seen or seen[-1].header.input < seq or seen[-1].header.place != 3:
                seen.append(next(frames))
        client.send(Pause(on=True))
        while True:  # what was on its way
            received = client.receive()
            if isinstance(received, Frame):
                seen.append(received)
            elif received["type"] == "paused":
                break
        client.send(Save())
        file = client.message("file")
        assert file["kind"] == "replay"
        data = get(address + file["url"])
        assert len(data) == file["bytes"]

        replay = read_replay(world, data)
        made = np.concatenate([pictures.frames for pictures in play(world, replay)])
        shown = np.stack([f.picture for f in seen[1:]])  # the first is the beginning's own
        assert len(made) >= len(shown) >= 12
        assert np.array_equal(shown, made[: len(shown)])
        assert len({deed.steps for deed in replay.deeds}) >= 2

        client.send(upload(UPLOAD_REPLAY, data))  # and the server plays it, then it is the client's again
        assert client.message("started")["source"] == "replay"
        client.send(Pause(on=False))
        again = [f.picture for f in islice(client.frames(), 1 + len(shown))]
        assert np.array_equal(np.stack(again[1:]), shown)
        client.send(upload(UPLOAD_REPLAY, b"not one"))
        with pytest.raises(ConnectionError, match="not a whole replay file"):
            client.message("never")


def test_the_end_of_a_replay_pauses(world, serving) -> None:
    with serving(world) as (address, _), Client(address, fast(window=4)) as client:
        list(islice(client.frames(), 9))
        client.send(Save())
        data = get(address + client.message("file")["url"])
        chunks = len(read_replay(world, data).deeds)
        client.send(upload(UPLOAD_REPLAY, data))
        assert client.message("started")["source"] == "replay"
        count = 0
        while not isinstance(received := client.receive(), dict) or received["type"] != "paused":
            count += isinstance(received, Frame)
        assert "yours to drive" in received["reason"]
        client.send(Pause(on=False))
        count += sum(1 for _ in islice(client.frames(), 1 + 4 * chunks + 4 - count))
        assert count == 1 + 4 * chunks + 4


def test_a_long_stream_refuses_to_be_a_replay(world, serving) -> None:
    with serving(world, Limits(replay=2)) as (address, _), Client(address, fast()) as client:
        list(islice(client.frames(), 16))
        client.send(Save())
        with pytest.raises(ConnectionError, match="longer than the 2 chunks"):
            client.message("file")


@pytest.mark.needs("h264")
def test_a_recording_is_a_video_of_what_was_shown(painted, serving) -> None:
    with serving(painted) as (address, _), Client(address, fast(paused=True)) as client:
        client.hold(turn=8.0)
        client.send(Record(on=True))
        client.send(Pause(on=False))
        seen = list(islice(client.frames(), 21))
        client.send(Record(on=False))
        file = client.message("file")
        assert (file["kind"], file["name"]) == ("video", "dream-0.mp4")
        with av.open(io.BytesIO(get(address + file["url"]))) as video:
            stream = video.streams.video[0]
            pictures = [frame.to_ndarray(format="rgb24") for frame in video.decode(stream)]
            assert stream.average_rate == 24
    assert len(pictures) % 4 == 0
    assert len(pictures) >= len(seen) - 1
    assert pictures[0].shape == (256, 256, 3)
    assert np.abs(pictures[8][128, 128].astype(int) - (255, 128, 128)).max() < 12


@pytest.mark.needs("h264")
def test_recordings_end_at_their_limit(painted, serving) -> None:
    with serving(painted, Limits(video=8)) as (address, _), Client(address, fast()) as client:
        client.send(Record(on=False))
        with pytest.raises(ConnectionError, match="no recording is running"):
            client.message("file")
        client.send(Record(on=True))
        client.send(Record(on=True))
        with pytest.raises(ConnectionError, match="a recording is running"):
            client.message("file")
        file = client.message("file")
        with av.open(io.BytesIO(get(address + file["url"]))) as video:
            assert sum(1 for _ in video.decode(video=0)) == 8


def test_an_uploaded_picture_begins_a_dream(painted, serving) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[:, 16:80] = (200, 100, 50)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    with serving(painted) as (address, _), Client(address, fast()) as client:
        client.send(upload(UPLOAD_PICTURE, out.getvalue()))
        started = client.message("started")
        started = client.message("started") if started["source"] == "start" else started
        assert (started["source"], started["context"]) == ("picture", 4)
        frame = next(f for f in client.frames() if f.header.stream == started["stream"])
        assert (frame.picture == (200, 100, 50)).all()
        client.send(upload(UPLOAD_PICTURE, b"no picture"))
        with pytest.raises(ConnectionError, match="not a picture"):
            client.message("never")
        assert next(client.frames()).header.stream == started["stream"]
