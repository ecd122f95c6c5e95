import numpy as np
import pytest

from worldmodel.actions import ActionSpec
from worldmodel.serve.inputs import InputTimeline
from worldmodel.serve.protocol import ProtocolError

SPEC = ActionSpec(names=("turn", "grip"), low=(-8, 0.5), high=(8, 1.5))


def timeline() -> InputTimeline:
    """4 frames in 0.4 s: a frame is 0.1 s."""
    return InputTimeline(SPEC, 4, 0.4)


def turns(taken: tuple[int, np.ndarray]) -> list[float]:
    return taken[1][:, 0].tolist()


def test_at_rest() -> None:
    seq, action = timeline().take(1.0)
    assert seq == 0
    assert action.tolist() == [[0, 0.5]] * 4


def test_what_is_held_holds_for_the_whole_chunk() -> None:
    keys = timeline()
    keys.put(3, {"turn": 5}, 1.0)
    for _ in range(3):
        seq, action = keys.take(1.1)
        assert seq == 3
        assert action.tolist() == [[5, 0.5]] * 4
    assert keys.pressed
    keys.put(4, {}, 1.2)
    assert not keys.pressed
    assert turns(keys.take(1.3)) == [0, 0, 0, 0]


@pytest.mark.parametrize(("held", "expected"), [(0.01, 1), (0.1, 1), (0.16, 2), (0.39, 4), (2.0, 4)])
def test_a_tap_between_two_chunks_counts_for_its_frames(held: float, expected: int) -> None:
    keys = timeline()
    keys.take(0.0)
    keys.put(1, {"turn": 5}, 1.0)
    keys.put(2, {}, 1.0 + held)
    assert turns(keys.take(5.0)) == [5] * expected + [0] * (4 - expected)
    assert turns(keys.take(5.4)) == [0, 0, 0, 0]


def test_what_was_already_shown_is_no_tap() -> None:
    keys = timeline()
    keys.put(1, {"turn": 5}, 1.0)
    keys.take(1.1)
    keys.put(2, {}, 1.15)
    assert turns(keys.take(1.5)) == [0, 0, 0, 0]


def test_the_last_of_several_values_wins() -> None:
    keys = timeline()
    keys.put(1, {"turn": 5}, 1.0)
    keys.put(2, {"turn": -5, "grip": 1}, 1.05)
    seq, action = keys.take(1.1)
    assert seq == 2
    assert action.tolist() == [[-5, 1]] * 4


def test_numbers_must_grow_and_names_must_be_known() -> None:
    keys = timeline()
    keys.put(5, {"turn": 1}, 1.0)
    for seq in (5, 4):
        with pytest.raises(ProtocolError, match=f"seq {seq} after 5"):
            keys.put(seq, {}, 1.1)
    with pytest.raises(ProtocolError, match="no action 'jump'"):
        keys.put(6, {"jump": 1}, 1.2)
    assert keys.take(1.3)[0] == 5


def test_a_world_without_actions() -> None:
    keys = InputTimeline(None, 4, 0.4)
    keys.put(1, {}, 1.0)
    assert keys.take(1.1)[1].shape == (4, 0)
