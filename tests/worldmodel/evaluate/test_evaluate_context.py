"""Models that remember everything, 20 frames, or nothing: what is measured of them is known."""

import json
from dataclasses import replace

import numpy as np
import pytest
import turntable

from worldmodel.errors import UserError
from worldmodel.evaluate.compare.arms import Arm
from worldmodel.evaluate.context.arms import OpenArm, arms_of, overrides
from worldmodel.evaluate.context.bench import ContextSettings, find_cases, prepare
from worldmodel.evaluate.context.evaluate import evaluate_context
from worldmodel.evaluate.context.redraw import frames_to_make, redraw
from worldmodel.evaluate.page import render
from worldmodel.evaluate.recordings import ArrayRecordings
from worldmodel.memory import FullConfig, WindowConfig

HORIZONS = [4, 19, 21, 32]
SIZES = ContextSettings(horizons=tuple(HORIZONS), lead=8, visits=10, rivals=5)
WORLDS = {
    "all": turntable.world(),
    "short": turntable.world(20 + turntable.AROUND),
    "shorter": turntable.world(12 + turntable.AROUND),
    "none": turntable.world(1),
}
OPTIONS = {"settings": SIZES, "measures": ("psnr",), "open_world": WORLDS.__getitem__, "quiet": True}


@pytest.fixture(scope="module")
def recordings():
    return turntable.recordings(HORIZONS)


def one(name: str) -> tuple[Arm, ...]:
    return (Arm("", (name,)),)


@pytest.fixture(scope="module")
def report(recordings):
    arms = (Arm("short", ("short", "shorter")), Arm("long", ("all", "all")), Arm("none", ("none",)))
    return evaluate_context(arms, recordings, **OPTIONS)


@pytest.fixture(scope="module")
def values(report):
    return {name: metric.value for name, metric in report.metrics.items()}


def test_who_replays_the_real_frames_scores_1_everywhere(recordings):
    found = evaluate_context(one("all"), recordings, **OPTIONS)
    for horizon in HORIZONS:
        assert found.metrics[f"score_n{horizon}"].value == pytest.approx(1)
        assert found.metrics[f"retrieval_n{horizon}"].value == 1
        assert found.metrics[f"score_n{horizon}"].n == 6
    context = found.metrics["effective_context_frames"]
    assert (context.value, context.unit, context.interval) == (32, "frames, at least", (32, 32))
    state = found.to_json()["curves"]["effective_context"]["psnr"]["model"]
    assert state == {"frames": 32, "at_least": True, "per_seed": [32], "at_least_per_seed": [True]}
    assert found.metrics["memory_bytes"].value == turntable.PLACES * 8
    assert found.metrics["retrieval_chance"].value == pytest.approx(1 / 6)


def test_who_forgets_after_20_frames_has_a_context_of_20(report, values):
    assert [values[f"short/score_n{n}/seed0"] for n in HORIZONS[:2]] == pytest.approx([1, 1])
    assert [values[f"short/score_n{n}/seed0"] for n in HORIZONS[2:]] == pytest.approx([0, 0], abs=0.2)
    right = [values[f"short/retrieval_n{n}/seed0"] for n in HORIZONS]
    assert right == pytest.approx([1, 1, 0, 0], abs=0.34)
    assert values["short/effective_context_frames/seed0"] == pytest.approx(20, abs=0.2)
    assert report.metrics["short/effective_context_frames"].unit == "frames"
    assert report.verdicts[0][1] is True


def test_who_remembers_nothing_has_none(report, values):
    assert abs(values["none/score_n4"]) < 0.2
    assert values["none/retrieval_n4"] < 0.5
    outcomes = {asked: outcome for asked, outcome, _ in report.verdicts}
    assert outcomes["none: 4 frames after it was last seen, a view is drawn better than any room"] is not True


def test_arms_are_compared_seed_by_seed(report, values):
    seeds = [values[f"short/effective_context_frames/seed{i}"] for i in range(2)]
    assert seeds[1] == pytest.approx(4 + 15 * 0.5, abs=1.5)  # 1 at 4 frames, about 0 at 19
    assert values["short/effective_context_frames"] == pytest.approx(np.mean(seeds))
    assert values["long/effective_context_frames_difference"] == pytest.approx(32 - np.mean(seeds))
    assert values["long/effective_context_frames_ratio"] == pytest.approx(32 / np.mean(seeds))
    low, high = report.metrics["long/effective_context_frames_difference/starts"].interval
    assert 0 < low <= 32 - np.mean(seeds) <= high
    assert report.metrics["long/effective_context_frames"].n == 2
    assert report.metrics["long/effective_context_frames"].unit == "frames, at least"
    assert "short/effective_context_frames_difference" not in values
    assert "none/effective_context_frames/seed0" not in values
    assert values["long/score_mean"] == pytest.approx(1)
    assert values["common_level"] == pytest.approx(0.5)
    assert values["long/common_context_frames"] == 32
    assert values["none/common_context_frames"] == 0
    assert values["short/common_context_frames/seed0"] == pytest.approx(20, abs=0.2)
    assert values["none/common_context_frames_difference"] == -values["short/common_context_frames/seed0"]
    assert report.metrics["none/effective_context_frames_difference"].n == 24  # of one seed: over visits


