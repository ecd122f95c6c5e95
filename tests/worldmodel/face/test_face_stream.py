"""The whole stream on painted people: times, sound, sizes, rotation, damage, stopping and going on, RTMP."""

import json
import os
import socket
import struct
import subprocess
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from painted import GREEN, RED, interrupt_third_chunk, networks, paint, read, sound_packets, write

from worldmodel.errors import UserError
from worldmodel.face import command
from worldmodel.face.consent import check_consent, write_consent
from worldmodel.face.generator import CopyPaste, FaceControl, PoissonBlend
from worldmodel.face.label import draw_label
from worldmodel.face.occlude import Nothing
from worldmodel.face.pipeline import Swapper, reference_face
from worldmodel.face.reading import Container, Images, Picture, open_source, read_image
from worldmodel.face.sign import check_side_file, side_file
from worldmodel.face.tools import verify_command
from worldmodel.face.track import Tracker, Tracking

pytestmark = pytest.mark.needs("h264", "signing")
TALK = [paint((RED, 40 + i, 48, 36)) for i in range(30)]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A reference with its consent, and the command with painted networks."""
    import cv2

    monkeypatch.setenv("WORLDMODEL_KEY", str(tmp_path / "key.pem"))
    monkeypatch.setattr(command, "default_networks", networks)
    reference, consent = tmp_path / "me.png", tmp_path / "me.json"
    face = paint((GREEN, 64, 48, 60))
    face[33:63, 49:79, 2] = 255  # colours are matched to the target, what is painted on the face stays
    cv2.imwrite(str(reference), face[..., ::-1])
    write_consent(reference, "A. Person", "I agree to my face in tests of this program.", consent)

    def run(target: Path | str, out: Path | str, **options: object) -> int:
        given = {"reference": reference, "consent": consent, "size": 64} | options
        return command.swap(str(target), out=str(out), **given)

    return SimpleNamespace(folder=tmp_path, reference=reference, consent=consent, run=run)


def test_a_video_is_swapped_labelled_and_signed(made: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = write(made.folder / "talk.mp4", TALK, sound="stereo"), made.folder / "out.mp4"
    assert made.run(target, out) == 0
    (before, times), (after, times_after) = read(target), read(out)
    assert times == times_after and len(after) == 30
    assert sound_packets(out) == sound_packets(target) != []
    for i in (0, 15, 29):
        face = after[i][44:53, 36 + i : 45 + i].reshape(-1, 3).mean(0)
        assert face[2] > before[i][48, 40 + i, 2] + 80  # not the target's
        corner = after[i][:20, :30].astype(int) - before[i][:20, :30]
        assert np.abs(corner).mean() < 2
        assert after[i][-8:, :60].max() > 200 > before[i][-8:, :30].max()  # the label
    facts = check_side_file(out)
    assert facts["pictures"] == facts["pictures_with_a_swap"] == 30
    assert facts["consent"]["person"] == "A. Person"
    assert not list(made.folder.glob(".*parts")) and not list(made.folder.glob(".*partial*"))
    assert "30 pictures, 30 with a swapped face" in capsys.readouterr().out


def test_the_watermark_is_on_by_default_and_survives_another_encoding(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = [paint((RED, 100 + i, 96, 72), height=208, width=320) for i in range(24)]
    target, out, again = (made.folder / name for name in ("talk.mp4", "out.mp4", "again.mp4"))
    assert made.run(write(target, pictures), out) == 0
    with av.open(str(out)) as file, av.open(str(again), "w") as copy:
        stream = copy.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 320, 208, "yuv420p"
        stream.options = {"crf": "28", "preset": "veryfast"}
        for frame in file.decode(video=0):
            copy.mux(stream.encode(av.VideoFrame.from_ndarray(frame.to_ndarray(format="rgb24"), format="rgb24")))
        copy.mux(stream.encode())
    capsys.readouterr()
    assert verify_command(again) == 0
    number = check_consent(made.consent, made.reference).reference_sha256[:4]
    assert f"carries the mark of a swap, number {number}" in capsys.readouterr().out
    assert made.run(target, made.folder / "plain.mp4", watermark=False) == 0
    (made.folder / "plain.mp4.provenance.json").unlink()
    assert verify_command(made.folder / "plain.mp4") == 1


def test_pixels_outside_the_mask_are_bit_exact_in_a_lossless_file(made: SimpleNamespace) -> None:
    target, out = write(made.folder / "talk.mp4", TALK[:9]), made.folder / "out.mkv"
    assert made.run(target, out, lossless=True, label=False, watermark=False) == 0
    source = open_source(str(target))
    before = [event.pixels for event in source if isinstance(event, Picture)]
    after, _ = read(out)
    changed = 0
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        differs = (a != b).any(-1)
        changed += differs.sum()
        y, x = np.nonzero(differs)
        assert abs(x - (40 + i)).max() < 36 * 1.8 * 0.31 and abs(y - 50).max() < 36 * 1.8 * 0.36
    assert changed > 9 * 200


@pytest.mark.parametrize(
    ("time_base", "pts", "rate"),
    [
        (Fraction(1, 30000), [1001 * i for i in range(20)], Fraction(30000, 1001)),
        (Fraction(1, 90000), list(np.cumsum([3600, 1, 7200, 90, 45000] * 4)), Fraction(25)),  # variable
    ],
)
def test_times_are_exact(made: SimpleNamespace, time_base: Fraction, pts: list[int], rate: Fraction) -> None:
    pts = [int(p) - int(pts[0]) for p in pts]
    target = write(made.folder / "talk.mp4", TALK[:20], pts, time_base, rate)
    assert read(target)[1] == [p * time_base for p in pts]
    assert made.run(target, made.folder / "out.mp4") == 0
    assert read(made.folder / "out.mp4")[1] == [p * time_base for p in pts]


@pytest.mark.parametrize(
    ("layout", "codec", "end"), [("5.1", "aac", "mp4"), ("mono", "libopus", "mkv"), (None, "", "mov")]
)
def test_sound_passes_as_it_is(made: SimpleNamespace, layout: str | None, codec: str, end: str) -> None:
    target = write(made.folder / f"talk.{end}", TALK, sound=layout, codec=codec)
    assert made.run(target, made.folder / f"out.{end}") == 0
    assert sound_packets(made.folder / f"out.{end}") == sound_packets(target)
    if layout == "5.1":
        with av.open(str(made.folder / "out.mp4")) as file:
            assert file.streams.audio[0].codec_context.layout.nb_channels == 6


def test_sound_that_a_container_cannot_hold_is_one_line(made: SimpleNamespace) -> None:
    target = write(made.folder / "talk.mkv", TALK[:5], sound="stereo", codec="wavpack")
    with pytest.raises(UserError, match=r"out\.mp4.*\.mkv can"):
        made.run(target, made.folder / "out.mp4")
    assert not (made.folder / "out.mp4").exists()


def test_a_telephone_s_video_stands_upright(made: SimpleNamespace) -> None:
    target = write(made.folder / "talk.mp4", [np.rot90(p).copy() for p in TALK[:6]])
    data = bytearray(target.read_bytes())
    start = data.index(b"tkhd") + 44  # the matrix: a quarter turn clockwise
    data[start : start + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 96 << 16, 0, 1 << 30)
    target.write_bytes(data)
    source = open_source(str(target))
    assert (source.info.height, source.info.width) == (96, 128)
    assert made.run(target, made.folder / "out.mp4", label=False) == 0
    after, _ = read(made.folder / "out.mp4")
    assert after[0].shape == (96, 128, 3)
    assert np.abs(after[0][:20].astype(int) - TALK[0][:20]).mean() < 3


@pytest.mark.parametrize(("height", "width"), [(95, 127), (96, 127)])
def test_odd_sizes_lose_no_pixel(made: SimpleNamespace, height: int, width: int) -> None:
    target = write(made.folder / "talk.mp4", [p[:height, :width].copy() for p in TALK[:4]])
    assert made.run(target, made.folder / "out.mp4") == 0
    after, _ = read(made.folder / "out.mp4")
    assert after[0].shape == (96, 128, 3)


def test_a_video_of_one_picture(made: SimpleNamespace) -> None:
    target = write(made.folder / "talk.mp4", TALK[:1])
    assert made.run(target, made.folder / "out.mp4") == 0
    assert len(read(made.folder / "out.mp4")[0]) == 1


def test_no_face_and_black_pictures_pass_unchanged(made: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    target = write(made.folder / "talk.mp4", [np.zeros((48, 64, 3), np.uint8)] * 7)
    assert made.run(target, made.folder / "out.mp4", label=False, watermark=False) == 0
    after, _ = read(made.folder / "out.mp4")
    assert len(after) == 7 and np.max(after) < 3
    assert "no face was found that could be swapped" in capsys.readouterr().out


def test_damaged_packets_are_skipped_and_counted(made: SimpleNamespace) -> None:
    target = write(made.folder / "talk.mkv", TALK, gop=5)
    packets: list[tuple[bytes, bool]] = []
    with av.open(str(target)) as file:
        packets = [(bytes(p), p.is_keyframe) for p in file.demux(video=0) if p.size]
    places = [(target.read_bytes().index(p), len(p)) for p, key in packets if not key][4:6]
    data = bytearray(target.read_bytes())
    for at, size in places:
        data[at : at + size] = os.urandom(size)
    target.write_bytes(data)
    assert made.run(target, made.folder / "out.mp4") == 0
    assert len(read(made.folder / "out.mp4")[0]) >= 26


@pytest.mark.parametrize("matrix", [1, 7, 9])
def test_colours_of_other_matrices_come_back(made: SimpleNamespace, matrix: int) -> None:
    colour = np.full((48, 64, 3), (60, 140, 220), np.uint8)

    def in_matrix(frame: av.VideoFrame) -> av.VideoFrame:
        return frame.reformat(format="yuv420p", src_colorspace=5, dst_colorspace=matrix)

    target = write(made.folder / "talk.mp4", [colour] * 3, edit=in_matrix, space=matrix)
    first = next(iter(open_source(str(target))))
    assert np.abs(first.pixels.astype(int) - colour).max() <= 4
    assert made.run(target, made.folder / "out.mp4", label=False, watermark=False) == 0
    again = next(iter(open_source(str(made.folder / "out.mp4"))))
    assert np.abs(again.pixels.astype(int) - colour).max() <= 6
    with av.open(str(made.folder / "out.mp4")) as file:
        assert next(file.decode(video=0)).colorspace == matrix


def test_a_folder_of_images_in_and_out(made: SimpleNamespace) -> None:
    import cv2

    (made.folder / "in").mkdir()
    for i, picture in enumerate(TALK[:5]):
        cv2.imwrite(str(made.folder / "in" / f"{i:03d}.png"), picture[..., ::-1])
    assert made.run(made.folder / "in", f"{made.folder / 'out'}/", label=False, watermark=False) == 0
    after = [read_image(path) for path in sorted((made.folder / "out").iterdir())]
    assert len(after) == 5
    np.testing.assert_array_equal(after[2][:20], TALK[2][:20])
    cv2.imwrite(str(made.folder / "in" / "100.png"), TALK[0][:50])
    with pytest.raises(UserError, match=r"100\.png: is 128 x 50 pixels, the first image is 128 x 96"):
        list(Images(made.folder / "in", Fraction(25)))


def test_a_stopped_job_plays_and_goes_on(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(made.folder / "talk.mp4", TALK, sound="stereo")
    assert made.run(target, made.folder / "whole.mp4") == 0
    interrupt_third_chunk(monkeypatch)
    assert made.run(target, made.folder / "out.mp4") == 130
    assert len(read(made.folder / "out.mp4")[0]) == 12
    assert check_side_file(made.folder / "out.mp4")["pictures"] == 12
    with pytest.raises(UserError, match="parts of another swap"):
        made.run(target, made.folder / "out.mp4", faces=2)
    assert made.run(target, made.folder / "out.mp4") == 0
    (whole, times), (joined, joined_times) = read(made.folder / "whole.mp4"), read(made.folder / "out.mp4")
    assert joined_times == times
    assert sound_packets(made.folder / "out.mp4") == sound_packets(target)
    for a, b in zip(whole, joined, strict=True):  # another key frame, the same picture
        assert np.abs(a.astype(int) - b).mean() < 1.5
    assert not list(made.folder.glob(".*parts"))


@pytest.mark.needs("ffmpeg", "proc")
def test_rtmp_out_and_in(made: SimpleNamespace) -> None:
    """An ffmpeg that listens takes what we send; then one that listens sends what we swap."""
    target, received = write(made.folder / "talk.mp4", TALK, sound="stereo"), made.folder / "received.mkv"
    port = free_port()
    url = f"rtmp://127.0.0.1:{port}/live/x"
    listener = ["ffmpeg", "-v", "error", "-nostdin", "-listen", "1"]
    with subprocess.Popen([*listener, "-i", url, "-c", "copy", str(received)]) as server:
        wait_for(port)
        assert made.run(target, url) == 0
        assert server.wait(30) == 0
    pictures, times = read(received)
    assert len(pictures) == 30
    np.testing.assert_allclose([float(t - times[0]) for t in times], np.arange(30) / 25, atol=1.1e-3)
    assert pictures[5][-8:, :60].max() > 200  # the label
    assert len(sound_packets(received)) >= len(sound_packets(target)) - 1

    port = free_port()
    url = f"rtmp://127.0.0.1:{port}/live/x"
    with subprocess.Popen(
        [*listener[:4], "-re", "-stream_loop", "2", "-i", str(target), "-c", "copy", "-f", "flv", "-listen", "1", url]
    ) as server:
        wait_for(port)
        assert made.run(url, made.folder / "live.mp4") == 0
        server.wait(30)
    assert len(read(made.folder / "live.mp4")[0]) >= 85


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(port: int) -> None:
    """Until somebody listens; asks the system, as a connection would be the one that is waited for."""
    for _ in range(300):
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        if any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port}")


# Refusals: one line each.


def test_nothing_runs_without_consent(made: SimpleNamespace) -> None:
    target = write(made.folder / "talk.mp4", TALK[:3])
    out, other = made.folder / "out.mp4", made.folder / "other.json"
    with pytest.raises(UserError, match="swap needs --consent FILE"):
        made.run(target, out, consent=None)
    record = json.loads(made.consent.read_text())
    for change, line in (
        ({"reference_sha256": "0" * 64}, "consent for another picture"),
        ({"statement": "yes"}, "statement must say in a sentence"),
        ({"person": " "}, "'person' must be a text that is not empty"),
        ({"statement": 7}, "'statement' must be a text"),
        ({"format": 9}, "format 9 is newer"),
    ):
        other.write_text(json.dumps(record | change))
        with pytest.raises(UserError, match=line):
            made.run(target, out, consent=other)
    other.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        made.run(target, out, consent=other)
    made.reference.write_bytes(made.reference.read_bytes() + b" ")
    with pytest.raises(UserError, match="another picture"):
        check_consent(made.consent, made.reference)
    assert not out.exists() and not list(made.folder.glob(".*parts"))


@pytest.mark.parametrize(
    ("people", "line"),
    [
        ((), "no face found in it"),
        (((RED, 30, 48, 40), (GREEN, 90, 48, 40)), "2 faces in it"),
        (((RED, 30, 48, 20),), "its face is 20 pixels wide"),
    ],
)
def test_references_that_are_refused(people: tuple, line: str) -> None:
    with pytest.raises(UserError, match=rf"me\.png: {line}"):
        reference_face(paint(*people), networks(), 64, "me.png")


def test_targets_and_places_that_are_refused(made: SimpleNamespace) -> None:
    target = write(made.folder / "talk.mp4", TALK[:3])
    (made.folder / "empty.mp4").touch()
    (made.folder / "text.mp4").write_text("no video " * 100)
    (made.folder / "nothing").mkdir()
    for what, line in (("none", "no such file"), ("empty.mp4", "0 bytes"), ("text.mp4", "cannot be opened as a video")):
        with pytest.raises(UserError, match=line):
            made.run(made.folder / what, made.folder / "out.mp4")
    for what, line in ((made.folder / "nothing", "no images in it"), ("camera:x", "a camera is camera:NUMBER")):
        with pytest.raises(UserError, match=line):
            made.run(what, made.folder / "out.mp4")
    with pytest.raises(UserError, match="cannot be opened as a video"):
        made.run(f"rtmp://127.0.0.1:{free_port()}/x", made.folder / "out.mp4")
    for out, line in (
        (made.folder / "out.avi", r"ends in one of \.mp4"),
        (made.folder, "ends in one of"),
        ("ftp://somewhere/x", "streams go to rtmp://"),
        (target, "is the target itself"),
        (f"rtmp://127.0.0.1:{free_port()}/x", "cannot be written to"),
        ("/proc/nobody/out.mp4", "could not be made"),
    ):
        with pytest.raises(UserError, match=line):
            made.run(target, out)
    with pytest.raises(UserError, match=r"--rate must be in"):
        made.run(target, made.folder / "out.mp4", rate=float("nan"))


def test_sound_alone_is_no_video(made: SimpleNamespace) -> None:
    path = made.folder / "sound.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=48000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 48000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    with pytest.raises(UserError, match="no picture in it, only audio"):
        Container(str(path), live=False)


def test_a_changed_file_or_side_file_is_found(made: SimpleNamespace) -> None:
    target, out = write(made.folder / "talk.mp4", TALK[:3]), made.folder / "out.mp4"
    assert made.run(target, out) == 0
    assert (made.folder / "key.pem").stat().st_mode & 0o777 == 0o600
    note = side_file(out).read_text()
    side_file(out).write_text(note.replace("A. Person", "B. Person"))
    with pytest.raises(UserError, match="signature is not valid"):
        check_side_file(out)
    side_file(out).write_text(note)
    check_side_file(out)
    out.write_bytes(out.read_bytes() + b"x")
    with pytest.raises(UserError, match="has changed since it was signed"):
        check_side_file(out)


# The generator's side.


@pytest.mark.parametrize("generator", [CopyPaste(64, 3), PoissonBlend(64, 3)])
def test_baselines_fulfil_the_protocol(generator: CopyPaste | PoissonBlend) -> None:
    reference = torch.full((3, 64, 64), 0.5)
    crops = torch.zeros(2, 3, 3, 64, 64)
    active = torch.tensor([[True, True, False], [False, False, False]])
    control = FaceControl(crops, torch.ones(2, 3, 1, 64, 64), torch.zeros(2, 3, 68, 2), active)
    assert (control.batch, control.length) == (2, 3)
    state = generator.begin(reference, 2)
    faces, state = generator.generate(control, state.reset(torch.tensor([True, False])))
    assert faces.shape == crops.shape and torch.isfinite(faces).all()
    if isinstance(generator, PoissonBlend):  # flat gradients on a flat border: the border's value
        assert (faces[0, 0] - crops[0, 0]).abs().max() < 0.03
    else:
        assert (faces == 0.5).all()
    assert control.frames(1, 3).length == 2 and control.select(torch.tensor([1])).batch == 1
    hidden = control.drop(torch.tensor([True, False]))
    assert torch.equal(hidden.crops[1], crops[1])


def test_poisson_blends_every_picture_alike() -> None:
    rng = torch.Generator().manual_seed(0)
    reference, crop = torch.rand(2, 3, 64, 64, generator=rng) * 2 - 1
    control = FaceControl(
        crop.expand(1, 4, 3, 64, 64), torch.ones(1, 4, 1, 64, 64), torch.zeros(1, 4, 68, 2),
        torch.ones(1, 4, dtype=torch.bool),
    )  # fmt: skip
    generator = PoissonBlend(64, 4)
    faces, _ = generator.generate(control, generator.begin(reference, 1))
    assert (faces[0] == faces[0, :1]).all() and (faces[0, 0] - crop).abs().mean() > 0.1


class Counting:
    """A generator with a memory: it paints how many frames its row has made since it was reset."""

    size, chunk = 32, 4

    def begin(self, reference: torch.Tensor, rows: int) -> "CountingState":
        return CountingState(torch.zeros(rows))

    def generate(self, control: FaceControl, state: "CountingState") -> tuple[torch.Tensor, "CountingState"]:
        count = state.made[:, None] + torch.arange(1, 5)
        return (count / 100)[:, :, None, None, None].expand(control.crops.shape), CountingState(count[:, -1])


class CountingState:
    def __init__(self, made: torch.Tensor) -> None:
        self.made = made

    def reset(self, rows: torch.Tensor) -> "CountingState":
        return CountingState(torch.where(rows, 0.0, self.made))


def test_a_generator_s_state_goes_from_chunk_to_chunk_and_is_reset_for_another_face() -> None:
    swapper = Swapper(Tracker(networks(), Tracking(every=2)), Counting(), torch.zeros(3, 32, 32), Nothing())
    state, made = swapper.begin(), []
    people = [(RED, 50, 50, 36)] * 8 + [None] * 24 + [(GREEN, 60, 50, 36)] * 8
    for start in range(0, len(people), 4):
        pictures = [
            Picture(paint(*([person] if person else [])), i)
            for i, person in enumerate(people[start : start + 4], start)
        ]
        seams, state = swapper.chunk(pictures, Fraction(1, 25), state)
        made.append((float(state.generated.made[0]), [len(s) for s in seams]))
    assert made[0] == (4.0, [1] * 4) and made[1] == (8.0, [1] * 4)
    assert made[-1] == (8.0, [1] * 4)  # another person: from the beginning
    assert any(not any(seams) for _, seams in made)


def test_the_label_fits_small_pictures() -> None:
    for height, width in ((16, 16), (90, 40), (720, 1280)):
        picture = np.full((height, width, 3), 100, np.uint8)
        draw_label(picture)
        assert picture.max() > 150 and (picture[: height // 2 - 1] == 100).all()
