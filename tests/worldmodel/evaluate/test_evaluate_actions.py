"""The probe reads real motion; an exact model scores as reality does, a deaf one fails, and its gaps are zero."""

import numpy as np
import panorama
import pytest
import torch

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl
from worldmodel.errors import UserError
from worldmodel.evaluate.actions import evaluate_actions
from worldmodel.evaluate.counterfactual import Counterfactuals, altered, gap_metrics
from worldmodel.evaluate.following import Judged, Targets, score_metric, sign_metrics
from worldmodel.evaluate.motion import GRID, MOTIONS, body_motion, flow_fields, has_pose
from worldmodel.evaluate.probe import CENTRE, WINDOW, centres, fit, windows
from worldmodel.evaluate.recordings import excerpts

SMALL = {"clips": 10, "frames": 12, "gap_clips": 4, "context": 2, "train_clips": 60, "epochs": 14, "quiet": True}


@pytest.fixture(scope="module")
def recordings():
    return panorama.recordings(12, 80, seed=1), panorama.recordings(6, 60, seed=2)


@pytest.fixture(scope="module")
def exact(recordings):
    return evaluate_actions(panorama.world(), *recordings, **SMALL)


@pytest.fixture(scope="module")
def deaf(recordings):
    return evaluate_actions(panorama.world(deaf=True), *recordings, **SMALL)


def value(report, name):
    return report.metrics[name].value


def test_exact_model_follows_as_well_as_reality(exact):
    assert value(exact, "probe_real") > 0.75
    assert value(exact, "probe_generated") == pytest.approx(value(exact, "probe_real"), abs=1e-9)
    assert value(exact, "probe_ratio") == pytest.approx(1, abs=1e-9)
    assert value(exact, "probe_reconstructed") == pytest.approx(value(exact, "probe_real"), abs=1e-9)
    assert value(exact, "probe_real__pan") == value(exact, "probe_real")
    assert value(exact, "probe_valid_dimensions") == 1
    assert value(exact, "pose_real__turned") > 0.75
    assert value(exact, "sign_generated__pan") == value(exact, "sign_real__pan") >= 0.9
    assert value(exact, "sign_reversed__pan") >= 0.9
    for gap in ("gap_shuffled", "gap_reversed", "gap_null"):
        assert value(exact, gap) > 10
    assert all(good for _, good, _ in exact.verdicts)


def test_deaf_model_scores_like_chance_and_has_no_gaps(deaf, exact):
    assert value(deaf, "probe_real") == pytest.approx(value(exact, "probe_real"), abs=1e-9)
    assert value(deaf, "probe_generated") < 0.1
    assert value(deaf, "probe_ratio") < 0.15
    assert value(deaf, "sign_generated__pan") < 0.75
    for gap in ("gap_shuffled", "gap_reversed", "gap_null"):
        assert value(deaf, gap) == 0
    assert sum(good for _, good, _ in deaf.verdicts) == 1  # only that the probe is valid


def test_only_real_clips_decide_what_counts(exact):
    assert {"forward_step", "left_step"}.isdisjoint(name.split("__")[-1] for name in exact.metrics)
    low, high = exact.metrics["probe_generated"].interval
    assert low < value(exact, "probe_generated") < high
    assert exact.metrics["probe_generated"].n == SMALL["clips"]
    assert exact.seeds == (0, 1)
    assert len(exact.films) == 4
    assert len(exact.figures) == 4


def test_bad_requests(recordings):
    train, held_out = recordings
    with pytest.raises(UserError, match="frames 3"):
        evaluate_actions(panorama.world(), train, held_out, **SMALL | {"frames": 3})
    still = panorama.ArrayRecordings(
        tuple(panorama.Recording(e.pixels, np.full_like(e.actions, 2), e.state) for e in train.episodes), ("pan",)
    )
    with pytest.raises(UserError, match="action 'pan' is constant at 2"):
        evaluate_actions(panorama.world(), still, held_out, **SMALL)


def test_flow_of_a_known_shift():
    strip = np.stack([panorama.view(100 + 2 * i) for i in range(4)])  # 2 pixels of 32 to the left = 4 of 64
    flow = flow_fields(strip[None])
    assert flow.shape == (1, 3, 2, GRID, GRID)
    inner = flow[0, :, :, 3:-3, 3:-3]
    assert np.median(inner[:, 0]) == pytest.approx(-4, abs=0.3)
    assert np.median(inner[:, 1]) == pytest.approx(0, abs=0.2)
    down = flow_fields(np.swapaxes(strip, 1, 2)[None].copy())
    assert np.median(down[0, :, 1, 3:-3, 3:-3]) == pytest.approx(-4, abs=0.3)


def test_body_motion_in_its_own_frame():
    names = ("pitch", "x", "y", "angle")
    states = np.array([[0, 0, 0, 90], [0, 0, 2, 90], [0, -3, 2, 350], [0, -3, 2, 5.0]])
    found = body_motion(states, names)
    np.testing.assert_allclose(found[0], [2, 0, 0], atol=1e-12)
    np.testing.assert_allclose(found[1], [0, 3, -100], atol=1e-12)
    np.testing.assert_allclose(found[2], [0, 0, 15], atol=1e-12)
    assert has_pose(names)
    assert not has_pose(("x", "y"))


