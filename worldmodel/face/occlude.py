"""What is in front of a face: a protocol, and a default that knows colours only."""

import functools
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodel.face.alignment import MEAN_FACE
from worldmodel.face.region import PADDING

LIMIT = 6.0  # standard deviations of chroma from the face's own skin
SPREAD = 3.0  # least standard deviation of chroma that skin is taken to have
FEATURES = (slice(0, 5), slice(5, 10), slice(19, 25), slice(25, 31), slice(31, 43), slice(14, 19))  # of MEAN_FACE


class Occlusion(Protocol):
    def visible(self, region: NDArray[np.uint8]) -> NDArray[np.float32]:
        """How much of each pixel of an aligned region [S, S, 3] is face, not something before it: [S, S] in 0..1."""
        ...


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing is ever in front of a face."""

    def visible(self, region: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ones(region.shape[:2], np.float32)


@dataclass(frozen=True, slots=True)
class SkinColour:
    """Pixels whose chroma is far from that of the cheeks and nose of the same picture are something else.

    Limits, which a model of one's own must lift: a hand has the colour of a face and is not seen; nor is what is grey
    like a grey picture. Eyes, brows, mouth and nostrils are taken to be face whatever their colour.
    """

    def visible(self, region: NDArray[np.uint8]) -> NDArray[np.float32]:
        size = region.shape[0]
        small = cv2.resize(region, (64, 64), interpolation=cv2.INTER_AREA)
        chroma = cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb)[..., 1:].astype(np.float32)
        skin, features = _places()
        mean = np.median(chroma[skin], 0)
        spread = np.maximum(1.4826 * np.median(np.abs(chroma[skin] - mean), 0), SPREAD)
        far = np.sqrt((((chroma - mean) / spread) ** 2).sum(-1)) > LIMIT
        strange = (far & ~features).astype(np.uint8)
        strange = cv2.morphologyEx(strange, cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))  # specks are noise
        strange = cv2.dilate(strange, np.ones((3, 3), np.uint8))
        soft = cv2.GaussianBlur(strange.astype(np.float32), (5, 5), 0)
        return 1 - cv2.resize(soft, (size, size), interpolation=cv2.INTER_LINEAR)


@functools.cache
def _places() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """In a region of 64 x 64: where skin is looked at (between eyes and mouth), and where features are [64, 64]."""
    at = (MEAN_FACE + PADDING) / (1 + 2 * PADDING) * 64
    features = np.zeros((64, 64), np.uint8)
    for part in FEATURES:
        cv2.fillConvexPoly(features, cv2.convexHull(at[part].round().astype(np.int32)), 1)
    features = cv2.dilate(features, np.ones((5, 5), np.uint8))
    skin = np.zeros((64, 64), np.uint8)
    middle = np.stack((at[19], at[28], at[37], at[31])).round().astype(np.int32)  # outer eyes to corners of the mouth
    cv2.fillConvexPoly(skin, cv2.convexHull(middle), 1)
    return (skin > 0) & (features == 0), features > 0
