"""Action ranges: quantiles of the data to -1 and 1, and every bad column named."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from worldmodel.actions import ActionSpec, zero_action
from worldmodel.errors import UserError
from worldmodel.serial import from_json, to_json

SPEC = ActionSpec(names=("turn", "gas"), low=(-10.0, 0.0), high=(10.0, 4.0), pack=2)


def test_normalise_closed_form():
    action = torch.tensor([[-10.0, 0.0], [10.0, 4.0], [0.0, 2.0], [5.0, 1.0], [12.0, 5.0], [-1000.0, 1000.0]])
    expected = [[-1, -1], [1, 1], [0, 0], [0.5, -0.5], [1.2, 1.5], [-1.5, 1.5]]
    torch.testing.assert_close(SPEC.normalise(action), torch.tensor(expected), rtol=0, atol=1e-6)
    inside = action[:5]
    torch.testing.assert_close(SPEC.denormalise(SPEC.normalise(inside)), inside, rtol=0, atol=1e-5)


def test_normalise_keeps_type_and_leading_axes():
    action = torch.zeros(3, 4, 5, 2, dtype=torch.float64)
    assert SPEC.normalise(action).dtype == torch.float64 and SPEC.normalise(action).shape == action.shape


def test_sizes_and_packing():
    assert (SPEC.dim, SPEC.size) == (2, 4)
    action = torch.arange(24.0).reshape(1, 12, 2)
    packed = SPEC.packed(action)
    assert packed.shape == (1, 6, 4)
    assert packed[0, 1].tolist() == [4, 5, 6, 7]  # actions 2 and 3 in order


def test_zero_action_means_do_nothing():
    still = zero_action(SPEC, batch=3, frames=5)
    assert still.shape == (3, 5, 4)
    assert still[1, 2].tolist() == [0.0, -1.0, 0.0, -1.0]  # no gas is the lower end of its range


@given(arrays(np.float32, (40, 2), elements=st.floats(-1e4, 1e4, width=32)))
@settings(deadline=None, max_examples=50)
def test_from_data_takes_the_quantiles(actions):
    actions[0], actions[1] = (-1.0, -2.0), (1.0, 2.0)  # never constant
    spec = ActionSpec.from_data(("a", "b"), actions)
    for i in range(2):
        low, high = np.quantile(actions[:, i].astype(np.float64), (0.01, 0.99))
        assert spec.low[i] == pytest.approx(low, rel=1e-12) and spec.high[i] == pytest.approx(high, rel=1e-12)
    inside = (actions >= spec.low) & (actions <= spec.high)
    normal = spec.normalise(torch.from_numpy(actions.astype(np.float64))).numpy()
    assert np.abs(normal[inside]).max(initial=0) <= 1 + 1e-9
    assert np.abs(normal).max() <= 1.5


def test_a_rare_dimension_takes_its_whole_range():
    actions = np.zeros((1000, 1), np.float32)
    actions[3], actions[4] = -2.0, 6.0
    spec = ActionSpec.from_data(("jump",), actions)
    assert (spec.low, spec.high) == ((-2.0,), (6.0,))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: a.__setitem__((7, 1), np.nan), r"my\.data: action 'gas' is nan at frame 7"),
        (lambda a: a.__setitem__((3, 0), -np.inf), r"my\.data: action 'turn' is -inf at frame 3"),
        (lambda a: a.__setitem__((slice(None), 1), 2.5), r"action 'gas': constant at 2\.5, .* drop the dimension"),
    ],
)
def test_bad_data_names_the_dimension(spoil, message):
    actions = np.random.default_rng(0).normal(size=(50, 2))
    spoil(actions)
    with pytest.raises(UserError, match=message):
        ActionSpec.from_data(("turn", "gas"), actions, source="my.data")


def test_bad_shapes_and_values():
    with pytest.raises(UserError, match=r"data: actions have shape \(5, 3\), expected \[N, 2\]"):
        ActionSpec.from_data(("a", "b"), np.zeros((5, 3)))
    with pytest.raises(UserError, match="data: no actions at all"):
        ActionSpec.from_data(("a", "b"), np.zeros((0, 2)))
    with pytest.raises(UserError, match="1 low and 2 high bounds"):
        ActionSpec(names=("a", "b"), low=(0.0,), high=(1.0, 1.0))
    with pytest.raises(UserError, match=r"'b': bounds .*nan.* are not finite"):
        ActionSpec(names=("a", "b"), low=(0.0, float("nan")), high=(1.0, 1.0))
    with pytest.raises(UserError, match=r"'a': constant at 1\.0"):
        ActionSpec(names=("a",), low=(1.0,), high=(0.0,))
    with pytest.raises(UserError, match="pack must be at least 1, not 0"):
        ActionSpec(names=("a",), low=(0.0,), high=(1.0,), pack=0)


def test_travels_as_json():
    spec = ActionSpec.from_data(("a",), np.random.default_rng(1).normal(size=(99, 1)), pack=4)
    assert from_json(json.loads(json.dumps(to_json(spec))), ActionSpec, "here") == spec
