"""What moves: optical flow between frames, and the true motion of a body from its pose.

Letters: B clips, T frames, H W pixels, G cells of a side of the flow grid, S state dimensions.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pictures are brought to this many pixels before flow is computed
GRID = 16  # cells of a side: flow is averaged over cells of SIDE / GRID pixels
POSE = ("x", "y", "angle")
MOTIONS = ("forward_step", "left_step", "turned")


def flow_fields(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Optical flow from every frame to the next: videos [B, T, H, W, 3] -> [B, T - 1, 2, G, G].

    Dense inverse search (Kroeger et al., 1603.03590; OpenCV's with the medium preset, to full resolution) on grey
    pictures of 64 x 64, averaged over 16 x 16 cells. Channel 0 is to the right, 1 down, in pixels of the small picture.
    """
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    search.setFinestScale(0)
    batch, length = pixels.shape[:2]
    fields = np.empty((batch, length - 1, 2, GRID, GRID), np.float32)
    for row in range(batch):
        grey = [_grey(frame) for frame in pixels[row]]
        for i in range(length - 1):
            flow = search.calc(grey[i], grey[i + 1], None)  # pyright: ignore[reportCallIssue, reportArgumentType]
            cells = flow.reshape(GRID, SIDE // GRID, GRID, SIDE // GRID, 2)
            fields[row, i] = cells.mean((1, 3)).transpose(2, 0, 1)
    return fields


def _grey(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    if grey.shape != (SIDE, SIDE):
        grey = cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return grey.astype(np.uint8, copy=False)


def has_pose(names: Sequence[str]) -> bool:
    """Whether a state's names hold a planar pose: x, y and angle."""
    return set(POSE) <= set(names)


def body_motion(state: NDArray[np.floating], names: Sequence[str]) -> NDArray[np.float64]:
    """What a body did from each frame to the next, seen from itself: states [..., T, S] -> [..., T - 1, 3].

    forward_step and left_step in units of x and y, along the heading at the earlier frame; turned in degrees within
    [-180, 180), positive to the left (counter-clockwise).
    """
    x, y, angle = (state[..., list(names).index(name)].astype(np.float64) for name in POSE)
    dx, dy, heading = np.diff(x), np.diff(y), np.deg2rad(angle[..., :-1])
    forward = dx * np.cos(heading) + dy * np.sin(heading)
    left = dy * np.cos(heading) - dx * np.sin(heading)
    turned = (np.diff(angle) + 180) % 360 - 180
    return np.stack((forward, left, turned), -1)
