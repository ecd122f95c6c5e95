"""The measures of a swap against closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.datasets.heads.landmarks import landmarks as landmarks_of
from worldmodel.datasets.heads.person import Face, Hair
from worldmodel.datasets.heads.rays import places, rotation
from worldmodel.datasets.heads.scene import Expression, Pose
from worldmodel.datasets.heads.shape import shape_of
from worldmodel.face.evaluate.axes import Gallery, identity_spread, retrieved
from worldmodel.face.evaluate.fidelity import psnr
from worldmodel.face.evaluate.head_pose import (
    HEAD,
    STILL,
    expression_errors,
    head_rotation,
    in_face,
    jitter,
    pose_errors,
)
from worldmodel.face.evaluate.seam import border_gradients, colour_shifts, ring_errors, seam_ratios
from worldmodel.face.evaluate.slope import slope
from worldmodel.face.evaluate.warping import Flows, flows_of, warping_errors


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def turned(yaw: float, pitch: float, roll: float, scale: float = 30.0) -> np.ndarray:
    """Landmarks [1, 68, 2] of the template's head at a pose; those that it does not have lie in the middle."""
    pose = Pose(*(torch.tensor([value]) for value in (yaw, pitch, roll, scale, 32.0, 32.0)))
    points = torch.zeros(1, 68, 3, dtype=torch.float64)
    points[0, list(STILL)] = torch.from_numpy(HEAD)
    return places(pose, points.float()).double().numpy()


@given(st.floats(-0.8, 0.8), st.floats(-0.4, 0.4), st.floats(-0.5, 0.5))
def test_the_turning_of_a_head_is_found_again(yaw: float, pitch: float, roll: float) -> None:
    pose = Pose(*(torch.tensor([value]) for value in (yaw, pitch, roll, 1.0, 0.0, 0.0)))
    np.testing.assert_allclose(head_rotation(turned(yaw, pitch, roll))[0], rotation(pose)[0].numpy(), atol=1e-5)


def test_pose_errors_are_angles() -> None:
    flat = turned(0.0, 0.0, 0.0)
    for pose in ((0.3, 0.0, 0.0), (0.0, -0.3, 0.0), (0.0, 0.0, 0.3)):
        assert pose_errors(turned(*pose, scale=17.0), flat)[0] == pytest.approx(np.degrees(0.3), abs=1e-3)


def test_the_template_is_the_middle_of_the_procedural_heads() -> None:
    names = Expression.ranges()
    still = Expression(*(torch.zeros(1) for _ in names))
    face, hair = Face.middle(1), Hair.middle(1)
    points = landmarks_of(face, still, shape_of(face, hair, still))[0, list(STILL)]
    np.testing.assert_allclose(points.numpy(), HEAD, atol=6e-4)


def test_an_expression_is_what_changes_in_the_face(rng: np.random.Generator) -> None:
    still = np.tile(rng.normal(size=(1, 68, 2)) + turned(0.0, 0.0, 0.0) * 3, (4, 1, 1))
    angle, moved = 0.4, still.copy()
    moved[2:] = moved[2:] @ (2.5 * np.array(((np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))))) + 7
    np.testing.assert_allclose(in_face(moved), in_face(still), atol=1e-9)  # place, size and roll do not count
    np.testing.assert_allclose(expression_errors(moved, still), 0, atol=1e-9)
    other = still + rng.normal(size=(1, 68, 2))  # another face, which does nothing either
    np.testing.assert_allclose(expression_errors(other, still), 0, atol=1e-9)
    # The lower lip of one frame of four moves by d units of the mean face: 3/4 d there and 1/4 d in the others.
    scale = np.linalg.norm(in_face(still)[0, 10] - in_face(still)[0, 13]) / np.linalg.norm(still[0, 27] - still[0, 30])
    smile = still.copy()
    smile[1, 57, 1] += 4.0
    apart = 100 * 4.0 * scale / 51**0.5
    np.testing.assert_allclose(expression_errors(smile, still), np.array((0.25, 0.75, 0.25, 0.25)) * apart, rtol=1e-6)