def test_report_has_curves_and_pictures(report):
    data = json.loads(json.dumps(report.to_json()))
    assert data["curves"]["horizons"] == HORIZONS
    assert data["curves"]["visits"] == [6, 6, 6, 6]
    np.testing.assert_allclose(data["curves"]["score"]["psnr"]["long"]["per_seed"], np.ones((2, 4)))
    assert len(report.pictures) == 4
    assert report.pictures[0].frame.shape[2] == 3
    page = render(report)
    assert "Score of the view come back to" in page
    assert "longer effective context than short" in page


def test_views_are_those_of_the_return(recordings):
    bench = prepare(WORLDS["all"], recordings, SIZES)
    made = redraw(WORLDS["all"], bench, seed=0)
    np.testing.assert_array_equal(made, bench.real)
    np.testing.assert_array_equal(bench.rebuilt, bench.real)
    np.testing.assert_array_equal(bench.look, bench.real[:, 0])
    counted = []
    redraw(WORLDS["all"], bench, 0, counted.append)
    assert sum(counted) == frames_to_make(WORLDS["all"], bench)
    whole = prepare(WORLDS["all"], recordings, replace(SIZES, lead=None))
    assert {case.chunks for case in whole.cases} > {case.visit.look + 1 for case in whole.cases[:1]}
    np.testing.assert_array_equal(redraw(WORLDS["all"], whole, 0), whole.real)


def test_frames_out_of_sight_may_be_the_recorded_ones(recordings):
    recorded = replace(SIZES, away="recorded")
    own, bench = (prepare(WORLDS["all"], recordings, settings) for settings in (SIZES, recorded))
    assert [case.visit for case in bench.cases] == [case.visit for case in own.cases]
    for case in bench.cases:  # nothing of the view is given on the way back: the last real frame is turned away
        assert case.start == case.visit.away[1] + 1
        assert case.chunks == 8 + case.start - (case.visit.look + 1)  # the lead, and all of the time out of sight
        angles = recordings.episodes[case.episode].state[:, 2]
        assert turntable.apart(angles[case.start - 1], angles[case.visit.look]) >= 90
        assert turntable.apart(angles[case.start], angles[case.visit.look]) < 90
    np.testing.assert_array_equal(redraw(WORLDS["all"], bench, seed=0), bench.real)
    back = turntable.AROUND - 3  # frames made before the view is there again
    assert frames_to_make(WORLDS["all"], bench) == len(bench.cases) * (back + SIZES.views)
    options = OPTIONS | {"settings": recorded}
    found = evaluate_context(one("short"), recordings, **options)
    assert found.metrics["effective_context_frames"].value == pytest.approx(20, abs=0.2)
    assert any("the real frames of all the time out of sight" in note for note in found.notes)


def test_a_model_that_drifts_may_still_remember(recordings):
    options = OPTIONS | {"open_world": {"drifts": turntable.world(1000, drifts=True)}.__getitem__}
    own = evaluate_context(one("drifts"), recordings, **options)
    given = evaluate_context(one("drifts"), recordings, **options | {"settings": replace(SIZES, away="recorded")})
    assert abs(own.metrics["score_mean"].value) < 0.3
    assert given.metrics["score_mean"].value == pytest.approx(1)


def test_all_models_get_the_same_visits_and_few_of_them_on_request(recordings):
    bench = prepare(WORLDS["all"], recordings, replace(SIZES, visits=2))
    assert [len(rows) for rows in bench.horizons.members] == [2, 2, 2, 2]
    again = prepare(WORLDS["none"], recordings, replace(SIZES, visits=2))
    assert again.cases == bench.cases
    other = prepare(WORLDS["none"], recordings, replace(SIZES, visits=2, seeds=(1,)))
    assert other.cases != bench.cases


def test_no_visits_is_one_clear_line(recordings):
    still = [replace(e, state=np.zeros_like(e.state)) for e in recordings.episodes]
    with pytest.raises(UserError, match=r"^no visits found: .*--policy revisit"):
        evaluate_context(one("all"), ArrayRecordings(tuple(still), ("turn",), ("x", "y", "angle")), **OPTIONS)
    with pytest.raises(UserError, match="the state must have x, y and angle, it has \\['a'\\]"):
        find_cases(WORLDS["all"], ArrayRecordings(recordings.episodes, ("turn",), ("a",)), SIZES)
    with pytest.raises(UserError, match=r"none of 24 visits has 5000 real frames before it: give less --lead"):
        find_cases(WORLDS["all"], recordings, replace(SIZES, lead=5000))
    with pytest.raises(UserError, match=r"no horizon of 100 has two visits: 24 were found, out of sight for 4, 19"):
        prepare(WORLDS["all"], recordings, replace(SIZES, horizons=(100,)))
    with pytest.raises(UserError, match="held-out recordings"):
        evaluate_context(one("all"), ArrayRecordings((), ("turn",), ("x", "y", "angle")), **OPTIONS)


