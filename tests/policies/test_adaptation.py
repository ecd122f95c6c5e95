"""Context encoders from trials: what a sample pairs, what is trained and what stays, and recovery over trials."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from demonstrated import write_dataset
from test_episodes import FakeRobot, fake_policy
from test_policy_training import TINY

from worldmodel import checkpoint
from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.optim import AdamW, Schedule
from worldmodel.policies.adaptation import Adaptation, AdaptationRun, contexts
from worldmodel.policies.adaptation_commands import report_of
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.context_encoder import ContextConfig
from worldmodel.policies.demonstrations import Demonstrations
from worldmodel.policies.episodes import Case, Robots, Row, Settings, Trial
from worldmodel.policies.policy import Acting, Policy
from worldmodel.policies.recovery import adapt, recovery
from worldmodel.policies.shifts import parse_shift
from worldmodel.policies.trials import Known, Trials, before, record_trials, shifted_cases
from worldmodel.train import train
from worldmodel.weights import read_tensors, write_tensors

SHIFTS = ("actuation-bias:0.1,0,0", "encoder-offset:0,-0.1,0", "nominal", "latency:2")


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Path, Path, Path]:
    """Folders of demonstrations, of a policy with random weights and of trials with random content."""
    root = tmp_path_factory.mktemp("adaptation")
    data = write_dataset(root / "data", 6)
    torch.manual_seed(0)
    policy = Policy(TINY.build(Demonstrations(path=(data,)).read().interface), Acting(execute=2))
    policy.save(root / "policy")
    rng = np.random.default_rng(0)
    made, known = [], []
    for n in range(9):
        moments = 3 + n % 3
        image = rng.integers(0, 256, (moments, 2, 3, 32, 32), dtype=np.uint8)
        numbers = rng.standard_normal((2, moments, 4)).astype(np.float32)
        made.append(Trial(image, *numbers))
        known.append(Known("go there", n, SHIFTS[n % 4], n == 2, moments))
    Trials(fingerprint(policy.model), tuple(known), tuple(made)).save(root / "trials")
    return data, root / "policy", root / "trials"


def run_of(parts, out: Path, **changes) -> AdaptationRun:
    data, policy, trials = parts
    run = AdaptationRun(
        policy=policy,
        trials=(trials,),
        demonstrations=Demonstrations(path=(data,), batch=8, validation=0.2),
        model=ContextConfig(width=16, heads=2, depth=1),
        hold_out=3,
        optimizer=AdamW(lr=1e-2),
        schedule=Schedule(shape="constant", warmup=1),
        out=out,
        steps=4,
        ema=0.5,
        validate=1,
        validate_every=2,
        save_every=2,
        threads=1,
    )
    return replace(run, **changes)


def test_a_sample_pairs_a_trial_with_a_demonstration_rewritten_for_its_shift(parts, tmp_path):
    run = run_of(parts, tmp_path, demonstrations=Demonstrations(path=(parts[0],), batch=64, validation=0.2))
    chunks, trials = run.batches, Trials.load(parts[2])
    (clip,) = next(chunks.batches(0, 0, 1, 1))
    action, seen, found = chunks.model.in_units(clip.x).numpy(), clip.control, set()
    whole = contexts(chunks.model, list(trials.made))
    for row in range(64):
        index = next(i for i in range(9) if torch.equal(seen.trial.motion[row], whole.motion[i]))
        assert index > 3, "a held-out trial is trained on: the first of each kind is held out"
        shift = parse_shift(trials.known[index].shift)
        matches = [
            (e, t)
            for e in chunks.training
            for t in range(len(e))
            if np.array_equal(shift.report(e.state[t]), seen.now.state[row].numpy())
        ]
        e, t = matches[0]
        wanted, _ = shift.compensate(e.action, e.state)
        wanted = wanted[np.minimum(t + np.arange(TINY.chunk), len(e) - 1)]
        np.testing.assert_allclose(action[row], wanted, atol=1e-5)
        found.add(trials.known[index].shift)
    assert found == {"actuation-bias:0.1,0,0", "encoder-offset:0,-0.1,0", "nominal", "latency:2"}
    halves = [next(chunks.batches(0, rank, 2, 2)) for rank in range(2)]
    assert torch.equal(torch.cat([part.x for half in halves for part in half]), clip.x)
    held_out = next(iter(chunks.validation_batches(1)))
    indices = {
        next(i for i in range(9) if torch.equal(motion, whole.motion[i])) for motion in held_out.control.trial.motion
    }
    assert len(indices) > 1 and indices <= {0, 1, 2, 3}


def test_a_trial_rewritten_for_another_robot_is_one_that_this_robot_could_have_made(parts, tmp_path):
    """The same pictures; targets and readings moved as the other offset moves them, and the demonstration with them."""
    demonstrations = Demonstrations(path=(parts[0],), batch=64, validation=0.2)
    run = run_of(parts, tmp_path, demonstrations=demonstrations, rewritten=0.75, most=0.2)
    chunks, trials = run.batches, Trials.load(parts[2])
    plain = next(replace(run, rewritten=0.0).batches.batches(0, 0, 1, 1))[0]
    (clip,) = next(chunks.batches(0, 0, 1, 1))
    whole, own = contexts(chunks.model, list(trials.made)), chunks.model.interface
    state_half, action_half = own.state.half[:3], own.action.half[:3]
    seen, offsets = clip.control, []
    assert torch.equal(seen.trial.seen, plain.control.trial.seen)
    for row in range(64):
        index = next(i for i in range(9) if torch.equal(seen.trial.seen[row], whole.seen[i]))
        shift = parse_shift(trials.known[index].shift)
        moved = (seen.trial.motion - plain.control.trial.motion)[row]
        torch.testing.assert_close(moved, moved[:1].expand_as(moved), atol=1e-5, rtol=0)
        read, told = moved[0, :3] * state_half, moved[0, 4:7] * action_half
        assert not moved[:, 3].any() and not moved[:, 7].any()
        if moved.any():  # told and read are delta - delta'
            sensed = shift.kind == "encoder-offset"
            torch.testing.assert_close(read, told if sensed else torch.zeros(3), atol=1e-5, rtol=0)
            offsets.append(torch.tensor(shift.delta) - told)
            torch.testing.assert_close(seen.now.state[row] - plain.control.now.state[row],
                                       torch.cat((read, torch.zeros(1))), atol=1e-5, rtol=0)  # fmt: skip
        change = (clip.x - plain.x)[row] * own.action.half
        torch.testing.assert_close(change[:, :3], told.expand(len(change), 3), atol=1e-5, rtol=0)
    sizes = torch.stack(offsets).norm(dim=-1)
    assert 15 < len(sizes) < 55 and 0.1 < sizes.max() <= 0.2001
    held_out = [next(iter(c.validation_batches(1))) for c in (chunks, replace(run, rewritten=0.0).batches)]
    assert torch.equal(held_out[0].control.trial.motion, held_out[1].control.trial.motion)
    with pytest.raises(UserError, match="rewritten must be in"):
        replace(run, rewritten=1.5)
    with pytest.raises(UserError, match="must rise within"):
        replace(run, most=-1.0)
    few = replace(trials, known=trials.known[:4], made=trials.made[:4])
    few.save(tmp_path / "few")
    with pytest.raises(UserError, match="none is left"):
        _ = replace(run, trials=(tmp_path / "few",)).batches


def test_training_moves_the_encoder_alone_and_goes_on_exactly(parts, tmp_path):
    before = Policy.load(parts[1])
    train(run_of(parts, tmp_path / "parts", steps=2))
    stopped = train(run_of(parts, tmp_path / "parts"))
    assert stopped == train(run_of(parts, tmp_path / "whole"))
    names = read_tensors(checkpoint.steps(tmp_path / "whole")[-1] / "model.safetensors").keys()
    assert names and all(name.startswith("encoder.") for name in names)
    assert fingerprint(Policy.load(parts[1]).model) == fingerprint(before.model)
    made = Adaptation.find(tmp_path / "whole", before)
    trial = Trials.load(parts[2]).made[0]
    token = made.token(before, trial)
    assert token.shape == (16,) and made.context(token).shape == (TINY.dim,)
    assert torch.equal(made.context(torch.zeros(16)), torch.zeros(TINY.dim))
    torch.manual_seed(5)
    with pytest.raises(UserError, match="trained for another policy"):
        Adaptation.find(tmp_path / "whole", Policy(TINY.build(before.interface), Acting(execute=2)))


def test_everything_that_does_not_fit_is_told_at_once(parts, tmp_path):
    other = write_dataset(tmp_path / "other", 3, fps=10, task="stay")
    trials = Trials.load(parts[2])
    replace(trials, policy="0" * 32).save(tmp_path / "foreign")
    run = run_of(parts, tmp_path / "run", trials=(tmp_path / "foreign",), hold_out=1,
                 demonstrations=Demonstrations(path=(other,), shift="gain:1.1", early=0.5))  # fmt: skip
    with pytest.raises(UserError) as caught:
        train(run)
    for said in (
        "fps: the policy has 20.0",
        "does not know stay",
        "trials of another policy",
        "must be nominal",
        "early must be 0",
        "hold_out",
    ):
        assert said in str(caught.value)
    off = replace(run, demonstrations=Demonstrations(path=(other,), offset=0.05))
    with pytest.raises(UserError, match="offset must be 0"):
        train(off)
    with pytest.raises(UserError, match=r"objective\.ending must be 0"):
        replace(run, objective=BehaviourCloning(ending=1)).build()


def test_trials_are_read_back_and_checked(parts, tmp_path):
    trials = Trials.load(parts[2])
    trials.save(tmp_path / "copy")
    again = Trials.load(tmp_path / "copy")
    assert again.known == trials.known and again.policy == trials.policy
    for one, other in zip(trials.made, again.made, strict=True):
        for name in ("image", "state", "action"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    path = tmp_path / "copy" / "trials.json"
    for change, said in (
        (lambda d: d["trials"][0].update(moments=4), "must have 35 rows|must have 36 rows|must have 37 rows"),
        (lambda d: d["trials"][0].update(shift="x"), "no shift 'x'"),
        (lambda d: d.update(trials=[]), "not empty"),
    ):
        trials.save(tmp_path / "copy")
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
        with pytest.raises(UserError, match=said):
            Trials.load(tmp_path / "copy")


def test_recorded_trials_know_their_shift_and_outcome():
    policy = fake_policy()
    todo = shifted_cases("go", ["actuation-bias", "encoder-offset"], 0.1, 0.2, 6, 10)
    assert [case.shift.split(":")[0] for case in todo] == ["actuation-bias", "encoder-offset"] * 3
    assert len({case.shift for case in todo}) == 6
    with closing(Robots(policy.interface, lambda task, _: FakeRobot(task))) as robots:
        made = record_trials(policy, todo, Settings(horizon=5), robots)
    assert [(k.task, k.seed, k.shift) for k in made.known] == [(c.task, c.seed, c.shift) for c in todo]
    assert all(known.moments == len(trial.state) == 3 for known, trial in zip(made.known, made.made, strict=True))
    assert made.policy == fingerprint(policy.model)


def test_trials_that_were_broken_off_go_on_as_if_they_had_not_been(tmp_path):
    policy, settings = fake_policy(), Settings(horizon=5)
    todo = shifted_cases("go", ["actuation-bias"], 0.1, 0.2, 6, 10)
    folder = tmp_path / "trials"
    with closing(Robots(policy.interface, lambda task, _: FakeRobot(task))) as robots:
        whole = record_trials(policy, todo, settings, robots)
        assert before(folder, policy, todo, settings) is None
        record_trials(policy, todo[:2], settings, robots).save(folder)
        kept = before(folder, policy, todo, settings)
        assert kept.known == whole.known[:2]
        more = record_trials(policy, todo[2:], settings, robots, start=2)
    joined = kept.joined(more)
    assert joined.known == whole.known and joined.settings == whole.settings
    assert whole.settings.startswith("horizon 5, seed 0, acting {")
    for one, other in zip(joined.made, whole.made, strict=True):
        np.testing.assert_array_equal(one.action, other.action)
    for other, said in (
        ((policy, todo[:1], settings), "other trials, or more than 1"),
        ((policy, todo[1:], settings), "other trials"),
        ((policy, todo, replace(settings, seed=1)), "made otherwise"),
        ((replace(policy, acting=Acting(execute=1)), todo, settings), "made otherwise"),
        ((replace(policy, model=TINY.build(policy.interface)), todo, settings), "another policy"),
    ):
        with pytest.raises(UserError, match=said):
            before(folder, *other)
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match="holds no trials"):
        before(tmp_path / "notes", policy, todo, settings)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "state",
            lambda part: part[:, :2],
            r"'state' must be float32 of \[4\] at .*, it is float32 of \[2\]",
        ),
        ("action", lambda part: part.long(), r"'action' must be float32 of \[4\] at every moment, it is int64"),
        ("image", lambda part: part[:, :, :, 1:], r"'image' must be uint8 of \[2, 3, 32, 32\]"),
        ("state", lambda part: part * float("nan"), "'state' has numbers that are not finite"),
        ("action", lambda part: part[0, 0], "'action' must have"),
    ],
)
def test_trials_of_another_robot_are_one_clear_line(parts, tmp_path, name, change, said):
    data, policy, trials = parts
    folder = tmp_path / "trials"
    shutil.copytree(trials, folder)
    tensors = read_tensors(folder / "trials.safetensors")
    write_tensors(tensors | {name: change(tensors[name])}, folder / "trials.safetensors")
    with pytest.raises(UserError, match=said):
        _ = run_of((data, policy, folder), tmp_path / "out").batches


def test_trials_need_a_kind_and_tell_which_shift_is_none(parts, tmp_path):
    with pytest.raises(UserError, match="trials need a kind of shift or more"):
        shifted_cases("go", [], 0.0, 0.1, 2, 0)
    folder = tmp_path / "trials"
    shutil.copytree(parts[2], folder)
    known = json.loads((folder / "trials.json").read_text())
    known["trials"][1]["shift"] = "hammer"
    (folder / "trials.json").write_text(json.dumps(known))
    with pytest.raises(UserError, match=r"trials\.json: trials\[1\]: .*hammer"):
        Trials.load(folder)


class Telling:
    """An adaptation whose tokens say how often they were made, and whose context is the token."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    def token(self, policy: Policy, trial: Trial) -> torch.Tensor:
        return torch.ones(16)

    def context(self, token: torch.Tensor) -> torch.Tensor:
        self.heard.append(float(token[0]))
        return token


