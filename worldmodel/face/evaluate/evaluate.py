"""`evaluate swap`: trained swaps, baselines and the ends of the scale on the same videos."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worldmodel.calibration import calibrate
from worldmodel.evaluate.report import Report
from worldmodel.evaluate.timing import around
from worldmodel.face.evaluate.axes import Gallery
from worldmodel.face.evaluate.case import Case
from worldmodel.face.evaluate.judge import Judge
from worldmodel.face.evaluate.meter import Measured, Read, measure_case
from worldmodel.face.evaluate.methods import Method
from worldmodel.face.evaluate.report import report_of, text_table
from worldmodel.face.evaluate.result import result_of
from worldmodel.face.evaluate.sheet import sheet_of
from worldmodel.progress import progress_bar

SHEETS, MOMENTS = 4, 6  # videos that are shown, and frames of each


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The report, and its main table for a terminal."""

    report: Report
    table: str


def evaluate_swap(
    cases: Sequence[Case],
    methods: Sequence[Method],
    judge: Judge,
    *,
    read: Read | None,
    notes: tuple[str, ...] = (),
    device: str = "cpu",
) -> Evaluated:
    """Swap every video by every method, and report what is seen of them.

    cases: videos, either all with exact truth or none. methods: see `open_methods`. judge: a recogniser that taught
    none of them. read: what finds landmarks in regions; None leaves out the axes that need them. notes: how the videos
    were made.
    """
    before, videos = calibrate(), []
    with progress_bar("evaluate swap", sum(case.frames for case in cases), unit="frames") as advance:
        for number, case in enumerate(cases):
            watch = _moments(case.frames) if number < SHEETS else ()
            videos.append(measure_case(case, methods, judge, read, watch, advance))
    gallery = gallery_of(cases, judge, read)
    truth = any("truth_embedding" in video.common for video in videos)
    result = result_of(methods, videos, gallery, read is not None, truth)
    shown = [video for video in videos[:SHEETS] if len(video.minutes)]
    pictures = tuple(sheet_of(video, methods, _seen(video)) for video in shown)
    load = around(before, calibrate())
    return Evaluated(report_of(result, videos, gallery, load, notes, pictures, device), text_table(result))


def gallery_of(cases: Sequence[Case], judge: Judge, read: Read | None) -> Gallery:
    """Everybody's references; of several pictures, the direction of the mean."""
    who, vectors = list[str](), []
    for case in cases:
        if case.who in who:
            continue
        pictures = case.reference
        found = judge.embed(pictures, None if read is None else read(pictures)).astype(np.float64).mean(0)
        who.append(case.who)
        vectors.append(found / np.linalg.norm(found))
    return Gallery(np.stack(vectors), tuple(who))


def _seen(video: Measured) -> tuple[int, ...]:
    """Which of the moments had a swapped face."""
    return tuple(frame for frame in _moments(video.case.frames) if frame < len(video.minutes))


def _moments(frames: int) -> tuple[int, ...]:
    """Numbers of the frames that are shown of a video."""
    return tuple(np.unique(np.linspace(0, frames - 1, MOMENTS).round().astype(int)).tolist())