def test_jitter_is_the_second_difference() -> None:
    steady = np.arange(6.0)[:, None, None] * np.ones((6, 68, 2)) * 3
    assert jitter(steady) == 0
    shaken = steady + np.array((0.0, 1, 0, 1, 0, 1))[:, None, None] * np.array((0.6, 0.8))
    assert jitter(shaken) == pytest.approx(2.0)  # an alternation by 1 has second differences of 2


def test_psnr_within_a_mask() -> None:
    truth = torch.zeros(2, 3, 8, 8)
    made = truth.clone()
    made[1, :, :, :4] += 0.2  # a tenth of the range, in the left half
    left = torch.zeros(2, 1, 8, 8)
    left[..., :4] = 1
    assert psnr(made, truth).tolist() == pytest.approx([100, 20 + 10 * np.log10(2)], abs=1e-5)
    assert psnr(made, truth, left).tolist() == pytest.approx([100, 20], abs=1e-5)
    assert psnr(made, truth, 1 - left).tolist() == pytest.approx([100, 100])
    assert np.isnan(psnr(made, truth, 0 * left).numpy()).all()


def slanted(size: int = 32, first: int = 10, wide: int = 5) -> np.ndarray:
    """A mask [1, S, S] that rises from 0 to 1 over `wide` pixels of every row."""
    line = np.clip((np.arange(size) - first) / wide, 0, 1).astype(np.float32)
    return np.tile(line, (1, size, 1))


def test_a_seam_is_a_step_across_the_border_of_the_mask() -> None:
    mask, wide, g, step = slanted(), 5, 2.0, 20.0
    ramp = np.tile(g * np.arange(32.0)[None, None, :, None], (1, 32, 1, 3))
    assert border_gradients(ramp, mask)[0] == pytest.approx(g)
    pasted = ramp + step * mask[..., None]
    # Inside the ramp of the mask (pixels 11 to 14) central differences see step / wide.
    assert border_gradients(pasted, mask)[0] == pytest.approx(g + step / wide, rel=1e-5)
    found = seam_ratios(border_gradients(ramp, mask), border_gradients(pasted, mask))
    assert found[0] == pytest.approx((g + step / wide) / g, rel=1e-5)
    along = np.tile(50.0 * np.arange(32.0)[None, :, None, None], (1, 1, 32, 3))
    assert border_gradients(along, mask)[0] == pytest.approx(0)  # what changes along the border is no seam
    assert np.isnan(border_gradients(ramp, np.zeros_like(mask))).all()


def test_colours_of_the_ring_and_of_the_face() -> None:
    mask = slanted()
    before = np.full((1, 32, 32, 3), 100, np.uint8)
    after = before.copy()
    after[..., 0] += 3
    after[..., 1] += 4
    assert ring_errors(before, after, mask)[0] == pytest.approx(5)
    grey = before + np.uint8(6)
    np.testing.assert_allclose(colour_shifts(before, grey, mask), [[6, 0, 0, 0]], atol=1e-7)
    red = before.copy()
    red[..., 0] += 10
    np.testing.assert_allclose(colour_shifts(before, red, mask), [[2.99, -1.68736, 5.0, 0]], atol=1e-7)
    striped = before.copy()
    striped[:, ::2] += 8  # a deviation of 4 around a mean of 4 more
    np.testing.assert_allclose(colour_shifts(before, striped, mask), [[4, 0, 0, 4]], atol=1e-7)


