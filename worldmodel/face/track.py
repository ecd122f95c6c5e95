"""Faces over time: detected every few pictures, followed in between, each with an identity that stays.

The state is a value: `step` takes one and gives the next. A face that is lost is held where it was, then fades out;
one that is found again, at its old place or by its embedding, is the same track. Nothing looks ahead.
"""

from dataclasses import dataclass, field, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodel.face.alignment import Pose, turned_away
from worldmodel.face.faces import MISFIT, Face, Networks
from worldmodel.face.one_euro import OneEuro, Smoothed

Picture = NDArray[np.uint8]
CUT = 30.0  # mean grey difference of thumbnails beyond which a picture begins another scene


@dataclass(frozen=True, slots=True)
class Tracking:
    """Settings. every: pictures between detections; hold, fade, appear, forget: seconds; faces: how many are tracked at
    once; smallest: scale in pixels below which a face is left alone; profile: turned_away beyond which it is."""

    every: int = 8
    hold: float = 0.25
    fade: float = 0.25
    appear: float = 0.12
    forget: float = 30.0
    faces: int = 1
    smallest: float = 16.0
    profile: float = 0.6
    smoothing: OneEuro = field(default_factory=OneEuro)


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One person. name: counts up over a stream; slot: its row, below `Tracking.faces`. weight: 0..1, how much of a
    swap is shown. seen: seconds of the last picture in which it was found. misses: detections that did not find it.
    """

    name: int
    slot: int
    face: Face  # as last measured
    smoothed: Smoothed
    embedding: NDArray[np.float32]  # running mean
    seen: float
    weight: float = 0.0
    misses: int = 0
    why: str = ""  # it is not swapped: "lost", "tiny", "profile"

    @property
    def pose(self) -> Pose:
        return Pose.of_vector(self.smoothed.value)


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """The state. visible: faces with a row; gone: those to be recognised when they come back."""

    time: float
    visible: tuple[Track, ...] = ()
    gone: tuple[Track, ...] = ()
    names: int = 0
    since: int = 0  # pictures since the last detection
    thumbnail: NDArray[np.uint8] | None = None


class Tracker:
    """Networks and settings; holds no state of a stream."""

    def __init__(self, networks: Networks, settings: Tracking) -> None:
        self.networks, self.settings = networks, settings

    def step(self, tracks: Tracks | None, picture: Picture, time: float) -> Tracks:
        """The tracks in a picture that is shown at `time` seconds; None before the first one."""
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        thumbnail = np.asarray(cv2.resize(grey, (32, 18), interpolation=cv2.INTER_AREA), np.uint8)
        cut = tracks is None or tracks.thumbnail is None or _differ(tracks.thumbnail, thumbnail)
        tracks = Tracks(time) if tracks is None else tracks
        if cut:  # of another scene nothing is known but who was there
            tracks = replace(tracks, visible=(), gone=tracks.gone + tracks.visible)
        found = [] if cut else self._follow(tracks, picture, time)
        searching = len(found) < len(tracks.visible) or not tracks.visible
        due = cut or tracks.since + 1 >= (max(1, self.settings.every // 3) if searching else self.settings.every)
        uncertain = any(track.misses for track in tracks.visible)
        if due or uncertain:
            visible, gone, names = self._detect(tracks, found, picture, time, 1.0 if cut else 0.0)
        else:
            known = {track.name: track for track in found}
            visible, gone, names = tuple(known.get(t.name, t) for t in tracks.visible), tracks.gone, tracks.names
        stay, left = [], list(gone)
        for track in visible:
            aged = self._weigh(track, time, time - tracks.time)
            lost = aged.weight <= 0 and time - aged.seen > self.settings.hold + self.settings.fade
            (left if lost else stay).append(aged)
        remembered = tuple(t for t in left if time - t.seen <= self.settings.forget)
        return Tracks(time, tuple(stay), remembered, names, 0 if due or uncertain else tracks.since + 1, thumbnail)

    def _follow(self, tracks: Tracks, picture: Picture, time: float) -> list[Track]:
        """The visible tracks whose landmarks are near where they were."""
        faces = self.networks.follow(picture, [track.pose for track in tracks.visible])
        pairs = zip(tracks.visible, faces, strict=True)
        return [self._measured(t, face, time) for t, face in pairs if t.why != "lost" and _continues(t.face, face)]

    def _measured(self, track: Track, face: Face, time: float) -> Track:
        pose = face.pose.near(track.smoothed.value[1])
        unit = np.array((1.0, 1.0, pose.scale, pose.scale))
        if _apart(track.pose, pose) > 0.5:  # a jump, not a movement
            smoothed = self.settings.smoothing.begin(pose.vector())
        else:
            smoothed = self.settings.smoothing.step(track.smoothed, pose.vector(), time - track.seen, unit)
        return replace(track, face=replace(face, pose=pose), smoothed=smoothed, seen=time, why="")

    def _detect(
        self, tracks: Tracks, found: list[Track], picture: Picture, time: float, weight: float
    ) -> tuple[tuple[Track, ...], tuple[Track, ...], int]:
        """Detected faces go to the visible tracks near them, then to remembered ones by identity, then to new ones.

        weight: that of a face which comes in: 1 in a new scene, else it fades in.
        """
        faces = self.networks.detect(picture)
        followed = {track.name: track for track in found}
        visible, gone, names = list(tracks.visible), list(tracks.gone), tracks.names
        pairs = self._assign(visible, faces, picture)
        for i, track in enumerate(visible):
            now = followed.get(track.name, track)
            if track.name not in pairs:
                # Landmarks without a face beneath would go on for ever: two detections without one are believed.
                visible[i] = replace(now if track.misses == 0 else track, misses=track.misses + 1)
                continue
            face = faces[pairs[track.name]]
            if track.name in followed and _apart(now.face.pose, face.pose) < 0.2:
                visible[i] = replace(now, misses=0)
            else:
                visible[i] = replace(self._measured(track, face, time), misses=0)
        free = sorted(set(range(self.settings.faces)) - {track.slot for track in visible})
        new = [face for i, face in enumerate(faces) if i not in pairs.values()]
        new = [face for face in new if all(_apart(t.pose, face.pose) > 0.3 for t in visible)]
        for face in sorted(new, key=lambda face: -face.pose.scale):
            if not free:
                break
            embedding = self.networks.identify(picture, face)
            again = min(gone, key=lambda t: _distance(t.embedding, embedding), default=None)
            if again is not None and _distance(again.embedding, embedding) > self.networks.identity.same:
                again = None
            smoothed = self.settings.smoothing.begin(face.pose.vector())
            if again is not None:
                gone.remove(again)
                slot = again.slot if again.slot in free else free[0]
                again = replace(again, slot=slot, face=face, smoothed=smoothed)
                visible.append(replace(again, seen=time, misses=0, why="", weight=weight))
            else:
                slot = free[0]
                visible.append(Track(names, slot, face, smoothed, embedding, time, weight))
                names += 1
            free.remove(slot)
        return tuple(visible), tuple(gone), names

    def _assign(self, visible: list[Track], faces: list[Face], picture: Picture) -> dict[int, int]:
        """Track name -> index of a face: the nearest within reach; where faces are close together, by identity."""
        reach = np.array([[_apart(t.pose, face.pose) for face in faces] for t in visible]).reshape(
            len(visible), len(faces)
        )
        near = reach < 0.8
        cost = reach.copy()
        if (near.sum(0) > 1).any() or (near.sum(1) > 1).any():
            who = np.stack([self.networks.identify(picture, face) for face in faces])
            for i, track in enumerate(visible):
                # Half as much as the place: an exchange of two tracks needs a clear difference (hysteresis).
                cost[i] = 0.5 * reach[i] + np.linalg.norm(who - track.embedding, axis=1)
        pairs: dict[int, int] = {}
        for flat in np.argsort(np.where(near, cost, np.inf), axis=None):
            i, j = divmod(int(flat), len(faces))
            if near[i, j] and visible[i].name not in pairs and j not in pairs.values():
                pairs[visible[i].name] = j
        return pairs

    def _weigh(self, track: Track, time: float, seconds: float) -> Track:
        """Fade a swap in where the face is seen, and out where it is lost or cannot be swapped."""
        s = self.settings
        why = ""
        if track.misses >= 2 or time - track.seen > s.hold:
            why = "lost"
        elif track.pose.scale < s.smallest:
            why = "tiny"
        elif turned_away(track.face.landmarks) > s.profile:
            why = "profile"
        if why and (why != "lost" or time - track.seen > s.hold):
            return replace(track, weight=max(0.0, track.weight - seconds / s.fade), why=why)
        return replace(track, weight=min(1.0, track.weight + max(seconds, 1e-3) / s.appear), why=why)


def _apart(a: Pose, b: Pose) -> float:
    """Distance of two poses in sizes of the face: of their centres, and of their sizes."""
    moved = np.hypot(a.x - b.x, a.y - b.y) / max(a.scale, b.scale)
    return float(max(moved, abs(np.log(a.scale / b.scale))))


def _continues(before: Face, now: Face) -> bool:
    """Whether landmarks can be the same face one picture later."""
    turned = abs(now.pose.near(before.pose.angle).angle - before.pose.angle)
    return now.misfit <= MISFIT and _apart(before.pose, now.pose) < 0.3 and turned < 0.6


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(a - b))


def _differ(before: NDArray[np.uint8], now: NDArray[np.uint8]) -> bool:
    return float(np.abs(before.astype(np.int16) - now).mean()) > CUT
