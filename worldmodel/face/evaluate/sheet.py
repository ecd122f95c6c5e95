"""A contact sheet of swaps: the reference, the target, the truth and every method, at some moments of a video."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.compare.sheets import GAP, LABEL, cells
from worldmodel.evaluate.compare.show import colour
from worldmodel.evaluate.lettering import INK, SOFT, Canvas, picture
from worldmodel.evaluate.report import Picture
from worldmodel.face.evaluate.meter import Measured
from worldmodel.face.evaluate.methods import Method


def sheet_of(video: Measured, methods: Sequence[Method], frames: Sequence[int]) -> Picture:
    """Rows: reference, target, truth, then every method that is no end of the scale (its first seed)."""
    reference = video.case.reference
    turns = np.arange(len(frames)) % len(reference)
    rows = [("reference", SOFT, reference[turns]), ("target", INK, video.pictures["input"])]
    if "truth" in video.pictures:
        rows.append(("truth", INK, video.pictures["truth"]))
    ranked = [method for method in methods if not method.end]
    rows += [(method.name, colour(number), video.pictures[method.name]) for number, method in enumerate(ranked)]
    heads = [f"{60 * video.minutes[frame]:.2f} s" for frame in frames]
    return picture(video.case.name, _drawn(rows, heads))


def _drawn(rows: list[tuple[str, str, NDArray[np.uint8]]], heads: list[str]) -> Canvas:
    shown = [(name, ink, cells(frames)) for name, ink, frames in rows]
    height, width = shown[0][2].shape[1:3]
    top = 26
    canvas = Canvas(top + len(shown) * (height + GAP) + GAP, LABEL + len(heads) * (width + GAP) + GAP)
    for column, head in enumerate(heads):
        canvas.write(head, top // 2, LABEL + GAP + column * (width + GAP) + width // 2, colour=SOFT, align="center")
    for row, (name, ink, frames) in enumerate(shown):
        y = top + row * (height + GAP)
        size = 13 if len(name) <= 12 else 156 / len(name)
        canvas.write(name, y + height // 2, LABEL - 8, size=size, colour=ink, align="right", bold=True)
        for column, frame in enumerate(frames):
            canvas.paste(frame, y, LABEL + GAP + column * (width + GAP))
    return canvas
