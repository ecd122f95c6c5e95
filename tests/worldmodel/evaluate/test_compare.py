"""Exact and faulty models of one known world as arms: who drifts, who follows, and what is measured only once."""

from dataclasses import replace
from typing import Any

import numpy as np
import panorama
import pytest
from known_worlds import SIZES, WORLDS

from worldmodel.errors import UserError
from worldmodel.evaluate.compare import Arm, evaluate, evaluate_compare
from worldmodel.evaluate.compare.bench import prepare
from worldmodel.evaluate.compare.keep import load_kept
from worldmodel.evaluate.page import render

OPTIONS: dict[str, Any] = {
    "settings": SIZES, "encoders": ("autoencoder",), "open_world": WORLDS.__getitem__, "quiet": True
}  # fmt: skip
ARMS = (Arm("noisy", ("n0", "n1")), Arm("exact", ("e0", "e1")))


@pytest.fixture(scope="module")
def recordings():
    return panorama.recordings(6, 70, seed=3)


@pytest.fixture(scope="module")
def report(recordings):
    return evaluate_compare(ARMS, recordings, clip_frames=8, **OPTIONS)


def test_exact_arm_is_closer_than_a_noisy_one(report):
    values = {name: metric.value for name, metric in report.metrics.items()}
    assert values["exact/psnr_h1"] == values["exact/psnr_h4"] == 100
    assert 10 < values["noisy/psnr_h1/seed1"] < values["noisy/psnr_h1/seed0"] < 15  # 12.6 and 10.1 before clipping
    assert values["noisy/psnr_h1"] == pytest.approx((values["noisy/psnr_h1/seed0"] + values["noisy/psnr_h1/seed1"]) / 2)
    assert values["exact/fd_first_window"] < values["noisy/fd_first_window"]
    difference = values["exact/fd_first_window"] - values["noisy/fd_first_window"]
    assert values["exact/fd_first_window_difference"] == pytest.approx(difference, rel=1e-9)
    seeds = [values[f"noisy/fd_slope/seed{i}"] for i in range(2)]
    assert values["noisy/fd_slope"] == pytest.approx(np.mean(seeds))
    assert values["exact/contrast_last_window"] == pytest.approx(1, abs=0.25)
    assert report.metrics["noisy/fd_slope"].n == 2  # seeds
    assert report.metrics["noisy/fd_slope/starts"].n == 3


def test_json_holds_the_curves_of_every_seed(report):
    data = report.to_json()
    curves = data["curves"]
    assert curves["window_first_frame"] == [1, 17, 33]
    assert curves["window_middle"] == [4.5, 20.5, 36.5]
    fd = np.array(curves["fd_above_floor"]["autoencoder"]["noisy"])
    assert fd.shape == (2, 3)
    assert fd[:, 0].mean() == pytest.approx(report.metrics["noisy/fd_first_window"].value)
    slopes = [1000 * np.polyfit(curves["window_middle"], seed, 1)[0] for seed in fd]
    assert np.mean(slopes) == pytest.approx(report.metrics["noisy/fd_slope"].value)
    assert {verdict["outcome"] for verdict in data["verdicts"]} <= {"ok", "FAIL", "not shown"}


def test_page_shows_every_arm_and_one_sheet_per_start(report):
    page = render(report)
    assert "<title>Drift: noisy, exact</title>" in page
    assert len(report.pictures) == len(report.films) == 3
    rows = 3 * (panorama.SIDE * 4 + 4)  # recorded and two arms, cells of 128
    assert report.pictures[0].frame.shape[0] >= rows
    assert report.films[0].frames.shape[0] == 40
    assert "Pairs, by place in the list, for differences from noisy: exact: folders 1 to 2." in page


def test_same_model_twice_differs_by_nothing(recordings):
    found = evaluate_compare((Arm("a", ("n0",)), Arm("b", ("n0",))), recordings, **OPTIONS)
    for measure in ("fd_first_window", "fd_last_window", "fd_slope"):
        metric = found.metrics[f"b/{measure}_difference"]
        assert metric.value == 0
        assert metric.interval == (0, 0)  # leaving a start out of both changes both alike
    assert any("one training seed" in note for note in found.notes)


