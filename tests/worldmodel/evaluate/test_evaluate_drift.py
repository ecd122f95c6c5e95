"""An exact model is exact at every horizon and drifts nowhere; planted faults move each number the right way."""

import numpy as np
import panorama
import pytest
import torch

from worldmodel.errors import UserError
from worldmodel.evaluate.drift import evaluate_drift
from worldmodel.evaluate.frechet import frechet_distance, reference_of
from worldmodel.evaluate.horizon import closeness, repeat_last
from worldmodel.evaluate.long_rollouts import Long, drift_of, temporal_metrics, two_sides
from worldmodel.evaluate.windows import Floor, real_floor, window_distance, window_starts

SMALL = {
    "clips": 6, "horizon": 16, "rollouts": 3, "frames": 40, "window": 12, "windows": 3, "context": 2,
    "reference": 150, "encoders": ("autoencoder",), "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def recordings():
    return panorama.recordings(8, 70, seed=3)


@pytest.fixture(scope="module")
def exact(recordings):
    return evaluate_drift(panorama.world(), recordings, **SMALL)


def test_exact_model_equals_the_truth(exact):
    values = {name: metric.value for name, metric in exact.metrics.items()}
    for h in range(1, 17):
        assert values[f"psnr_h{h}"] == 100
        assert values[f"ssim_h{h}"] == pytest.approx(1)
        assert values[f"psnr_copy_h{h}"] < 60
    assert values["psnr_tokenizer"] == 100
    assert values["psnr_smallest_lead"] > 10
    assert values["psnr_h32"] == 100
    assert 0.5 < values["border_jump"] < 2
    assert 0.5 < values["flicker"] < 2
    assert values["contrast_last_window"] == pytest.approx(1, abs=0.2)
    assert abs(values["fd_last_window"]) < 3 * values["fd_floor"]
    assert exact.metrics["fd_last_window"].n == 3 * 12
    assert exact.metrics["psnr_h1"].n == 6
    assert all(good for _, good, _ in exact.verdicts)
    assert not [name for name in values if name.endswith("__autoencoder")]  # it is the judge here


def test_noisy_model_is_worse_in_every_way(recordings, exact):
    noisy = evaluate_drift(panorama.world(jitter=25), recordings, **SMALL)
    for name in ("fd_first_window", "fd_last_window", "flicker"):
        assert noisy.metrics[name].value > exact.metrics[name].value
    expected = 20 * np.log10(255 / 25)  # a little better, where values are clipped
    assert noisy.metrics["psnr_h1"].value == pytest.approx(expected, abs=0.7)
    assert noisy.metrics["ssim_h5"].value < 0.9


def test_deaf_model_leaves_the_truth(recordings, exact):
    deaf = evaluate_drift(panorama.world(deaf=True), recordings, **SMALL)
    assert deaf.metrics["psnr_h16"].value < 40
    assert deaf.metrics["psnr_h16"].value < deaf.metrics["psnr_h1"].value
    assert abs(deaf.metrics["fd_first_window"].value) < 3 * deaf.metrics["fd_floor"].value  # still looks real
    again = evaluate_drift(panorama.world(), recordings, **SMALL)
    assert again.to_json() == exact.to_json()


def test_second_encoder_and_perceptual_distance_are_named(recordings):
    tiny = SMALL | {"clips": 2, "rollouts": 2, "frames": 12, "windows": 1, "reference": 20, "horizon": 4}
    tiny |= {"encoders": ("autoencoder", "lite0"), "window": None, "windows": None}
    report = evaluate_drift(panorama.world(), recordings, **tiny)
    assert report.metrics["fd_first_window"].n == 2 * 12  # no window is longer than the rollout
    assert report.metrics["fd_first_window"].unit == "autoencoder, above floor"
    assert {"fd_first_window", "fd_first_window__lite0", "fd_last_window__lite0", "fd_floor__lite0"} <= set(
        report.metrics
    )
    assert report.metrics["lite0_perceptual_h4"].value == pytest.approx(0, abs=1e-5)
    assert report.metrics["lite0_perceptual_copy_h4"].value > 0.01
    assert not any("lpips" in name.lower() or "fid" in name.lower() for name in report.metrics)


def test_bad_requests(recordings):
    with pytest.raises(UserError, match="window at least 3 and at most frames"):
        evaluate_drift(panorama.world(), recordings, **SMALL | {"window": 41})
    with pytest.raises(UserError, match="two held-out episodes"):
        evaluate_drift(panorama.world(), panorama.recordings(1, 60), **SMALL)
    with pytest.raises(UserError, match="no held-out episode has 200 frames"):
        evaluate_drift(panorama.world(), recordings, **SMALL | {"horizon": 192})


def test_sides_share_no_episode():
    lengths = [20, 50, 60, 10, 55]
    recordings = panorama.ArrayRecordings(
        tuple(panorama.Recording(np.zeros((n, 4, 4, 3), np.uint8), np.zeros((n, 1))) for n in lengths), ("a",)
    )
    starts, others = two_sides(recordings, needed=40, seed=0)
    assert sorted((*starts.chosen, *others.chosen)) == [0, 1, 2, 3, 4]
    assert len(starts.chosen) == 2
    assert min(starts.lengths) >= 40


def test_closeness_and_repeated_frames():
    real = np.zeros((2, 3, 12, 12, 3), np.uint8)
    real[:, 1] = 51
    found = closeness(real, repeat_last(real[:, :1], 3))
    assert found.psnr[0].tolist() == pytest.approx([100, 20 * np.log10(5), 100])
    assert found.ssim[1, 0] == pytest.approx(1)
    small = closeness(real[:, :, :8, :8], real[:, :, :8, :8])
    assert (small.ssim == 0).all()


def test_window_starts():
    assert window_starts(100, 20, 5) == (0, 20, 40, 60, 80)
    assert window_starts(20, 20, 5) == (0,)
    assert window_starts(22, 20, 9) == (0, 1, 2)
    with pytest.raises(ValueError, match="no window of 20"):
        window_starts(19, 20, 2)


def test_window_distance_subtracts_the_floor_and_jackknifes():
    rng = torch.Generator().manual_seed(0)
    real = torch.randn(3, 5, 40, 4, generator=rng, dtype=torch.float64)
    reference = reference_of(torch.randn(500, 4, generator=rng, dtype=torch.float64))
    floor = real_floor(reference, real)
    shift = torch.tensor([2.0, 0, 0, 0], dtype=torch.float64)
    found = window_distance(reference, real[0] + shift, floor)
    assert found.raw == pytest.approx(float(found.value) + floor.value)
    assert found.value == pytest.approx(4, abs=0.6)
    assert found.interval[0] < found.value < found.interval[1]
    assert found.n == 200
    assert len(floor.without) == 5
    nothing = torch.randn(500, 4, generator=rng, dtype=torch.float64)
    assert floor.value == pytest.approx(frechet_distance(nothing, real[1].flatten(0, 1)), abs=0.2)


def test_jackknife_of_a_mean_is_its_standard_error(monkeypatch):
    """For the mean of one value per rollout the jackknife error is s / sqrt(B) exactly (Efron, 1982)."""
    monkeypatch.setattr("worldmodel.evaluate.windows._distance", lambda features, reference: features.mean())
    values = torch.tensor([1.0, 4, 2, 7, 3], dtype=torch.float64)[:, None, None]
    found = window_distance(reference_of(torch.rand(3, 1)), values, Floor(0.5, (0.5,) * 5))
    error = float(values.std()) / 5**0.5
    assert found.value == pytest.approx(3.4 - 0.5)
    assert found.interval == pytest.approx((2.9 - 1.96 * error, 2.9 + 1.96 * error))


class Colours:
    name = "colours"

    def features(self, pixels):
        return pixels.float().mean((2, 3))


def faded(video, step):
    """A video whose brightness falls by `step` levels per frame."""
    fall = step * np.arange(video.shape[1])[None, :, None, None, None]
    return np.clip(video.astype(int) - fall, 0, 255).astype(np.uint8)


def test_fading_rollout_drifts_window_by_window():
    rng = np.random.default_rng(0)
    reference = rng.integers(60, 200, (80, 8, 8, 3)).astype(np.uint8)
    windows = rng.integers(60, 200, (4, 2, 10, 8, 8, 3)).astype(np.uint8)
    made = rng.integers(60, 200, (2, 40, 8, 8, 3)).astype(np.uint8)
    steady = drift_of(Colours(), Long(made, made, windows, reference, 10), windows=4)
    fading = drift_of(Colours(), Long(faded(made, 1), made, windows, reference, 10), windows=4)
    values = [found.value for found in fading.distances]
    assert fading.starts == (0, 10, 20, 30)
    assert values == sorted(values)
    assert values[-1] > 100 * abs(steady.distances[-1].value)
    metrics = temporal_metrics(Long(faded(made, 1), made, windows, reference, 10), chunk=4, seed=0)
    assert metrics["colour_shift_last_window"].value == pytest.approx(34.5 * np.sqrt(3), rel=0.05)
