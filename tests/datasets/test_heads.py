"""The renderer of heads against what is known of its pictures, and the clips of exact swaps made with it."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel import noise
from worldmodel.datasets.heads.motion import Motion
from worldmodel.datasets.heads.parameters import Parameters
from worldmodel.datasets.heads.person import Face, Hair, Person
from worldmodel.datasets.heads.render import Rendered, render, seen_landmarks
from worldmodel.datasets.heads.scene import Background, Expression, Light, Occluder, Pose, Scene
from worldmodel.datasets.heads.swaps import HeadSwaps, views
from worldmodel.errors import UserError
from worldmodel.face.alignment import fit
from worldmodel.face.faces import MISFIT
from worldmodel.face.region import PADDING

SIZE = 64
CLASSES: tuple[type[Parameters], ...] = (Face, Hair, Expression, Pose, Light, Background, Occluder)


def drawn(count: int, first: int = 0) -> Scene:
    """Scenes of which everything is drawn from the ranges."""
    seed = noise.row_seed(3, torch.arange(first, first + count))
    person = Person.number(torch.arange(first, first + count))
    return Scene(person, *(cls.draw(seed) for cls in (Expression, Pose, Light, Background, Occluder)))


def plain(count: int = 1, **pose: float) -> Scene:
    """Heads in the middle of a frame, at rest, lit from the front, with nothing before them."""
    rest = replace(
        Expression.middle(count), **{n: torch.zeros(count) for n in ("open", "smile", "round", "frown", "blink")}
    )
    where = {name: torch.full((count,), value) for name, value in ({"scale": 0.38, "y": 0.5} | pose).items()}
    light = replace(Light.middle(count), side=torch.zeros(count))
    person = Person.number(torch.arange(count))
    bald = replace(person.hair, length=torch.full((count,), -0.5), fringe=torch.zeros(count), waves=torch.zeros(count))
    smooth = replace(person.face, freckles=torch.full((count,), -1.0))
    return Scene(
        Person(smooth, bald),
        rest,
        replace(Pose.middle(count), **where),
        light,
        Background.middle(count),
        Occluder.none(count),
    )


def rows_of(made: Rendered, rows: torch.Tensor) -> list[torch.Tensor]:
    return [getattr(made, name)[rows] for name in Rendered.__slots__]


@pytest.mark.parametrize("cls", CLASSES)
def test_draws_fill_their_ranges_and_keep_to_them(cls: type[Parameters]) -> None:
    many = cls.draw(torch.arange(4000))
    many.check()
    shares = many.vector()
    assert shares.min() >= 0 and shares.max() <= 1
    torch.testing.assert_close(shares.mean(0), torch.full_like(shares[0], 0.5), atol=0.03, rtol=0)  # 5 sigma
    torch.testing.assert_close(shares.var(0), torch.full_like(shares[0], 1 / 12), atol=0.01, rtol=0)
    torch.testing.assert_close(cls.of_shares(shares).vector(), shares, atol=1e-6, rtol=0)


def test_no_two_classes_share_their_draws() -> None:
    assert len({cls.PURPOSE for cls in CLASSES}) == len(CLASSES)


def test_a_number_out_of_its_range_is_named() -> None:
    scene = plain(2)
    wrong = replace(scene, pose=replace(scene.pose, yaw=torch.tensor((0.1, float("nan")))))
    with pytest.raises(UserError, match=r"Pose.yaw must be in \[-0.8, 0.8\], not nan in row 1"):
        wrong.check()
    with pytest.raises(UserError, match=r"Face.cheeks: one number for each of 2 rows, not \[3\]"):
        replace(Face.middle(2), cheeks=torch.zeros(3)).check()
    with pytest.raises(UserError, match="one number of rows"):
        replace(scene, light=Light.middle(3))
    with pytest.raises(UserError, match="8 numbers per row"):
        Expression.of_shares(torch.zeros(2, 7))


@pytest.mark.parametrize(("size", "samples"), [(62, 1), (0, 1), (64, 0), (64, 9)])
def test_sizes_that_cannot_be_drawn(size: int, samples: int) -> None:
    with pytest.raises(UserError, match=f"size {size}.* samples {samples}"):
        render(plain(), size, samples=samples)


def test_a_view_for_every_row() -> None:
    with pytest.raises(UserError, match=r"view must be \[2, 2, 3\], not \[1, 2, 3\]"):
        render(plain(2), SIZE, torch.zeros(1, 2, 3))


@settings(deadline=None, max_examples=8)
@given(first=st.integers(0, 2**40), extreme=st.booleans())
def test_anything_in_the_ranges_can_be_drawn(first: int, extreme: bool) -> None:
    scene = drawn(4, first)
    if extreme:  # corners of the ranges
        parts = (scene.person.face, scene.person.hair, scene.expression, scene.pose, scene.light, scene.background)
        face, hair, *rest = (type(part).of_shares(part.vector().round()) for part in parts)
        scene = Scene(Person(face, hair), *rest, scene.occluder)  # pyright: ignore[reportCallIssue]
    scene.check()
    made = render(scene, 32)
    assert made.picture.shape == (4, 3, 32, 32) and made.landmarks.shape == (4, 68, 2)
    assert torch.isfinite(made.picture).all() and made.picture.abs().max() <= 1
    for mask in (made.head, made.face, made.occlusion):
        assert mask.shape == (4, 1, 32, 32) and mask.min() >= 0 and mask.max() <= 1
    assert (made.face <= made.head).all()
    assert torch.isfinite(made.landmarks).all()
    assert (made.head.flatten(1).mean(1) > 0.03).all()


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    scene = drawn(20)
    whole = render(scene, SIZE)
    picked = torch.tensor((17, 3, 3))
    for here, there in zip(
        rows_of(whole, picked), rows_of(render(scene.select(picked), SIZE), torch.arange(3)), strict=True
    ):
        assert torch.equal(here, there)
    again = render(drawn(20), SIZE)
    assert all(torch.equal(a, b) for a, b in zip(rows_of(whole, picked), rows_of(again, picked), strict=True))


def test_a_symmetric_head_is_its_own_mirror_image() -> None:
    made = render(plain(4), SIZE)
    inside = (made.face == 1) & (made.face.flip(3) == 1)
    assert inside.flatten(1).sum(1).min() > 400
    different = (made.picture - made.picture.flip(3)).abs() * inside
    assert different.max() < 2 / 127.5
    assert (made.head - made.head.flip(3)).abs().mean() < 2e-3
    mirrored = torch.stack((SIZE - 1 - made.landmarks[..., 0], made.landmarks[..., 1]), -1)
    pairs = [*range(16, -1, -1), *range(26, 16, -1), 27, 28, 29, 30, 35, 34, 33, 32, 31, 45, 44, 43, 42, 47, 46]
    pairs += [39, 38, 37, 36, 41, 40, 54, 53, 52, 51, 50, 49, 48, 59, 58, 57, 56, 55, 64, 63, 62, 61, 60, 67, 66, 65]
    torch.testing.assert_close(mirrored[:, pairs], made.landmarks, atol=1e-3, rtol=0)


@pytest.mark.parametrize("pose", [{}, {"yaw": 0.35, "roll": -0.3}, {"pitch": -0.3, "yaw": -0.3, "x": 0.45}])
def test_landmarks_are_where_the_eyes_are_painted(pose: dict[str, float]) -> None:
    """Two pictures that differ in the colour of the irises only differ around the middle of the eyes' landmarks."""
    scene = plain(3, **pose)
    face = scene.person.face
    made = [
        render(scene.swapped(replace(face, iris_colour=torch.full((3,), colour))), 128, samples=2)
        for colour in (0.0, 1.0)
    ]
    changed = (made[0].picture - made[1].picture).abs().sum(1)
    points = made[0].landmarks
    y, x = torch.meshgrid(torch.arange(128.0), torch.arange(128.0), indexing="ij")
    for eye in (slice(36, 42), slice(42, 48)):
        middle = points[:, eye].mean(1)
        near = changed * (((x - middle[:, 0, None, None]) ** 2 + (y - middle[:, 1, None, None]) ** 2) < 8**2)
        weight = near.flatten(1) / near.flatten(1).sum(1, keepdim=True)
        centre = torch.stack(((weight * x.flatten()).sum(1), (weight * y.flatten()).sum(1)), 1)
        assert (centre - middle).norm(dim=1).max() < 1.5  # pixels, of a head 97 high
    assert changed.sum() > 0