def test_warping_error_of_an_exactly_translated_clip_is_nothing(rng: np.random.Generator) -> None:
    wide = rng.integers(0, 256, (40, 60, 3), np.uint8)
    video = np.stack([wide[4:36, 2 * k : 2 * k + 32] for k in range(4)])  # the picture moves 2 to the left
    flow = np.zeros((3, 32, 32, 2), np.float32)
    flow[..., 0] = -2
    flows, mask = Flows(flow, np.ones((3, 32, 32), np.bool_)), np.ones((4, 32, 32), np.float32)
    assert warping_errors(video, flows, mask).tolist() == [0, 0, 0]
    still = Flows(np.zeros_like(flow), flows.seen)
    same = np.full((4, 32, 32, 3), 100, np.uint8)
    same[1] += 10  # one frame is brighter: two changes by 10
    np.testing.assert_allclose(warping_errors(same, still, mask), [10, 10, 0])
    assert np.isnan(warping_errors(video, flows, 0 * mask)).all()


def test_flow_is_found_and_not_trusted_where_pictures_end(rng: np.random.Generator) -> None:
    coarse = torch.from_numpy(rng.uniform(0, 255, (1, 3, 20, 20)).astype(np.float32))
    wide = torch.nn.functional.interpolate(coarse, size=(100, 100), mode="bicubic").clamp(0, 255)
    wide = wide[0].movedim(0, -1).byte().numpy()
    video = np.stack([wide[10:74, 3 * k : 3 * k + 64] for k in range(3)])
    flows = flows_of(video)
    inner = flows.there[:, 16:-16, 16:-16]
    np.testing.assert_allclose(inner[..., 0], -3, atol=0.2)
    np.testing.assert_allclose(inner[..., 1], 0, atol=0.2)
    assert flows.seen[:, 16:-16, 16:-16].mean() > 0.99 and not flows.seen[:, :, :2].any()
    assert (warping_errors(video, flows, np.ones((3, 64, 64), np.float32)) < 3).all()
    assert flows_of(video[:1]).there.shape == (0, 64, 64, 2)


def test_the_slope_of_a_known_drift_with_its_interval(rng: np.random.Generator) -> None:
    minutes = np.arange(3000) / 1500  # 2 minutes at 25 frames/s
    line = slope(0.7 - 0.03 * minutes, minutes)
    assert line.value == pytest.approx(-0.03) and line.interval == pytest.approx((-0.03, -0.03))
    inside, halves = 0, []
    for _ in range(200):
        found = slope(0.7 - 0.03 * minutes + rng.normal(0, 0.1, 3000), minutes)
        assert found.interval is not None
        inside += found.interval[0] <= -0.03 <= found.interval[1]
        halves.append((found.interval[1] - found.interval[0]) / 2)
    # White noise of s has a standard error of s / sqrt(T var(t)); 18 degrees of freedom widen it to 2.101 of it.
    assert np.mean(halves) == pytest.approx(2.101 * 0.1 / np.sqrt(3000 * minutes.var()), rel=0.03)
    assert 180 <= inside <= 198  # 95 % of 200
    missing = 0.7 - 0.03 * minutes
    missing[::7] = np.nan
    assert slope(missing, minutes).value == pytest.approx(-0.03)
    assert slope(np.array((1.0, 3.0)), np.array((0.0, 0.5))).value == 4
    assert slope(np.array((1.0, 3.0)), np.array((0.0, 0.5))).interval is None
    assert slope(np.array((1.0,)), np.array((0.0,))).value == 0


def test_identity_spread_and_retrieval() -> None:
    first, second, between = np.array((1.0, 0)), np.array((0, 1.0)), np.array((0.6, 0.8))
    assert identity_spread(np.stack([first] * 5)) == pytest.approx(0)
    assert identity_spread(np.stack([first, second])) == pytest.approx(0.5)
    assert identity_spread(np.stack([first, -first])) == pytest.approx(1)
    gallery = Gallery(np.stack((first, second)), (70, 71))
    frames = np.stack((first, between, second, second))
    assert retrieved(frames, gallery, 70) == 0.25 and retrieved(frames, gallery, 71) == 0.75