@pytest.mark.parametrize(("way", "wanted"), [("sum", [1.0, 2.0, 3.0]), ("mean", [1.0, 1.0, 1.0])])
def test_every_failed_trial_adds_its_token_and_no_other_does(way, wanted, monkeypatch):
    policy, telling = fake_policy(), Telling()
    todo = [Case("go", 1), Case("go", 2)]
    seen = []

    def fake_run(policy, todo, settings, robots, start, contexts):
        seen.append((start, [case.seed for case in todo], [c is not None for c in contexts]))
        for number, case in enumerate(todo):
            yield Row(case.task, case.seed, case.shift, number == 1, 0.0, 1, None), None

    monkeypatch.setattr("worldmodel.policies.recovery.run_cases", fake_run)
    with closing(Robots(policy.interface, lambda task, _: FakeRobot(task))) as robots:
        rows = adapt(policy, telling, todo, Settings(), robots, 3, way)
    assert len(rows) == 4 and telling.heard == wanted
    assert [known for _, _, known in seen] == [[False, False]] + [[True, False]] * 3
    assert [start for start, _, _ in seen] == [0, 2, 4, 6]
    assert len({seed for _, seeds, _ in seen for seed in seeds}) == 8


def outcomes(*successes: bool, shifts: int = 1) -> list[Row]:
    return [Row("go", n, f"shift {n % shifts}", bool(s), 0.0, 1, None) for n, s in enumerate(successes)]


