"""Hardware shifts: their algebra, what they rewrite recordings into, their names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.errors import UserError
from worldmodel.policies.shifts import (
    CENTRE,
    NOMINAL,
    ActuationBias,
    CameraPose,
    EncoderOffset,
    Gain,
    Joined,
    Latency,
    draw_offset,
    parse_shift,
)

DELTA = np.array([0.03, -0.02, 0.01])
SHIFTS = (
    ActuationBias((0.03, -0.02, 0.01)),
    EncoderOffset((0.03, -0.02, 0.01)),
    Gain(1.25),
    Latency(3),
    CameraPose((0.1, 0, -0.05), (5, 0, -3)),
    Joined((Gain(0.8), ActuationBias((0, 0.04, 0)), EncoderOffset((0.01, 0, 0)), Latency(2))),
)


def controlled(shift, target, hand, steps=400, gain=0.1):
    """Where a proportional controller that moves until its reading is at what it is given leaves the hand."""
    for _ in range(steps):
        hand = hand + gain * (shift.drive(target) - shift.sense(hand))
    return hand


def test_offsets_leave_the_hand_beside_its_target_and_only_one_of_them_says_so():
    target, hand = np.array([0.1, 0.7, 0.2]), np.array([0.0, 0.6, 0.15])
    bias, encoder = ActuationBias(tuple(DELTA)), EncoderOffset(tuple(DELTA))
    reached = [controlled(shift, target, hand) for shift in (bias, encoder)]
    np.testing.assert_allclose(reached, [target + DELTA] * 2, atol=1e-12)
    np.testing.assert_allclose(bias.sense(reached[0]), target + DELTA, atol=1e-12)
    np.testing.assert_allclose(encoder.sense(reached[1]), target, atol=1e-12)
    np.testing.assert_allclose(controlled(Gain(1.5), CENTRE + DELTA, hand), CENTRE + 1.5 * DELTA, atol=1e-12)


def test_compensation_subtracts_delta_from_actions_and_for_encoders_from_states():
    rng = np.random.default_rng(0)
    actions, states = rng.standard_normal((7, 4)), rng.standard_normal((7, 5))
    for shift, moved in ((ActuationBias(tuple(DELTA)), False), (EncoderOffset(tuple(DELTA)), True)):
        a, q = shift.compensate(actions, states)
        np.testing.assert_array_equal(a[:, :3], actions[:, :3] - DELTA)
        np.testing.assert_array_equal(a[:, 3:], actions[:, 3:])
        np.testing.assert_array_equal(q[:, :3], states[:, :3] - DELTA * moved)
        np.testing.assert_array_equal(q[:, 3:], states[:, 3:])
    a, q = Latency(2).compensate(actions, states)
    np.testing.assert_array_equal(a, actions[[2, 3, 4, 5, 6, 6, 6]])
    np.testing.assert_array_equal(q, states)
    a, _ = Gain(2.0).compensate(actions, states)
    np.testing.assert_allclose(a[:, :3], CENTRE + (actions[:, :3] - CENTRE) / 2, atol=1e-15)


@pytest.mark.parametrize("shift", SHIFTS, ids=lambda shift: shift.name)
def test_a_compensated_command_makes_the_same_motion(shift):
    """Whatever the shift, the controller of the shifted robot gets the error that it would have had without."""
    rng = np.random.default_rng(1)
    target, hand = rng.standard_normal((2, 20, 3)) * 0.2 + CENTRE
    error = shift.drive(shift.command(target)) - shift.sense(hand)
    np.testing.assert_allclose(error, target - hand, atol=1e-12)


@pytest.mark.parametrize("shift", SHIFTS, ids=lambda shift: shift.name)
def test_undrive_inverts_drive_and_types_stay(shift):
    x = np.random.default_rng(2).standard_normal((5, 3))
    np.testing.assert_allclose(shift.undrive(shift.drive(x)), x, atol=1e-12)
    a, q = shift.compensate(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    assert a.dtype == q.dtype == np.float32


@pytest.mark.parametrize("shift", [NOMINAL, *SHIFTS], ids=lambda shift: shift.name)
def test_names_are_read_back(shift):
    assert parse_shift(shift.name) == shift
    assert parse_shift(f"{shift.name}+nominal") == shift


@given(st.integers(0, 10_000), st.sampled_from(["actuation-bias", "encoder-offset"]))
def test_random_offsets_are_a_function_of_the_seed(seed, kind):
    one = draw_offset(kind, 0.03, 0.05, seed)
    assert one == draw_offset(kind, 0.03, 0.05, seed) == parse_shift(one.name)
    assert one != draw_offset(kind, 0.03, 0.05, seed + 1)
    assert 0.03 - 2e-5 <= np.linalg.norm(one.delta) <= 0.05 + 2e-5


def test_directions_of_random_offsets_are_uniform():
    drawn = np.array([draw_offset("actuation-bias", 0.04, 0.04, seed).delta for seed in range(2000)]) / 0.04
    np.testing.assert_allclose(drawn.mean(0), 0, atol=4 / np.sqrt(3 * 2000))
    np.testing.assert_allclose(drawn.T @ drawn / 2000, np.eye(3) / 3, atol=0.03)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bias:1,2,3", "no shift 'bias'"),
        ("actuation-bias:0.1,0.2", "takes 3 numbers, not 2"),
        ("actuation-bias:0.1,0.2,x", "not a list of numbers"),
        ("actuation-bias:0.1,0.2,nan", "three numbers in"),
        ("encoder-offset:0.1,0.2,0.9", "three numbers in"),
        ("gain:0", "factor in"),
        ("gain:nan", "factor in"),
        ("latency:1.5", "whole number"),
        ("latency:inf", "whole number"),
        ("latency:-1", "whole number"),
        ("camera-pose:1,0", "takes 3 or 6 numbers"),
        ("camera-pose:0,0,0.1+camera-pose:0,0.1,0", "only one camera-pose"),
        ("", "no shift ''"),
    ],
)
def test_what_is_no_shift_is_told(text, said):
    with pytest.raises(UserError, match=said):
        parse_shift(text)


def test_lengths_and_kinds_of_random_offsets_are_checked():
    with pytest.raises(UserError, match="no random shift 'gain'"):
        draw_offset("gain", 0.1, 0.2, 0)
    with pytest.raises(UserError, match="must rise within"):
        draw_offset("actuation-bias", 0.2, 0.1, 0)
