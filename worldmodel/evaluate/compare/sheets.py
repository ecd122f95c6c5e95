"""Pictures of a comparison: contact sheets and films with all arms under the same actions."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.compare.arms import Measured
from worldmodel.evaluate.compare.bench import Bench
from worldmodel.evaluate.compare.measure import FILMS, SHEET
from worldmodel.evaluate.compare.show import colour
from worldmodel.evaluate.drift_page import film_part
from worldmodel.evaluate.lettering import INK, SOFT, Canvas, picture
from worldmodel.evaluate.recordings import Pixels
from worldmodel.evaluate.report import Film, Picture
from worldmodel.pixels import enlarge

CELL, GAP, LABEL = 128, 4, 112  # pixels: width of a frame, space around it, room for a row's name
PANELS = 4  # side by side in a film


def cells(frames: Pixels) -> Pixels:
    """Frames [..., H, W, 3] brought to a width of about CELL: whole-number enlargement, or averaging."""
    height, width = frames.shape[-3:-1]
    if width <= CELL:
        return enlarge(frames, CELL // width)
    size = (CELL, max(1, round(height * CELL / width)))
    small = [cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames.reshape(-1, height, width, 3)]
    return np.stack(small).astype(np.uint8).reshape(*frames.shape[:-3], size[1], size[0], 3)


def sheet(rows: list[tuple[str, str, Pixels]], heads: list[str]) -> Canvas:
    """A row for each name, ink and frames [N, H, W, 3], under N heads."""
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


def sheets(bench: Bench, arms: Sequence[Measured]) -> tuple[Picture, ...]:
    """One contact sheet per start: a row of recorded frames, then one per arm, at growing distances."""
    times = bench.sheet_times
    starts = min(SHEET, bench.course.count)
    recorded = bench.recorded(starts, times)
    pieces = bench.course.pieces
    found = []
    for start in range(starts):
        rows = [("recorded", INK, recorded[start])]
        rows += [(arm.name, colour(number), arm.found[0].sheet[start]) for number, arm in enumerate(arms)]
        length = bench.course.recordings.lengths[int(pieces.episode[start])]
        last = length - int(pieces.start[start]) - bench.course.begin
        beyond = times >= last
        episode = bench.course.recordings.chosen[int(pieces.episode[start])]
        title = f"Start {start + 1}: episode {episode} of the list, context from frame {int(pieces.start[start]) + 1}"
        found.append(picture(title, _sheet(rows, times, beyond)))
    return tuple(found)


def _sheet(rows: list[tuple[str, str, Pixels]], times: NDArray[np.int64], beyond: NDArray[np.bool_]) -> Canvas:
    shown = [(name, ink, cells(frames)) for name, ink, frames in rows]
    height, width = shown[0][2].shape[1:3]
    top, foot = 26, 20 if beyond.any() else 0
    canvas = Canvas(top + len(rows) * (height + GAP) + GAP + foot, LABEL + len(times) * (width + GAP) + GAP)
    for column, time in enumerate(times):
        x = LABEL + GAP + column * (width + GAP) + width // 2
        text = f"frame {time + 1:,}" + ("*" if beyond[column] else "")
        canvas.write(text, top // 2, x, colour=SOFT, align="center")
    for row, (name, ink, frames) in enumerate(shown):
        y = top + row * (height + GAP) + (GAP if row else 0)  # a wider gap below what was recorded
        size = 13 if len(name) <= 12 else 156 / len(name)
        canvas.write(name, y + height // 2, LABEL - 8, size=size, colour=ink, align="right", bold=True)
        for column, frame in enumerate(frames):
            canvas.paste(frame, y, LABEL + GAP + column * (width + GAP))
    if beyond.any():
        text = "* the recording has ended; shown is the one whose actions go on"
        canvas.write(text, canvas.pixels.shape[0] - foot // 2, LABEL + GAP, size=10.5, colour=SOFT)
    return canvas


def films(bench: Bench, arms: Sequence[Measured], fps: float) -> tuple[Film, ...]:
    """Recorded and all arms at once, for a few starts."""
    times = bench.film_times
    recorded = bench.recorded(min(FILMS, bench.course.count), times)
    part = film_part(times, bench.settings.frames)
    found = []
    for start in range(len(recorded)):
        panels = [("recorded", INK, recorded[start])]
        panels += [(arm.name, colour(number), arm.found[0].film[start]) for number, arm in enumerate(arms)]
        found.append(Film(f"Start {start + 1}{part}", _panels(panels), fps, 1))
    return tuple(found)


def _panels(panels: list[tuple[str, str, Pixels]]) -> Pixels:
    """Videos [T, H, W, 3] with their names above them, PANELS in a row: [T, height, width, 3] of even sides."""
    shown = [(name, ink, enlarge(video, _zoom(video))) for name, ink, video in panels]
    length, height, width = shown[0][2].shape[:3]
    columns, head = min(PANELS, len(shown)), 24
    lines = -(-len(shown) // columns)
    canvas = Canvas(lines * (head + height + 2) // 2 * 2, (columns * (width + 6) - 6) // 2 * 2)
    places = []
    for number, (name, ink, _) in enumerate(shown):
        line, column = divmod(number, columns)
        y, x = line * (head + height + 2), column * (width + 6)
        canvas.write(name, y + head // 2, x + 2, size=13, colour=ink, bold=True)
        places.append((y + head, x))
    film = np.repeat(canvas.finish()[None], length, 0)
    for (y, x), (_, _, video) in zip(places, shown, strict=True):
        film[:, y : y + height, x : x + width] = video
    return film


def _zoom(video: Pixels) -> int:
    return max(1, 240 // video.shape[2])