def test_an_open_mouth_is_dark_between_its_inner_landmarks() -> None:
    scene = plain(3)
    talking = replace(scene, expression=replace(scene.expression, open=torch.ones(3)))
    made = render(talking, 128)
    for row in range(3):
        inner = made.landmarks[row, [61, 62, 63, 65, 66, 67]]
        low, high = inner[:, 1].min(), inner[:, 1].max()
        assert high - low > 5
        x, y = inner[:, 0].mean().round().long(), (low + 0.75 * (high - low)).round().long()
        assert made.picture[row, :, y, x].max() < -0.3
    closed = seen_landmarks(scene, 128)
    assert (made.landmarks[:, 57, 1] > closed[:, 57, 1] + 5).all() and (
        made.landmarks[:, 8, 1] > closed[:, 8, 1] + 2
    ).all()


def test_a_head_turns_the_way_its_pose_says() -> None:
    tip, eyes = 30, slice(36, 48)
    rest = seen_landmarks(plain(), SIZE)[0]
    right, down = seen_landmarks(plain(yaw=0.4), SIZE)[0], seen_landmarks(plain(pitch=0.3), SIZE)[0]
    assert right[tip, 0] > rest[tip, 0] + 5 and abs(right[tip, 1] - rest[tip, 1]) < 1e-3
    assert down[tip, 1] > rest[tip, 1] + 3 and abs(down[tip, 0] - rest[tip, 0]) < 1e-3
    rolled = seen_landmarks(plain(roll=0.3), SIZE)[0]
    across = rolled[42:48].mean(0) - rolled[36:42].mean(0)
    assert torch.atan2(across[1], across[0]).item() == pytest.approx(0.3, abs=1e-4)
    far = seen_landmarks(plain(scale=0.2), SIZE)[0] - 31.5
    torch.testing.assert_close(far, (rest - 31.5) * (0.2 / 0.38), atol=1e-3, rtol=0)
    moved = seen_landmarks(plain(x=0.6), SIZE)[0]
    torch.testing.assert_close(moved[eyes] - rest[eyes], torch.tensor((6.4, 0.0)).expand(12, 2), atol=1e-3, rtol=0)