def test_another_arm_costs_its_own_measurement_only(recordings, report, tmp_path, monkeypatch):
    measured, real = [], evaluate.measure

    def counting(world, *rest):
        measured.append(world)
        return real(world, *rest)

    monkeypatch.setattr(evaluate, "measure", counting)
    first = evaluate_compare(ARMS, recordings, clip_frames=8, kept=tmp_path, **OPTIONS)
    assert len(measured) == 4
    assert first.to_json()["metrics"] == report.to_json()["metrics"]
    more = evaluate_compare((*ARMS, Arm("deaf", ("d0",))), recordings, clip_frames=8, kept=tmp_path, **OPTIONS)
    assert measured[4:] == [WORLDS["d0"]]
    kept = {name: value for name, value in more.to_json()["metrics"].items() if not name.startswith("deaf/")}
    assert kept == first.to_json()["metrics"]
    assert any("deaf: folders 1 to 1 (the other 1 of noisy are not used there)" in note for note in more.notes)
    longer = OPTIONS | {"settings": replace(SIZES, frames=44)}
    evaluate_compare((Arm("a", ("n0",)), Arm("b", ("n0",))), recordings, kept=tmp_path, **longer)
    assert len(measured) == 6  # other settings; the second arm is the same model, which is known by then
    assert not list(tmp_path.glob(".*"))


def test_broken_file_is_named(recordings, tmp_path):
    evaluate_compare((Arm("a", ("n0",)), Arm("b", ("n0",))), recordings, kept=tmp_path, **OPTIONS)
    (path,) = tmp_path.glob("*.npz")
    raw = load_kept(tmp_path, path.stem, {}).raw
    with pytest.raises(UserError, match=rf"{path.name}: not a measurement .* \('raw' must hold finite numbers \[9"):
        load_kept(tmp_path, path.stem, {"raw": (9, 9)})
    assert np.array_equal(load_kept(tmp_path, path.stem, {"raw": raw.shape}).raw, raw)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match=f"{path.name}: not a measurement of ours"):
        load_kept(tmp_path, path.stem, {})
    assert load_kept(tmp_path, "nothing", {}) is None


@pytest.mark.slow
def test_probe_tells_who_follows(recordings, tmp_path):
    sizes = replace(SIZES, frames=24, window=12, windows=2, clips=6, horizon=8)
    options = OPTIONS | {"settings": sizes, "probe_clips": 40, "kept": tmp_path}
    arms = (Arm("deaf", ("d0",)), Arm("exact", ("e0",)))
    found = evaluate_compare(arms, recordings, panorama.recordings(5, 60, seed=9), **options)
    values = {name: metric.value for name, metric in found.metrics.items()}
    assert values["exact/follow_short"] > 0.6
    assert values["exact/follow_short"] == pytest.approx(values["recorded/follow_short"], abs=1e-6)
    assert values["deaf/follow_short"] < 0.3
    assert values["exact/sign_last"] > 0.9
    assert "exact/follow_last_over_baseline" not in values  # a quotient to an R2 below zero means nothing
    assert values["exact/follow_last_difference"] > 0.5
    verdicts = {asked: outcome for asked, outcome, _ in found.verdicts}
    assert verdicts["exact: follows actions at short horizon at least 0.95 x as well as deaf"] is True
    assert len(list(tmp_path.glob("probe_*.npz"))) == 1
    again = evaluate_compare(arms, recordings, panorama.recordings(5, 60, seed=9), **options)
    assert again.to_json() == found.to_json()
    with pytest.raises(UserError, match="the probe reads no action from recorded clips with R2 of at least 1"):
        evaluate_compare(arms, recordings, panorama.recordings(5, 60, seed=9), readable=1.0, **options)


def test_starts_of_long_rollouts_differ(recordings):
    bench = prepare(WORLDS["e0"], recordings, replace(SIZES, frames=400, rollouts=6))
    places = set(zip(bench.course.pieces.episode.tolist(), bench.course.pieces.start.tolist(), strict=True))
    assert len(places) == 6  # three episodes of 70 frames, two beginnings in each
    assert bench.course.actions.shape == (6, bench.course.begin + 400, 1)
    assert bench.film_times.tolist() == [*range(96), *range(256, 400)]
    assert bench.sheet_times.tolist() == [0, 24, 49, 99, 199, 299, 399]


def test_sizes_that_do_not_fit(recordings):
    def run(**changes: Any) -> None:
        evaluate_compare(ARMS, recordings, **OPTIONS | changes)

    with pytest.raises(UserError, match="40 frames do not hold 6 windows of 8: at most 5"):
        run(settings=replace(SIZES, windows=6))
    with pytest.raises(UserError, match="rollouts must be at least 1, not 0"):
        run(settings=replace(SIZES, rollouts=0))
    with pytest.raises(UserError, match="name one twice"):
        run(encoders=("autoencoder", "autoencoder"))
    with pytest.raises(UserError, match="two held-out episodes"):
        evaluate_compare(ARMS, panorama.recordings(1, 60), **OPTIONS)
    with pytest.raises(UserError, match=r"readable must be in \[0, 1\], not 1.5"):
        run(readable=1.5)
    with pytest.raises(UserError, match="horizon must be at least 4, not 2"):
        evaluate_compare(ARMS, recordings, recordings, **OPTIONS | {"settings": replace(SIZES, horizon=2)})
