"""`evaluate swap` as a whole: on rendered heads and on painted videos, its arms, intervals, ranks and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from painted import GREEN, RED, networks, paint, points_in, write
from small_swaps import small_swap

from worldmodel.calibration import Calibration
from worldmodel.cli import main
from worldmodel.datasets.faces import evaluate as command
from worldmodel.datasets.faces.manifest import Entry, write_manifest
from worldmodel.errors import UserError
from worldmodel.evaluate.compare.arms import Arm
from worldmodel.evaluate.compare.statistics import Estimate
from worldmodel.face.alignment import Pose
from worldmodel.face.evaluate import evaluate
from worldmodel.face.evaluate.axes import AXES, IDENTITY_DRIFT, Gallery, axes_of
from worldmodel.face.evaluate.methods import chunks_of, open_methods, parse_methods
from worldmodel.face.evaluate.report import report_of
from worldmodel.face.evaluate.result import Result
from worldmodel.face.evaluate.slope import Slope
from worldmodel.face.evaluate.summary import by_person, difference, estimate, ranks
from worldmodel.face.evaluate.video import exact, reached
from worldmodel.face.generator import CopyPaste
from worldmodel.face.networks.embedder import EmbedderConfig, FaceEmbedder
from worldmodel.face.pipeline import Seam
from worldmodel.face.region import paste, soft_mask
from worldmodel.fingerprint import fingerprint

SMALL = 16


class Still:
    """Landmarks that stay where they are, whatever is seen."""

    size = 112

    def points(self, crops: np.ndarray) -> np.ndarray:
        return np.tile(points_in(np.array((30.0, 30, 80, 80))), (len(crops), 1, 1))


class Spot:
    """Who is seen: on which cheek the dark spot is."""

    name = "spot"

    def embed(self, regions: np.ndarray, landmarks: np.ndarray | None) -> np.ndarray:
        assert landmarks is not None and landmarks.shape == (len(regions), 68, 2)
        side = regions.shape[1]
        high = slice(round(0.45 * side), round(0.55 * side))
        cheeks = [slice(round(at * side), round((at + 0.1) * side)) for at in (0.35, 0.55)]
        left, right = (regions[:, high, cheek].mean((1, 2, 3)) for cheek in cheeks)
        apart = (left - right).astype(np.float32)
        both = np.stack((np.maximum(apart, 0), np.maximum(-apart, 0)), 1) + 1e-3
        return both / np.linalg.norm(both, axis=1, keepdims=True)


def spotted(colour: tuple[int, int, int], x: float, side: float, cheek: int) -> np.ndarray:
    """A painted face with a spot on a cheek, -1 the picture's left; of its own hue, or it would be an occluder."""
    picture = paint((colour, x, 48, side))
    left = round(x + cheek * side / 6 - side / 12)
    picture[round(48 - side / 8) : round(48 + side / 8), left : left + round(side / 6)] -= 55
    return picture


def save_judge(folder: Path, seed: int = 0) -> FaceEmbedder:
    torch.manual_seed(seed)
    judge = FaceEmbedder(EmbedderConfig("mixer", width=8, dim=8).build().eval())
    judge.save(folder)
    return judge


def metrics(path: Path) -> dict[str, dict[str, float]]:
    return json.loads(path.read_text())["metrics"]


def test_heads_are_swapped_by_arms_baselines_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "landmark_model", Still)
    monkeypatch.setattr(evaluate, "calibrate", lambda: Calibration(90.0, 1.0))
    save_judge(tmp_path / "judge")
    for number, name in enumerate(("a0", "a1", "b0")):
        swap = small_swap(size=SMALL)
        with torch.no_grad():
            next(swap.dit.parameters()).mul_(1 + number)
        replace(swap, card={"recogniser": ""}).save(tmp_path / name)
    out = tmp_path / "report"
    arguments = ["evaluate", "swap", f"a={tmp_path / 'a0'},{tmp_path / 'a1'}", f"b={tmp_path / 'b0'}"]
    arguments += ["--judge", str(tmp_path / "judge"), "--videos", "2", "--seconds", "0.16", "--out", str(out)]
    assert main(arguments) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["a", "b", "copy-paste", "poisson", "target", "truth"]
    found = metrics(out / "swap.json")
    value = {name: metric["value"] for name, metric in found.items()}
    # The ends of the scale.
    assert value["truth/psnr"] == value["truth/psnr_region"] == 100
    assert value["truth/identity_cosine_truth"] == pytest.approx(1, abs=1e-6)
    # A pixel may be rounded the other way after its colours were matched to themselves.
    assert value["target/seam_gradient_ratio"] == pytest.approx(1, abs=1e-2)
    assert value["target/ring_colour_error"] == pytest.approx(0, abs=1e-2)
    assert value["target/brightness_drift_per_minute"] == pytest.approx(0, abs=0.1)
    assert value["target/psnr"] < 60 and value["copy-paste/identity_cosine_made"] == pytest.approx(1, abs=1e-6)
    assert {value[f"{m}/background_exact"] for m in ("a", "b", "copy-paste", "poisson", "target", "truth")} == {1}
    assert value["copy-paste/pose_error"] < 1e-5 and value["a/landmark_jitter_ratio"] == 0
    assert "target/frames_per_second" not in found and value["a/frames_per_second"] > 0
    # Arms: two seeds, and their pairs with a single one.
    assert value["a/psnr"] == pytest.approx((value["a/psnr/seed0"] + value["a/psnr/seed1"]) / 2)
    assert found["a/psnr"]["n"] == 2 and found["a/psnr/starts"]["n"] == found["b/psnr"]["n"] == value["people"]
    assert value["b/psnr_difference"] == pytest.approx(value["b/psnr"] - value["a/psnr"])
    assert "a/psnr_difference" not in found and "copy-paste/psnr_difference" in found
    assert "truth/psnr_difference" not in found and "truth/mean_rank" not in found
    assert 1 <= value["a/mean_rank"] <= 4
    sheet = cv2.imread(str(out / "swap1.png"))
    assert sheet is not None and sheet.shape[0] > 7 * 100  # reference, target, truth, and four that swap
    page = (out / "swap.html").read_text()
    assert "Ranks" in page and "b - a" in page and "Nothing records" not in page