def test_windows_and_their_centres_belong_together():
    steps = np.arange(9, dtype=np.float32)
    fields = np.broadcast_to(steps[None, :, None, None, None], (2, 9, 2, GRID, GRID)).copy()
    fields[:, :, 1] += 100
    seen, middle = windows(fields), centres(np.broadcast_to(steps[None, :, None], (2, 9, 1)))
    assert seen.shape == (2, 9 - WINDOW + 1, 2 * WINDOW, GRID, GRID)
    assert middle.shape == (2, 9 - WINDOW + 1, 1)
    for n in range(seen.shape[1]):
        assert seen[0, n, ::2, 0, 0].tolist() == list(range(n, n + WINDOW))
        assert seen[0, n, 1::2, 0, 0].tolist() == list(range(n + 100, n + 100 + WINDOW))
        assert middle[0, n, 0] == n + CENTRE


def test_fit_repeats_leaves_the_generator_alone_and_learns():
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(40, 12, 2)).astype(np.float32)
    fields = np.broadcast_to(steps[..., None, None], (40, 12, 2, GRID, GRID)) + np.zeros((), np.float32)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    targets = np.stack((100 + 5 * steps[..., 0], steps[..., 1]), -1)
    probe, again = (fit(fields, targets, ("a", "b"), epochs=10, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert (probe.predict(fields) == again.predict(fields)).all()
    judged = Judged(("a", "b"), centres(targets).astype(float), probe.predict(fields))
    assert judged.scores().min() > 0.8
    with pytest.raises(ValueError, match=r"\['b'\] are constant"):
        fit(fields, targets * [1, 0], ("a", "b"))


def test_targets_leave_out_motion_that_does_not_happen(recordings):
    pieces = excerpts(recordings[0], 10, 8)
    targets = Targets.of(recordings[0], pieces)
    assert targets.names == ("pan", "turned")
    values = targets.values(pieces.actions, pieces.state)
    np.testing.assert_allclose(values[..., 0], values[..., 1], atol=1e-5)
    with pytest.raises(UserError, match="no pose"):
        targets.values(pieces.actions, None)
    assert len(MOTIONS) == 3


def judged_with_error(error):
    rng = np.random.default_rng(0)
    true = rng.normal(size=(20, 6, 2))
    return Judged(("a", "b"), true, true + error * rng.normal(size=true.shape))


def test_scores_are_r2_per_target():
    assert judged_with_error(0).scores().tolist() == [1, 1]
    judged = judged_with_error(0.5)
    expected = 1 - ((judged.true - judged.predicted) ** 2).sum((0, 1)) / (
        (judged.true - judged.true.mean((0, 1))) ** 2
    ).sum((0, 1))
    assert judged.scores().tolist() == pytest.approx(expected.tolist())
    metric = score_metric(judged, np.array([0, 1]), seed=0)
    assert metric.value == pytest.approx(expected.mean())
    assert metric.n == 20


def test_signs_are_counted_for_valid_two_sided_actions():
    spec = ActionSpec(names=("both", "ahead", "weak"), low=(-2.0, 0.0, -1.0), high=(1.0, 3.0, 1.0))
    true = np.array([[[0.7, 1, 1], [-0.7, 2, -1], [0.5, 1, 1], [-1, 0, 1]]])
    read = np.array([[[0.1, 1, 1], [0.1, 1, 1], [-1, 1, 1], [-1, 1, 1]]])
    arms = {"real": Judged(spec.names, true, read)}
    found = sign_metrics(arms, spec, np.array([True, True, False]))
    assert list(found) == ["sign_real__both"]  # clear from 0.3 * 2 = 0.6 on: three steps, two of them right
    assert (found["sign_real__both"].value, found["sign_real__both"].n) == (pytest.approx(2 / 3), 3)


def test_altered_controls():
    control = ActionControl(torch.arange(12.0).reshape(3, 2, 2), torch.ones(3, 2, dtype=torch.bool))
    assert altered(control, "shuffled").action[:, 0, 0].tolist() == [4, 8, 0]
    assert (altered(control, "reversed").action == -control.action).all()
    null = altered(control, "null")
    assert (null.action == control.action).all()
    assert not null.has_action.any()
    with pytest.raises(ValueError, match="no counterfactual arm 'later'"):
        altered(control, "later")


def test_gaps_are_relative_to_seeds():
    grey = np.full((3, 5, 4, 4, 3), 100, np.uint8)
    arms = {"shuffled": grey + 30, "reversed": grey, "null": grey - 15}
    metrics = gap_metrics(Counterfactuals(grey, grey + 10, arms), seed=0)
    assert [metrics[f"gap_{a}"].value for a in arms] == pytest.approx([3, 0, 1.5])
    assert metrics["seed_difference"].value == 10
    same_seeds = gap_metrics(Counterfactuals(grey, grey, arms), seed=0)  # floor: half a level
    assert same_seeds["gap_shuffled"].value == 60
