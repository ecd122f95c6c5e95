"""Where a face is, as a similarity of the plane: the mean face, moved, turned and scaled onto its landmarks.

The mean face is the one by which dlib cuts its chips (King; 51 points without the jaw, in the unit square), so that
aligned crops of padding 0.25 are what its recogniser was trained on. A crop of padding p shows the unit square with p
of its side more on each side.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]  # [2, 3]: (x, y, 1) -> (x, y)

_X = """0.000213256 0.0752622 0.18113 0.29077 0.393397 0.586856 0.689483 0.799124 0.904991 0.98004 0.490127 0.490127
0.490127 0.490127 0.36688 0.426036 0.490127 0.554217 0.613373 0.121737 0.187122 0.265825 0.334606 0.260918 0.182743
0.645647 0.714428 0.793132 0.858516 0.79751 0.719335 0.254149 0.340985 0.428858 0.490127 0.551395 0.639268 0.726104
0.642159 0.556721 0.490127 0.423532 0.338094 0.290379 0.428096 0.490127 0.552157 0.689874 0.553364 0.490127 0.42689"""
_Y = """0.106454 0.038915 0.0187482 0.0344891 0.0773906 0.0773906 0.0344891 0.0187482 0.038915 0.106454 0.203352
0.307009 0.409805 0.515625 0.587326 0.609345 0.628106 0.609345 0.587326 0.216423 0.178758 0.179852 0.231733 0.245099
0.244077 0.231733 0.179852 0.178758 0.216423 0.244077 0.245099 0.780233 0.745405 0.727388 0.742578 0.727388 0.745405
0.780233 0.864805 0.902192 0.909281 0.902192 0.864805 0.784792 0.778746 0.785343 0.778746 0.784792 0.824182 0.831803
0.824182"""
MEAN_FACE = np.stack([np.array(line.split(), np.float64) for line in (_X, _Y)], 1)  # [51, 2], landmarks 17 to 67
RIGID = np.r_[27:55, 60:65]  # landmarks that the fit uses: not the jaw, the brows and the lower lip, which move


@dataclass(frozen=True, slots=True)
class Pose:
    """A similarity: mean face (x, y) -> centre + scale * R(angle) ((x, y) - 0.5), in pixels of the frame.

    scale: side of the unit square in pixels, above 0; angle: radians, clockwise on the screen; x, y: its centre.
    """

    scale: float
    angle: float
    x: float
    y: float

    def matrix(self, size: int, padding: float) -> Matrix:
        """From pixels of an aligned crop [size, size] of this padding to pixels of the frame."""
        side = self.scale * (1 + 2 * padding) / size
        cos, sin = side * np.cos(self.angle), side * np.sin(self.angle)
        turn = np.array(((cos, -sin), (sin, cos)), np.float64)
        offset = np.array((self.x, self.y), np.float64) - turn @ np.full(2, (size - 1) / 2)
        return np.column_stack((turn, offset)).astype(np.float64)

    def vector(self) -> NDArray[np.float64]:
        """(log scale, angle, x, y), the parameters that are filtered."""
        return np.array((np.log(self.scale), self.angle, self.x, self.y))

    @classmethod
    def of_vector(cls, vector: NDArray[np.float64]) -> "Pose":
        return cls(float(np.exp(vector[0])), float(vector[1]), float(vector[2]), float(vector[3]))

    @classmethod
    def of_box(cls, box: NDArray[np.float32]) -> "Pose":
        """A first guess from a detector's box (left, top, right, bottom): upright, as large as its longer side."""
        left, top, right, bottom = (float(b) for b in box[:4])
        return cls(max(right - left, bottom - top), 0.0, (left + right) / 2, (top + bottom) / 2)

    def near(self, angle: float) -> "Pose":
        """The same pose with an angle within half a turn of another."""
        return replace(self, angle=self.angle - 2 * np.pi * round((self.angle - angle) / (2 * np.pi)))


def invert(matrix: Matrix) -> Matrix:
    turn = np.linalg.inv(matrix[:, :2])
    return np.concatenate((turn, -turn @ matrix[:, 2:]), 1).astype(np.float64)


def apply(matrix: Matrix, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points [..., 2] through a matrix."""
    return points @ matrix[:, :2].T + matrix[:, 2]


def fit_points(source: NDArray[np.float64], target: NDArray[np.float64]) -> Matrix:
    """The similarity (without reflection) that brings points [N, 2] nearest to others, by least squares.

    In complex numbers z -> a z + b with a = <s, t> / <s, s> of the centred points: Umeyama's solution in the plane.
    """
    s, t = (points[:, 0] + 1j * points[:, 1] for points in (source, target))
    a = np.vdot(s - s.mean(), t - t.mean()) / np.vdot(s - s.mean(), s - s.mean())
    b = t.mean() - a * s.mean()
    return np.array(((a.real, -a.imag, b.real), (a.imag, a.real, b.imag)))


def fit(landmarks: NDArray[np.float64]) -> tuple[Pose, float]:
    """The pose of 68 landmarks [68, 2], and how far they are from a mean face: rms distance over scale."""
    source, target = MEAN_FACE[RIGID - 17], landmarks[RIGID]
    matrix = fit_points(source, target)
    scale = float(np.hypot(*matrix[:, 0]))
    if scale < 1e-6:
        return Pose(1e-6, 0.0, float(target[0, 0]), float(target[0, 1])), np.inf
    x, y = apply(matrix, np.full(2, 0.5))
    rest = np.sqrt(((apply(matrix, source) - target) ** 2).sum(1).mean()) / scale
    return Pose(scale, float(np.arctan2(matrix[1, 0], matrix[0, 0])), float(x), float(y)), float(rest)


def turned_away(landmarks: NDArray[np.float64]) -> float:
    """How far a head is turned to its side: 0 frontal, about 0.4 at 45 degrees, 1 where nose and jaw meet."""
    left, right = (float(np.linalg.norm(landmarks[30] - landmarks[i])) for i in (0, 16))
    return abs(left - right) / max(left + right, 1e-9)
