"""A visible label: that a face in the picture was swapped."""

import cv2
import numpy as np
from numpy.typing import NDArray

TEXT = "FACE SWAPPED BY AI"


def draw_label(picture: NDArray[np.uint8], text: str = TEXT) -> None:
    """Write the label into the lower left corner of a picture [H, W, 3], in place; it takes a 22nd of the height."""
    height, width = picture.shape[:2]
    font, thick = cv2.FONT_HERSHEY_SIMPLEX, max(1, round(height / 400))
    scale = cv2.getFontScaleFromHeight(font, max(7, height // 40), thick)
    (wide, high), below = cv2.getTextSize(text, font, scale, thick)
    if wide + 4 * thick > width:
        scale *= (width - 4 * thick) / wide
        (wide, high), below = cv2.getTextSize(text, font, scale, thick)
    pad = max(2, high // 2)
    top, right = max(0, height - high - below - 2 * pad), min(width, wide + 2 * pad)
    box = picture[top:, :right]
    box[:] = box // 3
    cv2.putText(picture, text, (pad, height - below - pad), font, scale, (255, 255, 255), thick, cv2.LINE_AA)
