"""Tracks of painted people: kept, lost, held, faded, found again, recognised; causal and a value."""

import itertools

import numpy as np
from painted import GREEN, RED, Detector, networks, paint

from worldmodel.face.track import Tracker, Tracking, Tracks


def follow(tracker: Tracker, pictures: list[np.ndarray], fps: float = 25.0) -> list[Tracks]:
    tracks, seen = None, []
    for i, picture in enumerate(pictures):
        tracks = tracker.step(tracks, picture, i / fps)
        seen.append(tracks)
    return seen


def test_a_moving_face_is_one_track_with_little_lag() -> None:
    before = Detector.calls
    people = [(RED, 40 + 0.8 * i, 48, 36) for i in range(48)]
    seen = follow(Tracker(networks(), Tracking(every=8)), [paint(person) for person in people])
    assert [[t.name for t in tracks.visible] for tracks in seen] == [[0]] * 48
    assert Detector.calls - before == 6  # every eighth picture
    assert seen[0].visible[0].weight == 1  # a scene begins swapped
    for (_, x, y, side), tracks in list(zip(people, seen, strict=True))[10:]:
        pose = tracks.visible[0].pose
        assert abs(pose.x - x) < 2.5 and abs(pose.y - y) < 1 and abs(pose.scale / side - 1) < 0.05


def test_a_step_changes_neither_state_nor_picture_and_repeats() -> None:
    tracker, picture = Tracker(networks(), Tracking()), paint((RED, 50, 50, 30))
    first = tracker.step(None, picture, 0.0)
    kept = picture.copy()
    results = [tracker.step(first, paint((RED, 53, 50, 30)), 0.04) for _ in range(2)]
    np.testing.assert_array_equal(picture, kept)
    np.testing.assert_array_equal(results[0].visible[0].smoothed.value, results[1].visible[0].smoothed.value)
    assert first.visible[0].pose.x < results[0].visible[0].pose.x


def test_a_lost_face_is_held_fades_and_comes_back_as_itself() -> None:
    there, away = paint((RED, 50, 50, 30)), paint()
    settings = Tracking(every=4, hold=0.2, fade=0.2, appear=0.12)
    seen = follow(Tracker(networks(), settings), [there] * 10 + [away] * 25 + [there] * 10)
    weights = [tracks.visible[0].weight if tracks.visible else 0.0 for tracks in seen]
    assert weights[:10] == [1.0] * 10
    held = next(i for i, w in enumerate(weights) if w < 1)
    assert 14 <= held <= 17  # 0.2 s are 5 pictures
    gone = next(i for i, w in enumerate(weights) if w == 0)
    assert held + 4 <= gone <= held + 6
    assert all(a >= b for a, b in itertools.pairwise(weights[10 : gone + 1]))
    back = next(i for i in range(35, 45) if weights[i] > 0)
    assert back <= 37 and weights[back] < 1 and weights[-1] == 1  # it fades in
    assert seen[-1].visible[0].name == 0 and not seen[-1].gone


def test_another_person_gets_another_name_and_the_first_keeps_hers() -> None:
    red, green, nobody = paint((RED, 50, 50, 30)), paint((GREEN, 60, 50, 30)), paint()
    pictures = [red] * 5 + [nobody] * 20 + [green] * 10 + [nobody] * 20 + [red] * 10
    seen = follow(Tracker(networks(), Tracking(every=4)), pictures)
    assert seen[4].visible[0].name == 0
    assert seen[34].visible[0].name == 1
    assert seen[-1].visible[0].name == 0


def test_a_person_is_forgotten_after_a_while() -> None:
    red, nobody = paint((RED, 50, 50, 30)), paint()
    seen = follow(Tracker(networks(), Tracking(every=4, forget=1.0)), [red] * 5 + [nobody] * 40 + [red] * 5)
    assert seen[-1].visible[0].name == 1


def test_two_people_cross_and_keep_their_names_and_rows() -> None:
    tracker = Tracker(networks(), Tracking(every=2, faces=2))
    pictures = [paint((RED, 25 + 2 * i, 40, 24), (GREEN, 105 - 2 * i, 60, 24)) for i in range(41)]
    seen = follow(tracker, pictures)
    first, last = ({t.name: (t.slot, t.pose.x) for t in tracks.visible} for tracks in (seen[0], seen[-1]))
    assert first.keys() == last.keys() == {0, 1}
    assert {name: slot for name, (slot, _) in first.items()} == {name: slot for name, (slot, _) in last.items()}
    red = min(first, key=lambda name: first[name][1])
    assert last[red][1] > 90 and last[1 - red][1] < 40


def test_only_as_many_as_asked_for_the_largest_first() -> None:
    picture = paint((RED, 30, 50, 20), (GREEN, 90, 50, 40))
    tracks = follow(Tracker(networks(), Tracking(faces=1)), [picture] * 3)[-1]
    assert len(tracks.visible) == 1 and abs(tracks.visible[0].pose.x - 90) < 2


def test_a_cut_ends_a_track_at_once_and_remembers_the_person() -> None:
    bright = np.full((96, 128, 3), 250, np.uint8)
    seen = follow(Tracker(networks(), Tracking(every=50)), [paint((RED, 50, 50, 30))] * 5 + [bright] * 2)
    assert len(seen[4].visible) == 1 and not seen[5].visible and seen[5].gone[0].name == 0


def test_tiny_faces_and_black_pictures_are_left_alone() -> None:
    seen = follow(Tracker(networks(), Tracking(smallest=16)), [paint((RED, 50, 50, 10))] * 15)
    assert seen[-1].visible[0].why == "tiny" and seen[-1].visible[0].weight == 0
    black = follow(Tracker(networks(), Tracking()), [np.zeros((40, 40, 3), np.uint8)] * 5)
    assert not black[-1].visible and not black[-1].gone


def test_times_that_stand_still_or_jump_are_harmless() -> None:
    tracker, picture = Tracker(networks(), Tracking()), paint((RED, 50, 50, 30))
    tracks = None
    for time in (0.0, 0.0, 0.04, 100.0, 100.04):
        tracks = tracker.step(tracks, picture, time)
        assert np.isfinite(tracks.visible[0].smoothed.value).all() and tracks.visible[0].weight == 1
