"""What the pipeline asks of networks: fulfil these to bring your own detector, landmarks or identity (ONNX or torch).

Pictures are uint8 [H, W, 3] RGB, places (x, y) in pixels.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Detector(Protocol):
    def detect(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[N, 5]: left, top, right, bottom and score in 0..1 of every face, the best first; [0, 5] without any."""
        ...


class LandmarkModel(Protocol):
    size: int  # side of its square crops

    def points(self, crops: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Upright crops [N, size, size, 3] around faces -> the 68 iBUG landmarks [N, 68, 2] in pixels of the crop."""
        ...


class IdentityModel(Protocol):
    size: int  # side of its aligned chips
    padding: float  # of the chips around the mean face, see alignment
    same: float  # L2 distance below which two embeddings are one person's

    def embed(self, chips: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Aligned chips [N, size, size, 3] -> [N, D]."""
        ...