def test_recovery_is_the_share_of_the_lost_success_that_comes_back():
    nominal, shifted = outcomes(*[1] * 18, 0, 0), outcomes(*[1] * 2, *[0] * 18)
    found = recovery(nominal, shifted, outcomes(*[1] * 14, *[0] * 6))
    assert found.value == pytest.approx((14 - 2) / (18 - 2)) and found.n == 20
    assert found.interval[0] < found.value < found.interval[1] <= 1.5
    assert recovery(nominal, shifted, nominal).interval == (1.0, 1.0)
    assert recovery(nominal, shifted, shifted).interval == (0.0, 0.0)
    with pytest.raises(ValueError, match="nothing to recover"):
        recovery(shifted, nominal, nominal)


def test_episodes_of_one_shift_are_drawn_together():
    """Of four shifts, one is recovered in all of its five episodes and three in none: 0 to 3 of 4 are drawn often."""
    nominal, shifted = outcomes(*[1] * 20, shifts=4), outcomes(*[0] * 20, shifts=4)
    found = recovery(nominal, shifted, outcomes(*[1, 0, 0, 0] * 5, shifts=4))
    assert (found.value, found.n, found.interval) == (0.25, 20, (0.0, 0.75))
    assert recovery(nominal, outcomes(*[0] * 20), outcomes(*[1, 0, 0, 0] * 5)).interval[1] < 0.5