def test_light_from_one_side_lights_that_side() -> None:
    scene = plain()
    for side in (-0.7, 0.7):
        made = render(replace(scene, light=replace(scene.light, side=torch.tensor((side,)))), SIZE)
        inside = (made.face[0, 0] == 1) & (made.face[0, 0].flip(1) == 1)
        grey = made.picture[0].mean(0)
        halves = grey[:, :32][inside[:, :32]].mean(), grey[:, 32:][inside[:, 32:]].mean()
        assert (halves[1] - halves[0]) * side > 0.05


def test_a_swap_keeps_every_bit_outside_the_two_heads() -> None:
    scene = drawn(24)
    other = Person.number(torch.arange(100, 124)).face
    source, swapped = render(scene, SIZE), render(scene.swapped(other), SIZE)
    outside = ((source.head == 0) & (swapped.head == 0)).expand(-1, 3, -1, -1)
    assert torch.equal(source.picture[outside], swapped.picture[outside])
    assert torch.equal(source.occlusion, swapped.occlusion)
    covered = (source.occlusion == 1).expand(-1, 3, -1, -1)
    assert covered.sum() > 1000 and torch.equal(source.picture[covered], swapped.picture[covered])
    open_ = (source.face * swapped.face * (1 - source.occlusion) == 1).expand(-1, 3, -1, -1)
    assert (source.picture - swapped.picture)[open_].abs().mean() > 0.05
    back = render(scene.swapped(other).swapped(scene.person.face), SIZE)
    assert torch.equal(back.picture, source.picture)


def test_identities_differ_in_shape_and_not_in_colour_only() -> None:
    many = Person.number(torch.arange(64))
    one = plain(64)
    points = seen_landmarks(one.swapped(many.face), 100)
    spread = (points - points.mean(0)).pow(2).sum(-1).mean(1).sqrt()
    assert spread.min() > 0.3 and spread.mean() > 1.2  # pixels, of a head 76 high
    assert torch.equal(Person.number(torch.tensor((5,))).face.vector(), many.face.vector()[5:6])


