"""Faces of one picture: detected, with landmarks and pose; and the crops that the networks want."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.alignment import Pose, apply, fit
from worldmodel.face.protocols import Detector, IdentityModel, LandmarkModel
from worldmodel.face.region import warp

FOLLOWED = 0.22  # padding of the upright crop in which the landmarks of a known pose are looked for
MISFIT = 0.12  # landmarks farther from a mean face than this (rms over scale) are none: faces have 0.02 to 0.08


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """A face in a picture. landmarks: [68, 2] in pixels; misfit: how far they are from a mean face, rms over scale."""

    landmarks: NDArray[np.float64]
    pose: Pose
    misfit: float
    score: float = 1.0  # of the detector


@dataclass(frozen=True, slots=True)
class Networks:
    """What a picture is looked at with."""

    detector: Detector
    landmarks: LandmarkModel
    identity: IdentityModel

    def follow(self, picture: NDArray[np.uint8], poses: list[Pose]) -> list[Face]:
        """The landmarks near some known poses."""
        if not poses:
            return []
        size = self.landmarks.size
        matrices = [pose.matrix(size, FOLLOWED) for pose in poses]
        points = self.landmarks.points(np.stack([warp(picture, matrix, size) for matrix in matrices]))
        places = [apply(matrix, each) for matrix, each in zip(matrices, points, strict=True)]
        return [Face(place, *fit(place)) for place in places]

    def detect(self, picture: NDArray[np.uint8]) -> list[Face]:
        """All faces of a picture, the best first; boxes in which no face's landmarks are found are left out."""
        boxes = self.detector.detect(picture)
        size = self.landmarks.size
        guesses = [Pose.of_box(box) for box in boxes]
        if not guesses:
            return []
        matrices = [pose.matrix(size, 0.0) for pose in guesses]
        points = self.landmarks.points(np.stack([warp(picture, matrix, size) for matrix in matrices]))
        first = [fit(apply(matrix, each))[0] for matrix, each in zip(matrices, points, strict=True)]
        sane = [i for i, pose in enumerate(first) if _similar(pose, guesses[i])]
        faces = self.follow(picture, [first[i] for i in sane])  # upright and centred: once more, better
        found = [Face(f.landmarks, f.pose, f.misfit, float(boxes[i, 4])) for i, f in zip(sane, faces, strict=True)]
        return [face for face in found if face.misfit <= MISFIT]

    def identify(self, picture: NDArray[np.uint8], face: Face) -> NDArray[np.float32]:
        """The embedding [D] of a face."""
        model = self.identity
        chip = warp(picture, face.pose.matrix(model.size, model.padding), model.size)
        return model.embed(chip[None])[0]


def _similar(found: Pose, box: Pose) -> bool:
    """Whether a pose lies in the box that it was looked for in."""
    near = np.hypot(found.x - box.x, found.y - box.y) < 0.6 * box.scale
    return bool(near and 0.3 < found.scale / box.scale < 1.2)
