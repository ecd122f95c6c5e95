"""How a head is turned, and what its face does, from 68 landmarks in the plane.

Letters: T frames, n points.
"""

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.alignment import MEAN_FACE, RIGID, apply, fit_points

Points = NDArray[np.float64]
STILL = (*range(27, 36), 36, 39, 42, 45)  # landmarks that no expression moves: nose, corners of the eyes
# Where they are on a frontal head, in half heights of it (x right, y down, z to the viewer): those of the procedural
# head whose numbers are all in the middle of their ranges.
HEAD = np.array((
    (0.0, -0.042, 0.901), (0.0, 0.081, 0.952), (0.0, 0.222, 1.003), (0.0, 0.373, 1.021), (-0.087, 0.387, 0.842),
    (-0.044, 0.415, 0.839), (0.0, 0.425, 0.825), (0.044, 0.415, 0.839), (0.087, 0.387, 0.842), (-0.42, -0.02, 0.695),
    (-0.179, -0.02, 0.814), (0.179, -0.02, 0.814), (0.42, -0.02, 0.695),
))  # fmt: skip


def head_rotation(landmarks: Points) -> Points:
    """From the frame of the head to that of the picture: landmarks [T, 68, 2] -> rotations [T, 3, 3].

    Scaled orthographic projection: the affine map of the still points that fits best by least squares, then the nearest
    two rows of a scaled rotation (POS of DeMenthon & Davis, 1995, with the polar factor instead of normalised rows).
    """
    model = HEAD - HEAD.mean(0)
    seen = landmarks[:, STILL]
    seen = seen - seen.mean(1, keepdims=True)
    affine = np.swapaxes(seen, 1, 2) @ np.linalg.pinv(model).T  # [T, 2, 3]
    u, _, v = np.linalg.svd(affine, full_matrices=False)
    rows = u @ v
    return np.concatenate((rows, np.cross(rows[:, 0], rows[:, 1])[:, None]), 1)


def pose_errors(landmarks: Points, others: Points) -> Points:
    """Angles [T] in degrees by which a head is turned otherwise than another one."""
    between = head_rotation(landmarks) @ np.swapaxes(head_rotation(others), 1, 2)
    cosine = (np.trace(between, axis1=1, axis2=2) - 1) / 2
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def in_face(landmarks: Points) -> Points:
    """Brows, nose, eyes and mouth in the unit square of the mean face: [T, 68, 2] -> [T, 51, 2].

    Place, size and roll of the head are gone (a similarity fitted to the rigid points), its turning is not.
    """
    found = [apply(fit_points(face[RIGID], MEAN_FACE[RIGID - 17]), face[17:]) for face in landmarks]
    return np.stack(found)


def expression_errors(landmarks: Points, others: Points) -> Points:
    """How far the points of two faces are apart, rms [T] in per cent of the face, after each face's own mean over the
    frames is taken off: what it does, not whose it is (our own measure)."""
    first, second = (face - face.mean(0) for face in (in_face(landmarks), in_face(others)))
    return 100 * np.sqrt(((first - second) ** 2).sum(-1).mean(-1))


def jitter(landmarks: Points) -> float:
    """Root mean square of second differences of the 51 inner points over time, in the unit of the landmarks [T, 68, 2].

    A steady movement has none. T must be 3 or more.
    """
    inner = landmarks[:, 17:]
    second = inner[:-2] - 2 * inner[1:-1] + inner[2:]
    return float(np.sqrt((second**2).sum(-1).mean()))