def test_the_report_sets_a_policy_without_context_beside_the_trials():
    nominal, shifted = outcomes(*[1] * 9, 0), outcomes(1, *[0] * 9)
    after = (outcomes(*[1] * 3, *[0] * 7), outcomes(*[1] * 8, 0, 0))
    found = report_of(nominal, (shifted, *after), others=(outcomes(*[1] * 6, *[0] * 4), outcomes(*[1] * 5, *[0] * 5)))
    values = {name: metric.value for name, metric in found.metrics.items()}
    wanted = {
        "success_rate__nominal": 0.9,
        "success_rate__shifted": 0.1,
        "success_rate__after_1": 0.3,
        "recovery_rho__after_1": 0.25,
        "success_rate__after_2": 0.8,
        "recovery_rho__after_2": 0.875,
        "recovery_rho": 0.875,
        "success_rate__other_nominal": 0.6,
        "success_rate__other_shifted": 0.5,
        "recovery_rho__other": 0.5,
    }
    assert values == pytest.approx(wanted)
    assert [row[1:] for row in found.tables[0].rows] == [(str(n), "10") for n in (9, 1, 3, 8, 6, 5)]
    alone = report_of(shifted, (nominal, *after))  # the shift cost nothing: no rho
    assert not any("rho" in name or "other" in name for name in alone.metrics)
