"""Reading one video file: pixels, times, rotation, and one clear line for everything that is broken."""

from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.datasets import video as module
from worldmodel.datasets.clips import VideoFolder
from worldmodel.datasets.video import VideoFile, open_video
from worldmodel.errors import UserError

NTSC = Fraction(30000, 1001)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov", "a.avi", "a.ts"])
def test_pixels_order_and_rate(tmp_path, videos, name):
    path = videos.make(tmp_path / name, rate=NTSC)
    found = open_video(path)
    frames = list(found.frames())
    assert (len(found), found.height, found.width, found.rotation) == (40, 48, 64, 0)
    assert found.fps == NTSC and found.uneven is None
    assert videos.numbers(frames) == list(range(40))
    assert frames[7].dtype == np.uint8 and frames[7].shape == (48, 64, 3)
    error = np.abs(frames[7].astype(int) - videos.picture(7))
    assert error[2:10, 2:14].max() <= 6 and error[16:].max() <= 3  # away from the edge of the red square
    np.testing.assert_allclose(found.seconds, np.arange(40) * 1001 / 30000, atol=1e-3)


def test_reader_is_chosen_per_file(tmp_path, videos):
    plain, turned = videos.make(tmp_path / "a.mp4"), videos.turn(videos.make(tmp_path / "b.mp4"))
    assert (open_video(plain).reader, open_video(plain).reason) == ("decord", "")
    assert (open_video(turned).reader, open_video(turned).reason) == ("pyav", "rotated by 90 degrees")
    other = videos.make(tmp_path / "c.mp4", pixels="yuv422p")
    assert (open_video(other).reader, open_video(other).reason) == ("pyav", "pixel format yuv422p")


def test_without_decord(tmp_path, videos, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "decord", None)
    found = open_video(videos.make(tmp_path / "a.mp4"))
    assert (found.reader, found.reason) == ("pyav", "decord is not installed")
    assert videos.numbers(found.pick([3, 1])) == [3, 1]


@pytest.mark.parametrize("reader", ["decord", "pyav"])
@pytest.mark.parametrize(("gop", "bframes"), [(12, 0), (250, 3)])
def test_picked_frames_equal_the_frames_of_one_pass(tmp_path, videos, reader, gop, bframes):
    found = open_video(videos.make(tmp_path / "a.mp4", count=70, gop=gop, bframes=bframes))
    assert found.reader == "decord"
    found = VideoFile(**{key: getattr(found, key) for key in found.__slots__} | {"reader": reader})
    whole = np.stack(list(found.frames()))
    wanted = [66, 3, 69, 0, 31, 30, 31, 65]
    np.testing.assert_array_equal(found.pick(wanted), whole[wanted])
    np.testing.assert_array_equal(np.stack(list(found.frames([0, 5, 5, 68]))), whole[[0, 5, 5, 68]])
    with pytest.raises(IndexError):
        found.pick([70])


@pytest.mark.parametrize("name", ["a.avi", "a.ts", "a.mkv"])
def test_picking_where_seeking_is_hard(tmp_path, videos, name):
    found = open_video(videos.make(tmp_path / name, count=70, gop=30))
    found = VideoFile(**{key: getattr(found, key) for key in found.__slots__} | {"reader": "pyav"})
    assert videos.numbers(found.pick([69, 2, 55])) == [69, 2, 55]


