"""A contact sheet of swaps: the reference, the target, the truth and every method, at some moments of a video."""

from collections.abc import Sequence

import numpy as np

from worldmodel.evaluate.compare.sheets import sheet
from worldmodel.evaluate.compare.show import colour
from worldmodel.evaluate.lettering import INK, SOFT, picture
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
    return picture(video.case.name, sheet(rows, heads))