def test_a_view_shows_the_frame_from_nearer() -> None:
    """A shifted view is the shifted frame; an aligned one has its landmarks where the mean face has them."""
    scene = drawn(6)
    frame = render(scene, SIZE)
    shift = torch.tensor(((1.0, 0.0, 5.0), (0.0, 1.0, -3.0))).expand(6, 2, 3)
    moved = render(scene, SIZE, shift)
    torch.testing.assert_close(moved.picture[:, :, 3:, :-5], frame.picture[:, :, :-3, 5:], atol=2e-2, rtol=0)
    torch.testing.assert_close(moved.landmarks, frame.landmarks - torch.tensor((5.0, -3.0)), atol=1e-3, rtol=0)
    aligned = render(scene, SIZE, views(scene, SIZE))
    for points in aligned.landmarks.double().numpy():
        pose, misfit = fit(points)
        assert (pose.scale, pose.angle) == pytest.approx((SIZE / (1 + 2 * PADDING), 0), abs=1e-3)
        assert (pose.x, pose.y) == pytest.approx((31.5, 31.5), abs=1e-2)
        assert misfit < MISFIT


def test_more_samples_change_edges_only() -> None:
    scene = drawn(6)
    coarse, fine = render(scene, SIZE), render(scene, SIZE, samples=4)
    assert (coarse.picture - fine.picture).abs().mean() < 0.03
    assert (coarse.head - fine.head).abs().mean() < 0.02
    torch.testing.assert_close(coarse.landmarks, fine.landmarks)


def test_motion_is_smooth_and_reached_at_any_moment() -> None:
    people, motion = Person.number(torch.arange(3)), Motion(noise.row_seed(1, torch.arange(3)), occluded=1.0)
    moments = torch.arange(200) / 25
    scene = motion.scene(people, moments.expand(3, -1))
    scene.check()
    for part, limit in ((scene.pose, 0.027), (scene.light, 0.0031), (scene.expression, 0.61), (scene.occluder, 0.019)):
        steps = part.vector().unflatten(0, (3, 200)).diff(dim=1).abs()
        assert steps.max() < limit
    assert scene.occluder.kind.unflatten(0, (3, 200)).diff(dim=1).abs().max() == 0
    assert scene.expression.blink.max() > 0.9
    late = motion.scene(people, moments[150:153].expand(3, -1))
    rows = (torch.arange(3)[:, None] * 200 + torch.arange(150, 153)).flatten()
    assert torch.equal(late.pose.vector(), scene.select(rows).pose.vector())
    assert torch.equal(late.expression.vector(), scene.select(rows).expression.vector())
    hour = motion.scene(people, torch.tensor((3600.0,)).expand(3, -1))
    hour.check()


SMALL = HeadSwaps(size=32, length=3, batch=4, references=2, people=20, held_out=5)


def test_clips_of_swaps_are_what_they_say() -> None:
    clip = next(SMALL.batches())[0]
    control = clip.control
    assert clip.x.shape == control.target.crops.shape == (4, 3, 3, 32, 32)
    assert control.target.mask.shape == control.face.shape == (4, 3, 1, 32, 32)
    assert control.reference.shape == (4, 2, 3, 32, 32)
    assert control.landmarks.shape == control.target.landmarks.shape == (4, 3, 68, 2)
    assert (control.batch, control.length) == (4, 3) and control.target.active.all()
    assert torch.equal(clip.index, torch.arange(4))
    assert (control.who[:, 0] != control.who[:, 1]).all()
    seen = (control.target.mask > 0.9).expand_as(clip.x)
    assert (clip.x - control.target.crops)[seen].abs().mean() > 0.03
    for points in control.target.landmarks.flatten(0, 1).double().numpy():
        assert fit(points)[0].scale == pytest.approx(32 / (1 + 2 * PADDING), abs=1e-3)


def test_where_something_is_before_the_face_mask_and_truth_say_so() -> None:
    clip = next(replace(SMALL, occluded=1.0, batch=8).batches())[0]
    free = next(replace(SMALL, occluded=0.0, batch=8).batches())[0]
    hidden = (clip.control.target.mask == 0) & (free.control.target.mask > 0.5)
    assert hidden.sum() > 20
    torch.testing.assert_close(clip.x[hidden.expand_as(clip.x)], clip.control.target.crops[hidden.expand_as(clip.x)])
    assert clip.control.face[hidden].max() == 0
    assert torch.equal(clip.control.who, free.control.who)


