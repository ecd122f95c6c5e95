"""Whether a swapped face moves as its input does: the warping error (Lai et al., 1808.00449).

Letters: T frames, S side of a region.
"""

from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """From each frame to the next: there [T - 1, S, S, 2] in pixels (x, y), seen [T - 1, S, S] where it can be trusted:
    what is there is in the next frame too."""

    there: NDArray[np.float32]
    seen: NDArray[np.bool_]


def flows_of(video: Pixels) -> Flows:
    """Optical flow of a video [T, S, S, 3] by dense inverse search (Kroeger et al., 1603.03590), to full resolution.

    Trusted where forward and backward flow agree: |f + b|^2 < 0.01 (|f|^2 + |b|^2) + 0.5 (Sundaram et al., 2010).
    """
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    search.setFinestScale(0)
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in video]
    there, seen = [], []
    for first, second in pairwise(grey):
        forward, backward = (
            np.asarray(search.calc(a, b, None), np.float32)  # pyright: ignore[reportCallIssue, reportArgumentType]
            for a, b in ((first, second), (second, first))
        )
        back, inside = _at(backward, forward)
        apart, size = ((forward + back) ** 2).sum(-1), (forward**2).sum(-1) + (back**2).sum(-1)
        there.append(forward)
        seen.append(inside & (apart < 0.01 * size + 0.5))
    shape = (0, *video.shape[1:3])
    return Flows(
        np.stack(there) if there else np.zeros((*shape, 2), np.float32),
        np.stack(seen) if seen else np.zeros(shape, np.bool_),
    )


def warping_errors(video: Pixels, flows: Flows, masks: NDArray[np.float32]) -> NDArray[np.float64]:
    """Root mean square difference [T - 1], in levels, of each frame and the next one brought back along the flow.

    Pixels count whose flow is trusted and that the mask [T, S, S] shows by half or more; NaN where none does.
    """
    found = []
    for k in range(len(video) - 1):
        brought, inside = _at(video[k + 1].astype(np.float32), flows.there[k])
        where = inside & flows.seen[k] & (masks[k] >= 0.5)
        apart = (brought - video[k])[where].astype(np.float64)
        found.append(np.sqrt((apart**2).mean()) if where.any() else np.nan)
    return np.array(found, np.float64)


def _at(picture: NDArray[np.float32], flow: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A picture [S, S, C] at the places to which a flow [S, S, 2] leads, bilinearly, and which of them are in it."""
    height, width = flow.shape[:2]
    x = np.arange(width, dtype=np.float32)[None, :] + flow[..., 0]
    y = np.arange(height, dtype=np.float32)[:, None] + flow[..., 1]
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    found = cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(found, np.float32), inside