def test_the_teacher_is_no_judge(tmp_path: Path) -> None:
    judge = command.HeadsJudge(tmp_path / "judge", save_judge(tmp_path / "judge"))
    teacher = fingerprint(judge.embedder.model)
    for name, card in (("taught", {"recogniser": teacher}), ("free", {"recogniser": ""}), ("silent", {})):
        replace(small_swap(size=SMALL), card=card).save(tmp_path / name)

    def asked(name: str) -> tuple[str, ...]:
        return command.independence(judge, open_methods(parse_methods([str(tmp_path / name)]), ()))

    with pytest.raises(UserError, match=r"judge: .*taught was trained by the loss of this very recogniser"):
        asked("taught")
    assert asked("free") == ()
    assert "Nothing records" in asked("silent")[0]
    state = {"format": 2, "step": 25, "objective": {}, "best": None, "metrics": {}}
    state["run"] = {"objective": {"identity": {"embedder": teacher}}}
    checkpoint = tmp_path / "silent" / "checkpoints" / "step_00000025"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="this very recogniser"):
        asked("silent")


def test_methods_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="method 'truth': this name is taken"):
        parse_methods(["truth=a"])
    assert parse_methods([]) == () and parse_methods(["runs/a"]) == (Arm("swap", ("runs/a",)),)
    with pytest.raises(UserError, match="nothing swaps"):
        open_methods((), ())
    with pytest.raises(UserError, match="--baselines morph: there are copy-paste, poisson"):
        open_methods((), ("morph",))
    small_swap(size=16).save(tmp_path / "a")
    small_swap(size=32).save(tmp_path / "b")
    with pytest.raises(UserError, match=r"b makes regions of 32 pixels, .*a of 16"):
        open_methods(parse_methods([f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}"]), ())
    opened = open_methods(parse_methods([str(tmp_path / "a")]), ("copy-paste",))
    assert opened[1].models == (CopyPaste(size=16),) and chunks_of(opened) == 4
    with pytest.raises(UserError, match="leave --judge and --no-landmarks out"):
        command.swap(manifest=tmp_path / "m.jsonl", judge=tmp_path)


def test_people_are_the_units() -> None:
    values = np.array(((1.0, 3.0, 7.0), (2.0, np.nan, 9.0)))
    people = by_person(values, ("x", "x", "y"))
    assert people.tolist() == [[2, 7], [2, 9]]
    found = estimate(people)
    assert isinstance(found, Estimate)
    assert found.value == 5 and found.per_seed == (4.5, 5.5) and found.starts == 2
    assert found.over_seeds == pytest.approx((5 - 12.706205 * 0.5, 5 + 12.706205 * 0.5))
    assert found.over_starts == (2, 8)
    apart = difference(people + np.array((1.0, 1.0)), people)
    assert apart is not None and apart.value == 1 and apart.over_starts == (1, 1)  # in pairs, nothing else is left
    single = difference(people, people[:1])
    assert single is not None and single.per_seed == (0, 1)
    assert estimate(np.full((2, 3), np.nan)) is None


def test_ranks_by_what_is_better() -> None:
    by_name = {axis.name: axis for axis in AXES}
    assert ranks(by_name["psnr"], (20, 30, 25)) == [3, 1, 2]
    assert ranks(by_name["pose_error"], (2, 1, 2)) == [2.5, 1, 2.5]
    assert ranks(by_name["seam_gradient_ratio"], (0.5, 1.2, 0.9)) == [3, 2, 1]
    assert ranks(by_name["identity_drift_per_minute"], (-0.3, 0.1, np.nan))[:2] == [2, 1]
    axes = (by_name["psnr"], by_name["pose_error"], by_name["chunk_latency_p50"])
    methods = open_methods((), ("copy-paste", "poisson"))
    tables = {(method.name, axis.name): np.full((1, 2), float(m)) for m, method in enumerate(methods) for axis in axes}
    tables["poisson", "chunk_latency_p50"][:] = np.nan
    assert Result(methods, axes, ("x", "y"), tables).mean_ranks() == [1.5, 1.5]  # of the axes that both have
    names = {axis.name for axis in axes_of(landmarks=False, truth=False)}
    assert {"pose_error", "psnr"}.isdisjoint(names) and "frames_swapped" in names


def test_a_drift_in_a_single_video_has_the_interval_within_it() -> None:
    drift = next(axis for axis in AXES if axis.name == IDENTITY_DRIFT)
    methods = open_methods((), ("copy-paste",))
    tables = {(method.name, drift.name): np.array([[-0.02]]) for method in methods}
    slopes = {method.name: ({drift.name: Slope(-0.02, (-0.03, -0.01))},) for method in methods}
    result = Result(methods, (drift,), ("x",), tables, slopes)
    found = report_of(result, (), Gallery(np.ones((1, 1)), ("x",)), Calibration(90.0, 1.0), (), (), "cpu")
    metric = found.metrics[f"copy-paste/{drift.name}"]
    assert (metric.value, metric.interval, metric.n) == (-0.02, (-0.03, -0.01), 1)
    assert result.within(methods[0], replace(drift, name="psnr")) is None
    twice = {name: each * 2 for name, each in slopes.items()}
    assert replace(result, slopes=twice).within(methods[0], drift) is None  # there it is that between videos


def test_a_pixel_beyond_the_mask_that_changes_is_seen() -> None:
    before = np.random.default_rng(0).integers(0, 256, (80, 100, 3), np.uint8)
    seam = Seam(Pose(30.0, 0.3, 50.0, 40.0), soft_mask(64))
    after = before.copy()
    paste(after, np.zeros((64, 64, 3), np.float32), seam.mask, seam.pose)
    assert (after != before).any() and exact(before, after, seam) == 1
    far = ~reached(seam.mask, seam.pose, 80, 100)
    assert 0.5 < far.mean() < 0.95
    after[0, 0] ^= 1
    assert exact(before, after, seam) == pytest.approx(1 - 1 / far.sum())
    assert np.isnan(exact(before, after, Seam(Pose(500.0, 0.0, 50.0, 40.0), seam.mask)))


@pytest.mark.needs("h264")
def test_real_videos_of_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "real_networks", networks)
    monkeypatch.setattr(evaluate, "calibrate", lambda: Calibration(90.0, 1.0))
    monkeypatch.setattr(command, "PublishedJudge", Spot)
    pictures = [spotted(RED, 50 + i, 40, -1) if i < 6 else paint() for i in range(20)]
    write(tmp_path / "red.mp4", pictures)
    write(tmp_path / "green.mp4", [spotted(GREEN, 60, 40, 1)] * 6)
    for name, colour, cheek in (("green", GREEN, 1), ("red", RED, -1)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), spotted(colour, 64, 60, cheek)[..., ::-1])
    entries = [
        Entry("short", "red.mp4", "red", 2, 18, "green.png", "green"),
        Entry("short", "green.mp4", "green", 0, 6, "red.png", "red"),
    ]
    write_manifest(tmp_path / "m.jsonl", entries)
    arguments = ["evaluate", "swap", "--manifest", str(tmp_path / "m.jsonl"), "--baselines", "copy-paste"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    found = metrics(tmp_path / "out" / "swap.json")
    value = {name: metric["value"] for name, metric in found.items()}
    assert value["people"] == 2 and value["retrieval_chance"] == 0.5
    assert value["copy-paste/identity_retrieval"] == 1 and value["target/identity_retrieval"] == 0
    assert value["copy-paste/identity_cosine"] > 0.9 > 0.5 > value["target/identity_cosine"]
    assert value["copy-paste/background_exact"] == value["target/background_exact"] == 1
    assert 0.8 < value["copy-paste/frames_swapped"] < 0.99  # the first face leaves, is held, and fades
    assert value["target/pose_error"] < 1e-5 and value["target/warping_error"] >= 0
    assert "copy-paste/psnr" not in found and "truth/identity_cosine" not in found
    assert len(list((tmp_path / "out").glob("swap*.png"))) == 2
    with pytest.raises(UserError, match="no long stretches"):
        command.swap(manifest=tmp_path / "m.jsonl", kind="long")
