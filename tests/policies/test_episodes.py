"""Evaluation on robots: rows that depend on their case alone, chunks joined as promised, finished robots left alone."""

from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from test_planning import random_policy

from worldmodel.datasets.worlds.metaworld import FPS
from worldmodel.errors import UserError
from worldmodel.policies import episodes
from worldmodel.policies.episodes import Case, Robots, Settings, Trial, cases, evaluate, run_cases
from worldmodel.policies.evaluate import compare, comparison_of, report_of, wall
from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.observation import Interface, Range
from worldmodel.policies.policy import Acting, Policy
from worldmodel.policies.shifts import Shift
from worldmodel.sampler import Euler


@dataclass
class Facts:
    task: str


@dataclass
class FakeRobot:
    """A point that goes halfway to its target; solved when it has been told to be far to the right often enough."""

    task: str
    log: list[np.ndarray] = field(default_factory=list)
    touched: int = 0

    def __post_init__(self) -> None:
        self.facts = Facts(self.task)

    def become(self, shift: Shift) -> None:
        self.shift = shift

    def reset(self, *, seed: int) -> tuple[dict, dict]:
        self.hand, self.good, self.over = np.full(3, 0.01 * seed), 0, False
        return self._see(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        assert not self.over, "a finished robot was moved"
        self.log.append(action.copy())
        self.hand = (self.hand + np.resize(self.shift.drive(np.resize(action, 3).astype(float)), 3)) / 2
        self.good += int(action[0] > 0.2)
        self.over = self.good >= 6
        return self._see(), min(1.0, self.good / 6), self.over, False, {"success": self.over}

    def look(self) -> dict[str, np.ndarray]:
        shade = int(np.clip(128 + 100 * self.hand[0], 0, 255))
        return {"front": np.full((16, 16, 3), shade, np.uint8)}

    def close(self) -> None:
        self.log.append(np.array([]))

    def _see(self) -> dict:
        return {"state": self.hand[:1].astype(np.float32)}


def fake_policy(**acting) -> Policy:
    return Policy(random_policy(), Acting(**{"sampler": Euler(steps=2), "execute": 2, **acting}))


def rows_of(policy: Policy, todo, settings: Settings) -> list:
    with closing(Robots(policy.interface, lambda task, _: FakeRobot(task))) as robots:
        return list(evaluate(policy, todo, settings, robots).rows)


STILL = Trial(np.zeros((1, 1, 3, 16, 16), np.uint8), np.zeros((1, 1), np.float32), np.zeros((1, 2), np.float32))
TODO = cases(["go", "home"], ["nominal", "actuation-bias:0.2,0,0"], 5, 3)
SETTINGS = Settings(horizon=11)


def test_cases_are_every_task_under_every_shift_with_the_same_seeds():
    assert len(TODO) == len(set(TODO)) == 20
    assert TODO[0] == Case("go", 3, "nominal") and TODO[-1] == Case("home", 7, "actuation-bias:0.2,0,0")
    assert cases(["go"], ["encoder-offset:0.10,0,0"], 1, 0)[0].shift == "encoder-offset:0.1,0,0"


@pytest.mark.parametrize(
    "extra", [{}, {"delay": 1, "chunking": "guided"}, {"delay": 2, "chunking": "prefix"}], ids=lambda e: str(e)
)
def test_rows_are_the_same_bit_for_bit_for_any_number_of_robots(extra):
    policy, settings = fake_policy(), replace(SETTINGS, **extra)
    one = rows_of(policy, TODO, settings)
    assert len({row.score for row in one}) > 2
    assert extra or (0 < sum(row.success for row in one) < 20 and len({row.steps for row in one}) > 1)
    for parallel in (4, 16):
        assert rows_of(policy, TODO, replace(settings, parallel=parallel)) == one
    assert rows_of(policy, TODO, settings) == one
    assert rows_of(policy, TODO, replace(settings, seed=1)) != one


def test_a_part_of_the_cases_has_the_rows_that_the_whole_has():
    policy = fake_policy()
    whole = rows_of(policy, TODO, SETTINGS)
    with closing(Robots(policy.interface, lambda task, _: FakeRobot(task))) as robots:
        part = [row for row, _ in run_cases(policy, TODO[7:12], SETTINGS, robots, start=7)]
    assert part == whole[7:12]


def test_trials_hold_what_was_seen_and_done_at_every_observation():
    policy, robot = fake_policy(), FakeRobot("go")
    with closing(Robots(policy.interface, lambda task, _: robot)) as robots:
        ((row, trial),) = run_cases(policy, [Case("go", 2)], SETTINGS, robots)
    moments = -(-row.steps // 2)
    assert trial.image.shape == (moments, 1, 3, 16, 16) and trial.state.shape == (moments, 1)
    np.testing.assert_array_equal(trial.action, np.stack(robot.log[: row.steps])[::2])
    assert trial.state[0, 0] == np.float32(0.02) and (trial.image[0] == 130).all()
    np.testing.assert_array_equal(trial.film[-1], trial.image[-1, 0].transpose(1, 2, 0))


def test_what_is_known_of_a_robot_changes_its_episode_alone():
    policy = fake_policy()
    rows = rows_of(policy, TODO[:4], SETTINGS)
    for together in (False, True):
        settings = replace(SETTINGS, parallel=4, together=together)
        contexts = [None, torch.zeros(16), torch.full((16,), 2.0), None]
        with closing(Robots(policy.interface, lambda task, _: FakeRobot(task))) as robots:
            got = [row for row, _ in run_cases(policy, TODO[:4], settings, robots, contexts=contexts)]
        same = [
            one.border_jerk == pytest.approx(other.border_jerk, abs=1e-4) for one, other in zip(got, rows, strict=True)
        ]
        assert same == [True, True, False, True]
        assert together or [one == other for one, other in zip(got, rows, strict=True)] == same


def test_one_batch_agrees_to_rounding():
    policy = fake_policy()
    alone, together = (rows_of(policy, TODO, replace(SETTINGS, parallel=5, together=t)) for t in (False, True))
    for one, other in zip(alone, together, strict=True):
        assert one.border_jerk == pytest.approx(other.border_jerk, abs=1e-4)


def test_what_is_carried_out_is_the_plan_of_each_moment(monkeypatch):
    """With a delay d, a chunk takes over d steps after its observation; until then the last one goes on."""
    made = []

    def fake_plan(model, sampler, seen, seed, step, chunking, committed):
        made.append((int(step), committed))
        base = 100 * len(made) + torch.arange(6.0)
        return torch.stack((base, base), 1)[None]

    monkeypatch.setattr(episodes, "plan", fake_plan)
    for delay, wanted in (
        (0, [100, 101, 200, 201, 300, 301, 400]),
        (1, [100, 101, 102, 201, 202, 301, 302]),
        (2, [100, 101, 102, 103, 202, 203, 302]),
    ):
        made.clear()
        policy = fake_policy()
        robot = FakeRobot("go")
        monkeypatch.setattr(
            robot,
            "step",
            lambda action, r=robot: (r.log.append(action), (r._see(), 0.0, False, False, {"success": False}))[1],
        )
        settings = Settings(horizon=7, delay=delay)
        with closing(Robots(policy.interface, lambda task, _, r=robot: r)) as robots:
            evaluate(policy, [Case("go", 0)], settings, robots)
        normal = policy.model.normalised(torch.from_numpy(np.stack(robot.log[:-1])))[:, 0]
        assert normal.round().int().tolist() == wanted
        assert [step for step, _ in made] == [0, 2, 4, 6]
        assert (made[0][1] is None) and (made[1][1] is None) == (delay == 0)
        if delay:
            committed = made[1][1]
            assert (committed.planned, committed.fixed) == (4, delay)
            assert committed.actions[0, :4, 0].tolist() == [102, 103, 104, 105]


def test_ensembling_means_over_all_plans_of_a_moment(monkeypatch):
    calls = []

    def fake_plan(*_):
        calls.append(1)
        return torch.full((1, 6, 2), float(len(calls)))

    monkeypatch.setattr(episodes, "plan", fake_plan)
    policy, robot = fake_policy(execute=1, ensemble=0.0), FakeRobot("go")
    with closing(Robots(policy.interface, lambda task, _: robot)) as robots:
        evaluate(policy, [Case("go", 0)], Settings(horizon=3), robots)
    normal = policy.model.normalised(torch.from_numpy(np.stack(robot.log[:-1])))[:, 0]
    torch.testing.assert_close(normal, torch.tensor([1.0, 1.5, 2.0]))


def test_border_jerk_is_the_third_difference_across_borders_alone(monkeypatch):
    monkeypatch.setattr(episodes, "plan", lambda *args: torch.zeros(1, 6, 2) + (0.3 if int(args[4]) else 0.0))
    policy = fake_policy(execute=4)
    (row,) = rows_of(policy, [Case("go", 0)], Settings(horizon=8))
    jump = 0.3 * np.linalg.norm([1.0, 2.0])  # in the robot's units: targets 0 0 0 0 j j j j
    assert row.border_jerk == pytest.approx(jump * np.sqrt((1 + 4 + 1) / 3), rel=1e-5)
    (short,) = rows_of(policy, [Case("go", 0)], Settings(horizon=4))
    assert short.border_jerk is None


def test_reports_count_and_compare():
    policy, worse = fake_policy(), fake_policy(execute=6)
    with closing(Robots(policy.interface, lambda task, _: FakeRobot(task))) as robots:
        found = evaluate(policy, TODO, SETTINGS, robots, filmed=3)
    report = report_of(found)
    successes = sum(row.success for row in found.rows)
    assert report.metrics["success_rate"].value == successes / 20 and report.metrics["success_rate"].n == 20
    assert report.metrics["score"].value == pytest.approx(np.mean([row.score for row in found.rows]))
    assert [row[:2] for row in report.tables[0].rows] == [
        (task, shift) for task in ("go", "home") for shift in ("nominal", "actuation-bias:0.2,0,0")
    ]
    assert sum(int(row[2]) for row in report.tables[0].rows) == successes
    assert len(report.curves["rows"]) == 20
    film = wall(found)
    assert film.shape[1:] == (2 * 2 * 20, 2 * 2 * 20, 3)  # three films of 16 pixels with edges, two by two, doubled
    one, other = compare(policy, worse, TODO, SETTINGS, None, opens=lambda task, _: FakeRobot(task))
    assert one.rows == found.rows
    both = comparison_of(one, other, ("a", "b"), 0.05, stopped=False)
    table = both.tables[1].rows
    assert sum(int(n) for row in table for n in row[2:6]) == 20
    assert both.metrics["difference"].value == pytest.approx(
        np.mean([a.success - b.success for a, b in zip(one.rows, other.rows, strict=True)])
    )


def test_a_comparison_stops_when_it_is_decided(monkeypatch):
    good, bad = fake_policy(), fake_policy(execute=3)

    def fake_run(policy, todo, settings, robots, start):
        for case in todo:
            yield episodes.Row(case.task, case.seed, case.shift, policy is good, 0.0, 1, None), STILL

    monkeypatch.setattr(episodes, "run_cases", fake_run)
    todo = cases(["go"], ["nominal"], 100, 0)
    told = []
    one, other = compare(good, bad, todo, SETTINGS, 0.05, told.append, opens=lambda task, _: FakeRobot(task))
    assert len(one.rows) == len(other.rows) == 10 and len(told) == 20  # 2^10 / 11 > 20
    one, _ = compare(good, bad, todo, SETTINGS, None, opens=lambda task, _: FakeRobot(task))
    assert len(one.rows) == 100


@pytest.mark.parametrize(
    ("settings", "acting", "said"),
    [
        ({"delay": 3}, {}, r"delay must be in \[0, 2\] \(the policy executes 2 of 6 actions\), not 3"),
        ({"horizon": 0}, {}, "horizon"),
        ({"horizon": 501}, {}, "horizon"),
        ({"parallel": 0}, {}, "parallel"),
        ({"delay": 1}, {"ensemble": 0.1}, "cannot be ensembled"),
    ],
)
def test_settings_that_a_policy_cannot_meet_are_told(settings, acting, said):
    with pytest.raises(UserError, match=said):
        Settings(**settings).check(fake_policy(**acting))


def test_cases_that_are_none_are_told():
    for args, said in (
        (([], ["nominal"], 1, 0), "needs a task or more"),
        ((["go"], [], 1, 0), "needs a shift or more"),
        ((["go", "stay", "go"], ["nominal"], 1, 0), "counts every task once, go is named twice"),
        ((["go"], ["latency:2", "latency:2"], 1, 0), "counts every shift once, latency:2 is named twice"),
        ((["go"], ["nominal"], 0, 0), "1 to 1,000,000"),
        ((["go"], ["fast"], 1, 0), "no shift 'fast'"),
        ((["go"], ["nominal"], 1, -1), "seeds from -1"),
    ):
        with pytest.raises(UserError, match=said):
            cases(*args)


def real_policy() -> Policy:
    names, states = ("target_x", "target_y", "target_z", "grip"), ("hand_x", "hand_y", "hand_z", "opening")
    interface = Interface(
        cameras=("corner4", "corner"),
        size=(32, 32),
        state=Range(states, (-0.2, 0.5, 0.0, 0.0), (0.2, 0.8, 0.4, 1.0)),
        action=Range(names, (-0.2, 0.5, 0.0, -1.0), (0.2, 0.8, 0.4, 1.0)),
        vocabulary=("push", "reach"),
        words=1,
        fps=float(FPS),
    )
    torch.manual_seed(0)
    model = PolicyConfig(chunk=8, dim=16, depth=1, heads=2, hidden=32, channels=(8, 8), keypoints=4).build(interface)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return Policy(model.eval().requires_grad_(False), Acting(sampler=Euler(steps=2), execute=4))


@pytest.mark.needs("metaworld")
@pytest.mark.slow
def test_rows_of_the_simulator_are_the_same_for_1_4_and_16_robots():
    policy = real_policy()
    todo = cases(["reach", "push"], ["nominal", "encoder-offset:0.03,0,0"], 4, 0)
    found = []
    for parallel in (1, 4, 16):
        with closing(Robots(policy.interface, episodes.open_for)) as robots:
            found.append(evaluate(policy, todo, Settings(horizon=24, parallel=parallel), robots).rows)
    assert found[0] == found[1] == found[2]
    assert len({row.score for row in found[0]}) == 16


@pytest.mark.needs("metaworld")
def test_a_policy_that_does_not_fit_the_robot_is_told():
    interface = real_policy().interface
    with pytest.raises(UserError, match=r"fps: the policy has 20\.0, the robot 80"):
        episodes.open_for("reach", replace(interface, fps=20.0))
    with pytest.raises(UserError, match="no camera 'attic'"):
        episodes.open_for("reach", replace(interface, cameras=("attic",)))
    with pytest.raises(UserError, match="action: the policy has a, b, the robot target_x"):
        episodes.open_for("reach", replace(interface, action=Range(("a", "b"), (0.0, 0.0), (1.0, 1.0))))
