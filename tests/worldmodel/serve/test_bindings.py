import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldmodel.actions import ActionSpec
from worldmodel.serve.bindings import bind


def spec(*names: str, low: float = -2.0, high: float = 4.0) -> ActionSpec:
    return ActionSpec(names=names, low=(low,) * len(names), high=(high,) * len(names))


def test_left_is_positive_and_turning_is_comfortable() -> None:
    turn, forward, strafe = bind(spec("turn", "forward", "strafe"))
    assert (turn.positive.keys, turn.negative.keys) == (("ArrowLeft",), ("ArrowRight",))
    assert (turn.positive.value, turn.negative.value) == pytest.approx((0.6 * 4, 0.6 * -2))
    assert (turn.rest, turn.mouse, turn.axis, turn.axis_sign) == (0, "x", "right x", -1)  # mouse right turns right
    assert (forward.positive.keys, forward.negative.keys) == (("ArrowUp", "KeyW"), ("ArrowDown", "KeyS"))
    assert (forward.positive.value, forward.negative.value) == (4, -2)
    assert (strafe.positive.keys, strafe.negative.keys) == (("KeyA",), ("KeyD",))


def test_a_world_without_side_steps_turns_with_a_and_d() -> None:
    turn, _ = bind(spec("Turn", "forward"))
    assert (turn.positive.keys, turn.negative.keys) == (("ArrowLeft", "KeyA"), ("ArrowRight", "KeyD"))


def test_unknown_names_get_keys_in_order() -> None:
    x, y, gripper = bind(spec("x", "y", "gripper"))
    assert [b.positive.keys[0] for b in (x, y, gripper)] == ["KeyD", "KeyW", "KeyE"]
    assert x.positive.label == "x +"
    assert x.positive.value == pytest.approx(2.4)


def test_a_range_without_zero_rests_at_its_nearest_end() -> None:
    (grip,) = bind(spec("grip", low=0.5, high=1.5))
    assert (grip.rest, grip.negative.value) == (0.5, 0.5)
    assert grip.positive.value == pytest.approx(0.5 + 0.6)


def test_no_actions_no_bindings() -> None:
    assert bind(None) == []


known = ["turn", "yaw", "forward", "strafe", "pitch", "x", "y", "z", "a", "b", "c", "d", "e"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(known), unique=True, min_size=1))
def test_no_key_drives_two_actions(names: list[str]) -> None:
    if {"turn", "yaw"} <= set(names):
        names.remove("yaw")
    reserved = {"Space", "KeyR", "KeyN", "KeyO", "KeyL", "KeyF", "KeyB", "KeyV", "KeyC", "KeyT"}  # the page's own
    keys = [key for binding in bind(spec(*names)) for side in (binding.positive, binding.negative) for key in side.keys]
    assert len(keys) == len(set(keys))
    assert not reserved & set(keys)
