"""The PDE playground's bookkeeping: budgets, stable times, what is done stays done."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodel.datasets.pde.kuramoto_sivashinsky import KuramotoSivashinsky
from worldmodel.datasets.pde.trajectories import Trajectories
from worldmodel.errors import UserError
from worldmodel.models.together import Together

SPEC = importlib.util.spec_from_file_location("pde", Path(__file__).parents[1] / "demos" / "pde.py")
assert SPEC and SPEC.loader
pde = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pde)
DATA = Trajectories(
    equation=KuramotoSivashinsky(points=pde.MODEL.points),
    interval=4.0,
    train=2,
    validation=1,
    frames=12,
    warmup=40.0,
    batch=4,
)


def model(seed=0):
    torch.manual_seed(seed)
    return pde.MODEL.build()


def together(*seeds):
    return Together([model(seed) for seed in seeds])


@pytest.mark.parametrize(
    ("name", "frames", "passes"),
    [("one-step", 2, 3), ("rollout", 5, 12), ("hero", 5, 20), ("pushforward", 2, 3)],
)
def test_the_budget_is_spent_and_no_more(name, frames, passes):
    arm = replace(pde.ARMS[name], frames=frames)
    assert pde.train(together(0, 1), arm, replace(DATA, length=frames), 121, (0, 9)) == -(-121 // passes)


def test_training_is_a_function_of_the_seed_and_helps():
    arm, data = replace(pde.ARMS["hero"], frames=3, lr=3e-3), replace(DATA, length=3)
    made = [together(0) for _ in range(3)]
    for one, first in zip(made, (1, 1, 2), strict=True):
        pde.train(one, arm, data, 600, (first << 20,))
    first, same, other = (torch.cat([p.flatten() for p in one.parameters()]) for one in made)
    assert torch.equal(first, same) and not torch.equal(first, other)
    before, after = (pde.errors(one, data, "train", 2, 4)[:, 1].mean() for one in (model(), made[0]))
    assert after < 0.8 * before


@pytest.mark.parametrize("name", ["rollout", "hero"])
def test_operators_side_by_side_learn_what_each_learns_alone(name):
    arm, data = replace(pde.ARMS[name], frames=4), replace(DATA, length=4)
    both = together(3, 4)
    pde.train(both, arm, data, 300, (7, 8 << 20))
    for n, first in ((0, 7), (1, 8 << 20)):
        alone = together(3 + n)
        pde.train(alone, arm, data, 300, (first,))
        start, found, expected = model(3 + n).state_dict(), both.states()[n], alone.states()[0]
        moved = max(float((expected[k] - start[k]).abs().max()) for k in found)
        assert moved > 5e-3 and all(float((found[k] - expected[k]).abs().max()) < 1e-2 * moved for k in found)


def test_each_gradient_is_clipped_by_its_own_norm():
    both = together(0, 1)
    for p in both.parameters():
        p.grad = torch.ones_like(p)
        p.grad[1] *= 1e-4
    size = sum(p[0].numel() for p in both.parameters())
    pde.clip_each(both, 1, pde.BASE)
    for p in both.parameters():
        assert torch.allclose(p.grad[0], torch.full_like(p[0], size**-0.5), rtol=1e-4)
        assert (p.grad[1] == 1e-4).all()
    next(iter(both.parameters())).grad[0] = torch.nan
    with pytest.raises(UserError, match="not finite after 1 updates"):
        pde.clip_each(both, 1, pde.BASE)


def test_errors_are_relative_to_the_fields():
    one = model()
    x = DATA.whole("test", 2, 3).x
    with torch.no_grad():
        made = one(x[:, 0])
        expected = [(made - x[:, 1]), one(made) - x[:, 2]]
    expected = [e.square().mean((1, 2, 3)).sqrt() / x.square().mean().sqrt() for e in expected]
    found = pde.errors(one, DATA, "test", 2, 2)
    np.testing.assert_allclose(found, torch.stack(expected, 1).numpy(), rtol=1e-5)


def test_stable_times():
    error = np.array([[0.1, 0.6, 0.2, 0.9], [0.7, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, np.inf]])
    assert pde.stable_times(error, 2.0).tolist() == [4.0, 2.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seeds -1", "--seeds must be in [0, 4294967296], not -1"),
        ("--seeds 99999999999999999999", "--seeds must be in [0, 4294967296], not 9"),
        ("--seeds 0 1 0", "--seeds takes different ones, not '0 1 0'"),
        ("--arms hero hero", "--arms takes different ones, not 'hero hero'"),
        ("--base 0", "--base must be at least 1, not 0"),
        ("--budget -3", "--budget must be at least 1, not -3"),
        ("--out FILE", "file: could not be made"),
        ("--json FILE/x.json", "file: could not be made"),
        ("--plot FILE/x.png", "file: could not be made"),
        ("--plot x.nix", "x.nix: a plot is .png, .pdf or .svg"),
    ],
)
def test_bad_arguments_are_told_before_anything_is_trained(options, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    words = [word.replace("FILE", str(tmp_path / "file")) for word in options.split()]
    monkeypatch.setattr("sys.argv", ["pde", "compare", "--out", str(tmp_path / "out"), *words])
    monkeypatch.setattr(pde, "perform", None)
    assert pde.main() == 2
    told = capsys.readouterr().err
    assert message in told and told.startswith("pde: ") and told.count("\n") == 1


def test_a_card_that_is_none_is_named(tmp_path):
    (tmp_path / "seed_0").mkdir()
    (tmp_path / "seed_0" / "base.json").write_text("[]")
    with pytest.raises(UserError, match=r"base\.json: not what a finished arm has left"):
        pde.perform(pde.Experiment(), None, [0], tmp_path)
