"""Visits: stretches of a recording that look at something, turn away, and come back to the same pose.

They are found in the recorded poses alone, so in any world that records x, y and angle. A visit's horizon is the number
of frames from the first to the last one that is turned away from the view by APART or more, when nothing of the view is
seen on the spot. Between these two anything may happen: whoever records visits takes care that what was looked at is
not seen from elsewhere, as the policy `revisit` does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

APART = 90.0  # degrees: two views on one spot have nothing in common for fields of view of up to 90 degrees
PLACE, HEADING = 0.02, 1.0  # of poses that count as the same: in the unit of x and y, and degrees
HOLD = 4  # frames that a view is looked at, before and after, at least

Poses = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Visit:
    """Frame numbers of one episode."""

    look: int  # the last frame of looking at the view
    away: tuple[int, int]  # the first and the last frame turned away from it
    back: int  # the first frame back at the pose of `look`
    stop: int  # one beyond the last frame back, without a break

    @property
    def horizon(self) -> int:
        """Frames out of sight."""
        return self.away[1] - self.away[0] + 1


def visits(poses: Poses, place: float = PLACE, heading: float = HEADING, hold: int = HOLD) -> list[Visit]:
    """All visits of an episode, in order, from its poses [T, 3]: x, y, angle in degrees.

    A look ends where `hold` frames or more at one pose (within `place` and `heading` of the last of them) are left. Its
    visit ends at the first `hold` frames at that pose again after a frame turned away by APART or more. The view that
    was come back to may be the look of the next visit.
    """
    found: list[Visit] = []
    frame = hold - 1
    while frame + 1 < len(poses):
        recent = _same(poses[frame - hold + 1 : frame + 2], poses[frame], place, heading)
        visit = _visit(poses, frame, place, heading, hold) if recent[:-1].all() and not recent[-1] else None
        if visit is not None:
            found.append(visit)
            frame = max(frame, visit.back + hold - 2)
        frame += 1
    return found


def _visit(poses: Poses, look: int, place: float, heading: float, hold: int) -> Visit | None:
    same, turned = _same(poses, poses[look], place, heading), _turned(poses[:, 2], poses[look, 2]) >= APART
    away = look + 1 + np.flatnonzero(turned[look + 1 :])
    if not len(away):
        return None
    run = np.convolve(same, np.ones(hold, int), "valid") == hold  # [T - hold + 1], runs that begin at a frame
    back = away[0] + np.flatnonzero(run[away[0] :])
    if not len(back):
        return None
    first = int(back[0])
    gone = np.flatnonzero(~same[first:])
    stop = first + int(gone[0]) if len(gone) else len(poses)
    return Visit(look, (int(away[0]), int(away[away < first][-1])), first, stop)


def _same(poses: Poses, pose: Poses, place: float, heading: float) -> NDArray[np.bool_]:
    distance = np.hypot(poses[:, 0] - pose[0], poses[:, 1] - pose[1])
    return (distance <= place) & (_turned(poses[:, 2], pose[2]) <= heading)


def _turned(angles: Poses, angle: np.floating | float) -> Poses:
    return np.abs((angles - angle + 180) % 360 - 180)
