"""Landmarks of faces whose place is known: aligned regions."""

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.alignment import apply
from worldmodel.face.evaluate.regions import whole
from worldmodel.face.faces import FOLLOWED
from worldmodel.face.protocols import LandmarkModel
from worldmodel.face.region import warp


class RegionReader:
    """A network that finds 68 landmarks, on regions [N, S, S, 3]: -> [N, 68, 2] in pixels of the region."""

    def __init__(self, model: LandmarkModel) -> None:
        self.model = model

    def __call__(self, regions: NDArray[np.uint8]) -> NDArray[np.float64]:
        matrix = whole(regions.shape[1]).matrix(self.model.size, FOLLOWED)
        crops = np.stack([warp(region, matrix, self.model.size) for region in regions])
        return apply(matrix, self.model.points(crops))
