"""Visits in poses that were made by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.evaluate.context.visits import Visit, visits


def poses(*parts) -> np.ndarray:
    """Stretches [n, 3] in a row."""
    return np.concatenate([np.asarray(part, float).reshape(-1, 3) for part in parts])


def held(x, y, angle, frames):
    return [(x, y, angle)] * frames


def turned(x, y, *angles):
    return [(x, y, angle) for angle in angles]


AWAY = turned(1, 2, 40, 80, 100, 130, 100, 80, 40)


def test_a_visit_has_its_frames():
    path = poses(turned(1, 2, 300, 330), held(1, 2, 0, 5), AWAY, held(1, 2, 0, 6), turned(1, 2, 30))
    assert visits(path) == [Visit(look=6, away=(9, 11), back=14, stop=20)]
    assert visits(path)[0].horizon == 3


def test_away_is_90_degrees_and_across_north():
    path = poses(held(1, 2, 350, 4), turned(1, 2, 79.9, 80, 80.1, 60), held(1, 2, 350.4, 4))
    assert visits(path) == [Visit(3, (5, 6), 8, 12)]
    assert visits(path[:-4]) == []
    near = poses(held(1, 2, 350, 4), turned(1, 2, 70, 79, 60), held(1, 2, 350, 4))
    assert visits(near) == []


def test_anything_may_happen_between_the_first_and_the_last_frame_away():
    path = poses(held(0, 0, 0, 4), turned(0, 0, 95), held(7, 7, 0, 9), turned(0, 0, 95), held(0, 0, 0, 4))
    assert [v.horizon for v in visits(path)] == [11]


def test_the_pose_must_be_the_same_within_two_centimetres_and_one_degree():
    for end, found in (((0.019, 0, 0), 1), ((0.021, 0, 0), 0), ((0, 0, -0.99), 1), ((0, 0, 1.01), 0)):
        path = poses(held(0, 0, 0, 4), turned(0, 0, 100, 100), held(*end, 4))
        assert len(visits(path)) == found
    path = poses(held(0, 0, 0, 4), turned(0, 0, 100, 100), held(0.021, 0, 0, 4))
    assert len(visits(path, place=0.03)) == 1


def test_a_glance_is_no_look():
    assert visits(poses(held(0, 0, 0, 3), turned(0, 0, 100), held(0, 0, 0, 4))) == []
    assert visits(poses(held(0, 0, 0, 4), turned(0, 0, 100), held(0, 0, 0, 3))) == []
    passing = poses(held(0, 0, 0, 4), turned(0, 0, 100, 0, 200), held(0, 0, 0, 4))
    assert [v.horizon for v in visits(passing)] == [3]


def test_the_view_come_back_to_may_be_the_next_look():
    path = poses(held(0, 0, 0, 4), turned(0, 0, 100), held(0, 0, 0, 4), turned(0, 0, 100, 100), held(0, 0, 0, 5))
    assert visits(path) == [Visit(3, (4, 4), 5, 9), Visit(8, (9, 10), 11, 16)]


def test_two_places_do_not_mix():
    two = poses(held(0, 0, 0, 4), turned(0, 0, 100), held(0, 0, 0, 4), held(9, 0, 0, 4), turned(9, 0, 200, 200, 150))
    both = poses(two, held(9, 0, 0, 4))
    assert [(v.look, v.horizon) for v in visits(both)] == [(3, 1), (12, 3)]


def test_short_or_still_recordings_hold_none():
    assert visits(np.zeros((0, 3))) == []
    assert visits(np.zeros((3, 3))) == []
    assert visits(np.zeros((50, 3))) == []


@given(st.lists(st.sampled_from([0.0, 0.5, 60.0, 95.0, 180.0, 359.8]), max_size=60), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_what_is_found_is_what_was_asked_for(angles, hold):
    path = poses([(0, 0, angle) for angle in angles])
    before = -1
    for visit in visits(path, hold=hold):
        apart = np.abs((path[:, 2] - path[visit.look, 2] + 180) % 360 - 180)
        assert visit.look > before
        assert (apart[visit.look - hold + 1 : visit.look + 1] <= 1).all()
        assert apart[visit.look + 1] > 1
        assert visit.look < visit.away[0] <= visit.away[1] < visit.back <= visit.stop - hold
        assert (apart[[*visit.away]] >= 90).all()
        assert (apart[visit.look + 1 : visit.away[0]] < 90).all()
        assert (apart[visit.away[1] + 1 : visit.back] < 90).all()
        assert (apart[visit.back : visit.stop] <= 1).all()
        before = visit.look
