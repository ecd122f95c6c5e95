"""An independent recogniser for evaluation: never the one that a loss was trained with.

A MobileFaceNet of 512 dimensions (fr_feature.onnx of `packages.RECOGNISER`), through onnxruntime.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.face.alignment import fit_points
from worldmodel.face.packages import RECOGNISER, read
from worldmodel.face.region import warp

SIZE = 112
SHA256 = "87aacdfe57510db2af90c0251df680e8eec88f122ee94712121d09bcaaaf3581"
# Eyes, nose tip and corners of the mouth in a 112 x 112 crop (ArcFace, 1801.07698, its published alignment).
FIVE = np.array(((38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)))


class Recogniser:
    """Identity as unit vectors; the cosine of one person's is about 0.75, of two people's about 0."""

    def __init__(self) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise UserError("the recogniser needs onnxruntime: pip install 'worldmodel[face]'") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        content = read(RECOGNISER, "package/model/fr_feature.onnx", SHA256)
        self.session: Any = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name

    def embed(self, picture: NDArray[np.uint8], landmarks: NDArray[np.float64]) -> NDArray[np.float32]:
        """A picture and the 68 landmarks of a face in it -> [512], of length 1."""
        crop = warp(picture, fit_points(FIVE, five(landmarks)), SIZE)
        x = (crop.astype(np.float32).transpose(2, 0, 1)[None] - 127) / 128
        found = self.session.run(None, {self.name: x})[0].reshape(-1)
        return found / np.linalg.norm(found)


def five(landmarks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centres of the eyes, tip of the nose and corners of the mouth [5, 2] of 68 landmarks."""
    return np.stack((landmarks[36:42].mean(0), landmarks[42:48].mean(0), landmarks[30], landmarks[48], landmarks[54]))
