"""Alignment, filter, region, mask, colours: closed forms and what must not change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from painted import points_in

from worldmodel.face.alignment import MEAN_FACE, Pose, apply, fit, fit_points, invert, turned_away
from worldmodel.face.colour import match, ring
from worldmodel.face.occlude import SkinColour
from worldmodel.face.one_euro import OneEuro
from worldmodel.face.region import PADDING, crop_region, paste, soft_mask, warp

POSES = st.builds(
    Pose, st.floats(8, 400), st.floats(-3, 3), st.floats(-50, 900), st.floats(-50, 500)
)  # beyond the frame too


@given(POSES)
def test_fit_finds_the_pose_that_placed_a_mean_face(pose: Pose) -> None:
    landmarks = np.concatenate((np.zeros((17, 2)), apply(pose.matrix(1, 0.0), MEAN_FACE - 0.5)))
    found, misfit = fit(landmarks)
    np.testing.assert_allclose(found.vector(), pose.vector(), atol=1e-6)
    assert misfit < 1e-6


@given(POSES, st.integers(1, 300), st.floats(0, 1))
def test_a_crop_shows_the_unit_square_with_its_padding(pose: Pose, size: int, padding: float) -> None:
    """Corners of the crop are those of the padded square; there and back is where it began."""
    corners = np.array(((-0.5, -0.5), (size - 0.5, size - 0.5)))
    half = pose.scale * (0.5 + padding)
    cos, sin = np.cos(pose.angle), np.sin(pose.angle)
    expected = np.array((pose.x, pose.y)) + np.array(((-half, -half), (half, half))) @ np.array(
        ((cos, sin), (-sin, cos))
    )
    matrix = pose.matrix(size, padding)
    np.testing.assert_allclose(apply(matrix, corners), expected, atol=1e-6)
    np.testing.assert_allclose(apply(invert(matrix), apply(matrix, corners)), corners, atol=1e-6)


def test_fit_points_is_the_least_squares_solution() -> None:
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    rows = [(x, -y, 1, 0) for x, y in source] + [(y, x, 0, 1) for x, y in source]  # of (a, b, tx, ty)
    (a, b, x, y), *_ = np.linalg.lstsq(np.array(rows), target.T.ravel(), rcond=None)
    np.testing.assert_allclose(fit_points(source, target), ((a, -b, x), (b, a, y)), atol=1e-12)


def test_turned_away() -> None:
    face = points_in(np.array((0, 0, 100, 100)))
    assert turned_away(face) < 0.05
    face[30] = face[0]
    assert turned_away(face) == pytest.approx(1)


def test_one_euro_of_a_constant_speed_and_of_rest() -> None:
    """A ramp is followed with the lag speed / (2 pi cutoff); a jump decays by the share of the cutoff at rest."""
    euro, dt, speed = OneEuro(still=2.0, rise=3.0, of_speed=1.0), 0.01, 0.7
    state = euro.begin(np.zeros(1))
    for i in range(1, 4000):
        state = euro.step(state, np.array([speed * dt * i]), dt)
    cutoff = 2.0 + 3.0 * speed
    assert state.speed[0] == pytest.approx(speed, rel=2e-2)
    assert speed * dt * 3999 - state.value[0] == pytest.approx(speed / (2 * np.pi * cutoff), rel=3e-2)
    calm = OneEuro(still=2.0, rise=0.0)
    after = calm.step(calm.begin(np.zeros(1)), np.ones(1), dt)
    assert after.value[0] == pytest.approx(1 / (1 + 1 / (2 * np.pi * 2.0 * dt)), rel=1e-12)
    assert calm.step(after, np.ones(1), 0.0) is after


def test_one_euro_divides_speeds_by_their_unit() -> None:
    euro = OneEuro(still=1.0, rise=5.0)
    one = euro.step(euro.begin(np.zeros(2)), np.array((1.0, 100.0)), 0.04, np.array((1.0, 100.0)))
    assert one.value[1] == pytest.approx(100 * one.value[0], rel=1e-12)


def test_warp_by_whole_pixels_and_by_averages() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    np.testing.assert_array_equal(warp(picture, np.array(((1.0, 0, 7), (0, 1, 5))), 16), picture[5:21, 7:23])
    twice = warp(picture, np.array(((2.0, 0, 4.5), (0, 2, 6.5))), 12).astype(float)
    blocks = picture[6:30, 4:28].reshape(12, 2, 12, 2, 3).mean((1, 3))
    assert np.abs(twice - blocks).max() <= 0.51


def test_soft_mask_has_an_edge_of_one_width_and_a_free_border() -> None:
    mask = soft_mask(256)
    assert mask.dtype == np.float32 and mask.max() == 1 and mask.min() == 0
    assert not mask[:4].any() and not mask[-4:].any() and not mask[:, :4].any() and not mask[:, -4:].any()
    middle = mask[round(0.535 * 256)]
    widths = [np.count_nonzero((half > 0) & (half < 1)) for half in (middle[:128], middle[128:])]
    assert max(widths) - min(widths) <= 1
    assert ring(mask).sum() > 0.05 * 256 * 256


def test_paste_changes_nothing_outside_and_all_inside() -> None:
    rng = np.random.default_rng(1)
    before = rng.integers(0, 256, (120, 160, 3), np.uint8)
    picture, pose, mask = before.copy(), Pose(40.0, 0.4, 70.0, 60.0), soft_mask(64)
    paste(picture, np.full((64, 64, 3), 300.0, np.float32), mask, pose)
    y, x = np.mgrid[:120, :160]
    place = apply(invert(pose.matrix(64, PADDING)), np.stack((x, y), -1).reshape(-1, 2).astype(float)).reshape(
        120, 160, 2
    )
    near = np.zeros((120, 160), bool)  # of a pixel of the mask above 0
    inside = (place > -1).all(-1) & (place < 64).all(-1)
    low = np.floor(place[inside]).astype(int)
    reach = np.pad(mask, 1)[
        np.stack([low[:, 1] + 1 + d for d in (0, 0, 1, 1)]), np.stack([low[:, 0] + 1 + d for d in (0, 1, 0, 1)])
    ]
    near[inside] = (reach > 0).any(0)
    np.testing.assert_array_equal(picture[~near], before[~near])
    assert (picture[60, 70] == 255).all()
    assert (picture != before).any(-1).sum() > 0.9 * near.sum()


def test_paste_beyond_the_frame_and_with_an_empty_mask() -> None:
    before = np.full((20, 30, 3), 9, np.uint8)
    for pose, mask in (
        (Pose(10.0, 0, -200.0, 5.0), soft_mask(32)),
        (Pose(10.0, 0, 10.0, 5.0), np.zeros((32, 32), np.float32)),
    ):
        picture = before.copy()
        paste(picture, np.zeros((32, 32, 3), np.float32), mask, pose)
        np.testing.assert_array_equal(picture, before)
    picture = before.copy()
    paste(picture, np.zeros((32, 32, 3), np.float32), soft_mask(32), Pose(16.0, 0, 0.0, 0.0))  # a corner of it
    assert (picture[0, 0] == 0).all() and (picture[-1, -1] == 9).all()


def test_match_brings_medians_and_spreads_together() -> None:
    rng = np.random.default_rng(0)
    new = rng.normal(120, 12, (64, 64, 3)).astype(np.float32)
    target = new * np.float32(1.2) + np.array((10, -20, 5), np.float32)
    found = match(new, target, np.ones((64, 64), bool))
    np.testing.assert_allclose(found.apply(new), target, atol=1e-2)
    same = match(new, target, np.zeros((64, 64), bool))
    np.testing.assert_array_equal(same.apply(new), new)


def test_match_limits_contrast_and_takes_colour_out_for_a_grey_target() -> None:
    rng = np.random.default_rng(0)
    new = rng.uniform(60, 200, (64, 64, 3)).astype(np.float32)
    grey = np.repeat(rng.uniform(100, 120, (64, 64, 1)), 3, -1).astype(np.float32)
    out = match(new, grey, np.ones((64, 64), bool)).apply(new)
    assert np.ptp(out, -1).mean() < 0.3 * np.ptp(new, -1).mean()
    assert np.median(out) == pytest.approx(110, abs=1.5)
    brightness = np.array((0.299, 0.587, 0.114))
    spread = np.std(out @ brightness) / np.std(new @ brightness)
    assert spread == pytest.approx(0.7, abs=0.02)  # the least gain


def test_match_moves_slowly() -> None:
    flat = np.full((8, 8, 3), 100, np.float32)
    one, other = (match(flat, flat + d, np.ones((8, 8), bool)) for d in (0, 60))
    assert one.towards(other, 0.3).apply(flat).mean() == pytest.approx(100 + 60 * (1 - np.exp(-1)), rel=1e-5)
    np.testing.assert_allclose(one.towards(other, 1e9).apply(flat), other.apply(flat), atol=1e-3)


def test_skin_colour_sees_a_blue_cup_but_not_a_hand() -> None:
    rng = np.random.default_rng(0)
    skin = np.clip(np.array((190, 140, 120)) + rng.normal(0, 4, (128, 128, 3)), 0, 255).astype(np.uint8)
    assert SkinColour().visible(skin).min() == 1
    cup, hand = skin.copy(), skin.copy()
    cup[95:, :] = (40, 60, 200)
    hand[95:, :] = (170, 125, 107)
    visible = SkinColour().visible(cup)
    assert visible[105:, 10:50].max() < 0.1 and visible[30:60].min() == 1
    assert SkinColour().visible(hand).min() == 1  # the limit that its docstring states


@pytest.mark.parametrize("size", [64, 256])
def test_crop_and_paste_of_the_same_face_change_little(size: int) -> None:
    """Cutting out and pasting back what was cut out is near to nothing on a smooth picture."""
    y, x = np.mgrid[:100, :120]
    before = np.stack((x + y, 200 - x, 60 + y), -1).astype(np.uint8)
    picture, pose = before.copy(), Pose(36.0, -0.5, 60.0, 50.0)
    crop = crop_region(picture, pose, size)
    paste(picture, crop.astype(np.float32), soft_mask(size), pose)
    assert np.abs(picture.astype(int) - before).max() <= 1
