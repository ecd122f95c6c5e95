"""Words in pictures: captions around frames, for contact sheets and films."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from worldmodel.evaluate.report import Picture

Pixels = NDArray[np.uint8]
DPI = 100
INK, SOFT = "#0f172a", "#64748b"


class Canvas:
    """A white picture [height, width, 3] to put frames and words on. Places are in pixels from the top left corner."""

    def __init__(self, height: int, width: int) -> None:
        self.pixels: Pixels = np.full((height, width, 3), 255, np.uint8)
        self._words: list[tuple[int, int, str, float, str, str, bool]] = []

    def paste(self, frame: Pixels, top: int, left: int) -> None:
        """A picture [h, w, 3]."""
        self.pixels[top : top + frame.shape[0], left : left + frame.shape[1]] = frame

    def write(
        self, text: str, y: int, x: int, size: float = 11, colour: str = INK, align: str = "left", bold: bool = False
    ) -> None:
        """A line of text, centred vertically on y; x is its left end, its centre or its right end."""
        self._words.append((y, x, text, size, colour, align, bold))

    def finish(self) -> Pixels:
        """The picture with all words drawn on it."""
        height, width = self.pixels.shape[:2]
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        canvas = FigureCanvasAgg(figure)
        for y, x, text, size, colour, align, bold in self._words:
            figure.text(
                x / width, 1 - y / height, text, fontsize=size * 72 / DPI, color=colour, ha=align,
                va="center_baseline", fontweight="bold" if bold else "normal", fontfamily="DejaVu Sans",
            )  # fmt: skip
        figure.patch.set_alpha(0)
        canvas.draw()
        drawn = np.asarray(canvas.buffer_rgba(), np.float32)[:height, :width]
        share = drawn[..., 3:] / 255
        return (self.pixels * (1 - share) + drawn[..., :3] * share).round().astype(np.uint8)


def picture(title: str, canvas: Canvas) -> Picture:
    """A canvas as a picture of a report, at its own size."""
    return Picture(title, canvas.finish(), 1)