def test_other_sizes_and_actions_are_one_clear_line(recordings):
    small = [replace(e, pixels=e.pixels[:, :8, :8]) for e in recordings.episodes]
    with pytest.raises(UserError, match="recordings are 8 x 8 pixels, the model makes 16 x 16"):
        evaluate_context(one("all"), replace(recordings, episodes=tuple(small)), **OPTIONS)
    with pytest.raises(UserError, match="recordings have actions"):
        evaluate_context(one("all"), replace(recordings, action_names=("pan",)), **OPTIONS)
    other = WORLDS | {"slow": replace(WORLDS["all"], fps=3.0)}
    arms = (Arm("a", ("all",)), Arm("b", ("slow",)))
    with pytest.raises(UserError, match=r"slow \(arm 'b'\) has another frame rate than all: 3.0, not 12.0"):
        evaluate_context(arms, recordings, **OPTIONS | {"open_world": other.__getitem__})


def test_one_place_has_no_other_to_be_told_from(recordings):
    single = replace(recordings, episodes=recordings.episodes[:1])
    state = single.episodes[0].state
    visits = np.flatnonzero(np.diff(state[:, 2]) == 0)
    assert len(visits)
    doubled = turntable.recordings([4], episodes=1)
    twice = np.concatenate((np.arange(len(doubled.episodes[0].pixels)), np.arange(8, len(doubled.episodes[0].pixels))))
    episode = doubled.episodes[0]
    again = replace(episode, pixels=episode.pixels[twice], actions=episode.actions[twice], state=episode.state[twice])
    with pytest.raises(UserError, match="all 2 visits look at one place"):
        evaluate_context(one("all"), replace(doubled, episodes=(again,)), **OPTIONS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"visits": 1}, "visits must be at least 2, not 1"),
        ({"views": 0}, "views must be at least 1"),
        ({"rivals": 0}, "rivals must be at least 1"),
        ({"lead": 0}, "lead must be at least 1"),
        ({"away": "nowhere"}, "away is own or recorded, not nowhere"),
        ({"horizons": ()}, "horizons are different numbers"),
        ({"horizons": (8, 8)}, "horizons are different numbers"),
        ({"horizons": (0, 8)}, "horizons are different numbers"),
        ({"seeds": ()}, "noise seed"),
        ({"place": -1.0}, "place must be at least 0"),
        ({"heading": float("nan")}, "heading in"),
    ],
)
def test_settings_out_of_range(recordings, change, message):
    with pytest.raises(UserError, match=message):
        evaluate_context(one("all"), recordings, **OPTIONS | {"settings": replace(SIZES, **change)})


def test_measures_are_checked(recordings):
    with pytest.raises(UserError, match="name one twice"):
        evaluate_context(one("all"), recordings, **OPTIONS | {"measures": ("psnr", "psnr")})
    with pytest.raises(UserError, match="no such encoder"):
        evaluate_context(one("all"), recordings, **OPTIONS | {"measures": ("nothing",)})


def test_arms_and_memories_are_read_from_words():
    assert arms_of(("runs/a",)) == (Arm("", ("runs/a",)),)
    assert arms_of(("a=x,y",)) == (Arm("a", ("x", "y")),)
    arms = arms_of(("a=x,y", "b=z"))
    with pytest.raises(UserError, match="give NAME=FOLDER"):
        arms_of(("runs/a", "runs/b"))
    ring = '{"type": "WindowConfig", "sink": 2, "ring": 10}'
    assert overrides((ring, 'b = {"type": "FullConfig"}'), arms) == {
        "": WindowConfig(sink=2, ring=10),
        "b": FullConfig(),
    }
    for text, message in (
        ("c={}", "no arm is called 'c'; there are a, b"),
        ("b={", "--memory b={: not valid JSON"),
        ("ring", "--memory ring: not valid JSON"),
        ('{"type": "Elephant"}', "type 'Elephant' is none of"),
        ('{"type": "WindowConfig", "rings": 3}', "unknown key 'rings'"),
    ):
        with pytest.raises(UserError, match=message):
            overrides((text,), arms)


def test_memory_of_an_arm_is_replaced():
    opened = OpenArm(WORLDS.__getitem__, {"": FullConfig(), "b": WindowConfig(sink=1, ring=3)})
    assert opened(Arm("a", ("all",)), "all").stream.memory == FullConfig()
    assert opened(Arm("b", ("all",)), "all").stream.memory == WindowConfig(sink=1, ring=3)
    assert OpenArm(WORLDS.__getitem__, {})(Arm("a", ("all",)), "all") is WORLDS["all"]