def test_the_stream_of_swaps_starts_anywhere_and_divides_among_processes() -> None:
    stream = SMALL.batches()
    _, second = next(stream), next(stream)[0]
    again = next(SMALL.batches(1))[0]
    assert torch.equal(second.x, again.x) and torch.equal(second.control.reference, again.control.reference)
    parts = [next(SMALL.batches(1, rank, 2))[0] for rank in range(2)]
    assert torch.equal(torch.cat([part.x for part in parts]), second.x)
    halves = next(SMALL.batches(1, 0, 1, 2))
    assert torch.equal(torch.cat([half.index for half in halves]), torch.arange(4, 8))
    assert torch.equal(torch.cat([half.control.who for half in halves]), second.control.who)
    later = SMALL.clips("train", torch.arange(4, 8), 2, first=1)
    assert torch.equal(later.x, second.x[:, 1:])
    with pytest.raises(UserError, match="a batch of 4 does not divide into 3 processes"):
        next(SMALL.batches(0, 0, 3))


def test_nobody_is_on_two_sides() -> None:
    assert SMALL.split == {"train": [0, 19], "validation": [20, 24], "test": [25, 29]}
    seed = noise.row_seed(0, torch.arange(3000))
    for side, (low, high) in SMALL.split.items():
        people = torch.stack(SMALL._who(side, seed))
        assert (people.min(), people.max()) == (low, high)
        assert (people[0] != people[1]).all() and (people[1] != people[2]).all() and (people[0] != people[2]).all()
        counts = [np.bincount(each.numpy() - low) for each in people]
        assert min(count.min() for count in counts) > 0.6 * 3000 / (high - low + 1)
    held = next(iter(SMALL.validation_batches(1)))
    assert held.control.who.min() >= 20 and held.control.who.max() <= 24
    assert torch.equal(held.x, next(iter(SMALL.validation_batches(2))).x)


def test_curriculum_and_controls() -> None:
    short = replace(SMALL, curriculum=((2, 1),))
    assert [short.length_at(step) for step in range(4)] == [1, 1, 3, 3]
    control = next(SMALL.batches())[0].control
    dropped = control.drop(torch.tensor((True, False, False, True)))
    assert dropped.reference[0].abs().max() == 0 and torch.equal(dropped.reference[1], control.reference[1])
    part = control.frames(1, 3).select(torch.tensor((2, 0)))
    assert (part.batch, part.length) == (2, 2)
    assert torch.equal(part.target.crops[0], control.target.crops[2, 1:])
    assert torch.equal(part.landmarks[1], control.landmarks[0, 1:]) and torch.equal(part.who, control.who[[2, 0]])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"size": 30}, "size must be a multiple of 4"),
        ({"length": 0}, "length must be at least 1"),
        ({"references": 0}, "references must be at least 1"),
        ({"people": 2}, r"people must be in \[3"),
        ({"occluded": 1.5}, r"occluded 1.5 in \[0, 1\]"),
        ({"fps": float("nan")}, "fps nan"),
        ({"curriculum": ((0, 3),)}, "curriculum"),
    ],
)
def test_settings_that_make_no_clips(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        replace(SMALL, **wrong)


@pytest.mark.needs("h264")
def test_the_demo_writes_a_sheet_and_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from demos.heads import main

    few = ["--clips", "2", "--frames", "3", "--size", "32"]
    assert main([str(tmp_path / "a.png"), *few]) == 0 and main([str(tmp_path / "a.mp4"), *few]) == 0
    sheet = cv2.imread(str(tmp_path / "a.png"))
    assert sheet is not None and sheet.shape == (2 * 2 * 2 * 32, 4 * 2 * 32, 3)
    assert (tmp_path / "a.mp4").stat().st_size > 1000
    assert main([str(tmp_path / "a.gif"), *few]) == 2 and main([str(tmp_path / "b.png"), "--size", "30"]) == 2
    assert "size must be a multiple of 4" in capsys.readouterr().err