def test_a_seek_that_lands_too_late_is_not_believed(tmp_path, videos, monkeypatch):
    class Late:
        def __init__(self, container):
            self.container = container

        def __getattr__(self, name):
            return getattr(self.container, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.container.close()

        def seek(self, offset, **options):
            self.container.seek(offset + 20 * 512, **options)

    found = open_video(videos.make(tmp_path / "a.mp4", count=90))
    found = VideoFile(**{key: getattr(found, key) for key in found.__slots__} | {"reader": "pyav"})
    original = module.av.open
    monkeypatch.setattr(module.av, "open", lambda path: Late(original(path)))
    assert videos.numbers(found.pick([60, 2, 61])) == [60, 2, 61]


@pytest.mark.parametrize(
    ("matrix", "red", "blue"), [(1, 0.2126, 0.0722), (2, 0.299, 0.114), (7, 0.212, 0.087), (9, 0.2627, 0.0593)]
)
def test_colours_by_the_matrix_that_the_file_names(tmp_path, matrix, red, blue):
    """Planes by the formula of ITU-R BT.601, 709 and 2020 (16 to 235 and 16 to 240), stored without loss."""
    path, colour = tmp_path / "a.mp4", np.array([60, 140, 220])
    luma = np.dot([red, 1 - red - blue, blue], colour)
    planes = (
        16 + luma * 219 / 255,
        128 + (colour[2] - luma) / (1 - blue) / 2 * 224 / 255,
        128 + (colour[0] - luma) / (1 - red) / 2 * 224 / 255,
    )
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=10, options={"crf": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.colorspace = matrix
        stored = np.concatenate(
            [np.full(64 * 48 // (1 if i == 0 else 4), round(planes[i]), np.uint8) for i in range(3)]
        )
        for _ in range(3):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(stored.reshape(72, 64), format="yuv420p")))
        file.mux(stream.encode())
    found = open_video(path)
    for frame in (*found.frames(), *found.pick([2, 0])):
        assert np.abs(frame.astype(int) - colour).max() <= 2


def test_rotation_is_applied(tmp_path, videos):
    upright = open_video(videos.make(tmp_path / "a.mp4"))
    turned = open_video(videos.turn(videos.make(tmp_path / "b.mp4")))
    assert (turned.height, turned.width, turned.rotation) == (64, 48, 90)
    expected = np.rot90(np.stack(list(upright.frames())), -1, axes=(1, 2))
    np.testing.assert_array_equal(np.stack(list(turned.frames())), expected)
    np.testing.assert_array_equal(turned.pick([9])[0], expected[9])
    corner = expected[0][:16, -12:].astype(float).mean((0, 1))  # a quarter turn clockwise: upper left to upper right
    assert corner[0] > 180 and corner[1] < 70


@pytest.mark.parametrize(("height", "width"), [(47, 63), (1, 2), (48, 63)])
def test_odd_sizes(tmp_path, videos, height, width):
    found = open_video(videos.make(tmp_path / "a.mp4", height=height, width=width, pixels="yuv444p", count=5))
    assert [frame.shape for frame in found.frames()] == [(height, width, 3)] * 5


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_variable_rate_is_found_and_resampled_by_time(tmp_path, videos, name):
    pts = np.cumsum(np.random.default_rng(0).integers(20, 60, 40)).tolist()
    found = open_video(videos.make(tmp_path / name, pts=pts))
    np.testing.assert_allclose(found.seconds, (np.array(pts) - pts[0]) / 1000, atol=1e-9)
    assert found.uneven is not None
    assert found.fps == Fraction(39 * 1000, pts[-1] - pts[0])
    indices = found.resampled(Fraction(25))
    grid = np.arange(len(indices)) / 25
    nearest = np.abs(found.seconds[:, None] - grid).argmin(0)
    assert indices.tolist() == nearest.tolist()
    assert grid[-1] <= found.seconds[-1] + 0.02 < grid[-1] + 1 / 25 + 0.02
    assert videos.numbers(found.frames(indices)) == nearest.tolist()


@given(
    count=st.integers(2, 50),
    source=st.sampled_from([Fraction(24), Fraction(25), NTSC, Fraction(60)]),
    target=st.sampled_from([Fraction(10), Fraction(24), NTSC, Fraction(30), Fraction(50)]),
    ticks=st.sampled_from([600, 1000, 90000]),
)
@settings(max_examples=150, deadline=None)
def test_resampling_is_to_the_nearest_frame(count, source, target, ticks):
    pts = np.array([round(Fraction(ticks) * i / source) for i in range(count)], np.int64)
    found = VideoFile(None, 1, 1, 0, pts + 777, Fraction(1, ticks), source, "pyav")
    indices = found.resampled(target)
    grid = [Fraction(k) / target for k in range(len(indices))]
    for time, index in zip(grid, indices, strict=True):
        distances = [abs(Fraction(int(p), ticks) - time) for p in pts]
        assert distances[index] == min(distances) and index == distances.index(min(distances))
    if source == target:
        assert indices.tolist() == list(range(count))


def test_container_times_in_milliseconds_do_not_look_variable(tmp_path, videos):
    found = open_video(videos.make(tmp_path / "a.mkv", rate=NTSC, count=60))
    assert found.uneven is None
    assert found.resampled(NTSC).tolist() == list(range(60))


def test_sound_is_no_obstacle(tmp_path, videos):
    import av

    path = tmp_path / "both.mp4"
    with av.open(str(path), "w") as file:
        video, sound = file.add_stream("h264", rate=30), file.add_stream("aac", rate=44100)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 44100 * 2), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 44100
        for index in range(40):
            file.mux(video.encode(av.VideoFrame.from_ndarray(videos.picture(index), format="rgb24")))
        file.mux(sound.encode(silence))  # longer than the pictures
        file.mux(video.encode())
        file.mux(sound.encode())
    assert videos.numbers(open_video(path).frames()) == list(range(40))


def message(path) -> str:
    """The one line that opening and reading the file ends with."""
    with pytest.raises(UserError) as caught:
        for _ in open_video(path).frames():
            pass
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_empty_and_no_video(tmp_path, videos):
    assert "no such file" in message(tmp_path / "none.mp4")
    (tmp_path / "zero.mp4").touch()
    assert "empty (0 bytes)" in message(tmp_path / "zero.mp4")
    (tmp_path / "text.mp4").write_text("not a video " * 100)
    assert "not a readable video" in message(tmp_path / "text.mp4")
    assert "no picture in it, only audio" in message(videos.make_audio(tmp_path / "song.mp4"))


@pytest.mark.parametrize(
    ("name", "options", "place"),
    [
        ("index_last.mp4", {}, "beginning or index is cut off"),
        ("index_first.mp4", {"movflags": "faststart"}, "cut off or damaged at frame 2"),
        ("a.mkv", {}, "cut off after frame 2"),
        ("a.avi", {}, "cut off"),
    ],
)
def test_truncated(tmp_path, videos, name, options, place):
    path = videos.make(tmp_path / name, container=options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    assert place in message(path)


def test_a_container_without_a_length_is_noted(tmp_path, videos):
    """Where the end of an MPEG-TS is missing, nothing in it says so: people are told what was read."""
    path = videos.make(tmp_path / "a.ts", count=40)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3 // 188 * 188])
    video = open_video(path)
    assert not video.announced and 20 < len(video) < 40
    (note,) = [note for note in VideoFolder.open(path).notes() if "announce no length" in note]
    assert f"such as {path}: {len(video)} frames were read" in note
    whole = VideoFolder.open(videos.make(tmp_path / "a.mp4"))
    assert whole.files[0].announced and not any("announce no length" in note for note in whole.notes())


def test_damaged_in_the_middle_names_the_frame(tmp_path, videos):
    path = videos.make(tmp_path / "a.mp4", container={"movflags": "faststart"}, gop=5)
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3 :][:60] = data[len(data) * 2 // 3 : len(data) * 2 // 3 + 60] = bytes(range(100, 160))
    path.write_bytes(data)
    text = message(path)
    assert "frame 2" in text and "of 40" in text


def test_codecs_with_frames_across_packets(tmp_path, videos):
    found = open_video(videos.make(tmp_path / "a.avi", codec="mpeg4", bframes=0))
    assert "mpeg4" not in module.ONE_FRAME_PER_PACKET
    assert videos.numbers(found.frames()) == list(range(40))
