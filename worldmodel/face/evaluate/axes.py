"""The axes that swaps are compared on, and one number per video for each. Letters: T frames, D width of an embedding.

A number is NaN where a video does not tell: too few frames, a mask without a border, times of an end of the scale.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.evaluate.head_pose import expression_errors, jitter, pose_errors
from worldmodel.face.evaluate.meter import Measured, Series
from worldmodel.face.evaluate.slope import Slope, slope

Floats = NDArray[np.float64]
Better = Literal["higher", "lower", "near 1", "near 0"]
COLOURS = ("brightness", "blueness", "redness", "contrast")  # of `colour_shifts`
IDENTITY_DRIFT = "identity_drift_per_minute"
CHUNKS_BEFORE = 1  # of each video, whose times do not count


@dataclass(frozen=True, slots=True)
class Axis:
    """value: of one stream of one video. text: what it means, for the report."""

    name: str
    unit: str
    better: Better
    value: "Callable[[Reading], float]"
    text: str

    def badness(self, value: float) -> float:
        """By which methods are ranked, the least first."""
        match self.better:
            case "higher":
                return -value
            case "lower":
                return value
            case "near 1":
                return abs(value - 1)
            case "near 0":
                return abs(value)


@dataclass(frozen=True, slots=True, eq=False)
class Gallery:
    """Who could be meant: unit vectors [P, D] of the references of P people, and their names."""

    vectors: Floats
    who: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One stream of one video."""

    video: Measured
    series: Series
    gallery: Gallery

    @property
    def minutes(self) -> Floats:
        return self.video.minutes

    @property
    def reference(self) -> Floats:
        return self.gallery.vectors[self.gallery.who.index(self.video.case.who)]

    @property
    def cosines(self) -> Floats:
        """With the reference, [T]."""
        return self.series["embedding"].astype(np.float64) @ self.reference

    @property
    def chunk_seconds(self) -> Floats:
        times = self.series.seconds
        return np.array(times[CHUNKS_BEFORE:] if len(times) > CHUNKS_BEFORE else times)


def identity_spread(embedding: NDArray[np.floating]) -> float:
    """Variance of unit vectors [T, D] around their mean, 1 - |mean|^2: 0 for one face, 1 for all kinds."""
    return float(1 - (embedding.astype(np.float64).mean(0) ** 2).sum())


def retrieved(embedding: NDArray[np.floating], gallery: Gallery, who: str) -> float:
    """Share of frames [T, D] whose nearest reference of the gallery is that of `who`."""
    nearest = (embedding.astype(np.float64) @ gallery.vectors.T).argmax(1)
    return float((np.array(gallery.who)[nearest] == who).mean())


def _mean(name: str) -> Callable[[Reading], float]:
    return lambda at: _known(at.series[name])


def _known(values: NDArray[np.floating]) -> float:
    """The mean of what is finite; NaN for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(np.nanmean(values)) if len(values) else float("nan")


def drifts(at: Reading) -> dict[str, Slope]:
    """The slopes of one stream of one video, with their intervals, by the names of their axes."""
    colours = at.series["colour"].T
    found = {f"{name}_drift_per_minute": slope(each, at.minutes) for name, each in zip(COLOURS, colours, strict=True)}
    return {IDENTITY_DRIFT: slope(at.cosines, at.minutes)} | found


def _drift(name: str) -> Callable[[Reading], float]:
    return lambda at: drifts(at)[name].value


def _speed(at: Reading) -> float:
    if not at.series.seconds:
        return float("nan")
    return at.series.chunk * len(at.chunk_seconds) / float(at.chunk_seconds.sum())


def _jitter(at: Reading) -> float:
    if len(at.minutes) < 3:
        return float("nan")
    return jitter(at.series["landmarks"]) / max(jitter(at.video.common["input_landmarks"]), 1e-9)


def _latency(share: float) -> Callable[[Reading], float]:
    return lambda at: 1000 * float(np.quantile(at.chunk_seconds, share)) if at.series.seconds else float("nan")


def _with_truth(at: Reading) -> float:
    return float((at.series["made_embedding"] * at.video.common["truth_embedding"]).sum(1).mean())


def _pose(at: Reading) -> float:
    return float(pose_errors(at.series["landmarks"], at.video.common["aim_landmarks"]).mean())


def _expression(at: Reading) -> float:
    return float(expression_errors(at.series["landmarks"], at.video.common["aim_landmarks"]).mean())


AXES = (
    Axis(
        "identity_cosine", "", "higher", lambda at: float(at.cosines.mean()),
        "cosine of the shown face with the reference, in the judge's space",
    ),
    Axis(
        "identity_retrieval", "", "higher",
        lambda at: retrieved(at.series["embedding"], at.gallery, at.video.case.who),
        "share of frames whose nearest reference of all people is theirs",
    ),
    Axis(
        "identity_cosine_made", "", "higher",
        lambda at: float((at.series["made_embedding"].astype(np.float64) @ at.reference).mean()),
        "the cosine of the made face, before its colours are matched",
    ),
    Axis(
        "identity_cosine_truth", "", "higher", _with_truth, "cosine of the made face with the true one of the frame"
    ),
    Axis("psnr", "dB", "higher", _mean("psnr"), "of the made face within the mask; equal pictures have 100 dB"),
    Axis("psnr_region", "dB", "higher", _mean("psnr_region"), "of the made face in the whole region"),
    Axis(
        "pose_error", "degrees", "lower", _pose,
        "angle between the turnings of the shown and the true head (without truth: the input's)",
    ),
    Axis(
        "expression_error", "% of the face", "lower", _expression,
        "rms of the landmarks' movements, shown less true ones",
    ),
    Axis(
        "landmark_jitter_ratio", "x", "lower", _jitter, "rms second difference of landmarks, shown over input"
    ),
    Axis("warping_error", "levels", "lower", _mean("warping"), "rms change along the input's optical flow"),
    Axis(
        "seam_gradient_ratio", "x", "near 1", _mean("seam"), "gradient across the mask's border, shown over input"
    ),
    Axis("ring_colour_error", "levels", "lower", _mean("ring"), "distance of mean colours on the mask's border"),
    Axis(
        "frames_swapped", "", "higher", lambda at: len(at.minutes) / at.video.frames,
        "share of the frames in which a face was found and swapped",
    ),
    Axis(
        "background_exact", "", "higher", _mean("background"),
        "share of the pixels that the mask does not reach with equal bits",
    ),
    Axis(
        "identity_variance", "", "lower", lambda at: identity_spread(at.series["embedding"]),
        "of the embeddings of a video around their mean, 1 - |mean|^2",
    ),
    Axis(
        IDENTITY_DRIFT, "per minute", "near 0", _drift(IDENTITY_DRIFT), "slope of the cosine with the reference"
    ),
    *(
        Axis(f"{name}_drift_per_minute", "levels per minute", "near 0", _drift(f"{name}_drift_per_minute"), text)
        for name, text in zip(
            COLOURS,
            ("slope of shown less input", "the same of BT.601's Cb", "the same of BT.601's Cr",
             "the same of brightness's deviation"),
            strict=True,
        )
    ),
    Axis("frames_per_second", "frames/s", "higher", _speed, "of the generator alone, one face"),
    Axis("chunk_latency_p50", "ms", "lower", _latency(0.5), "of the generator, a chunk"),
    Axis("chunk_latency_p95", "ms", "lower", _latency(0.95), "of the generator, a chunk"),
)  # fmt: skip
OF_LANDMARKS = ("pose_error", "expression_error", "landmark_jitter_ratio")
OF_TRUTH = ("identity_cosine_made", "identity_cosine_truth", "psnr", "psnr_region")
OF_VIDEO = ("frames_swapped",)  # where faces have to be found


def axes_of(landmarks: bool, truth: bool) -> tuple[Axis, ...]:
    """Those that are measured: some need landmarks, some the truth."""
    left = (*(() if landmarks else OF_LANDMARKS), *(OF_VIDEO if truth else OF_TRUTH))
    return tuple(axis for axis in AXES if axis.name not in left)


def value_of(axis: Axis, reading: Reading) -> float:
    """NaN where no frame of the video has a swapped face, but of `frames_swapped`."""
    if not len(reading.minutes) and axis.name not in OF_VIDEO:
        return float("nan")
    return axis.value(reading)


def table_of(axis: Axis, videos: Sequence[Measured], gallery: Gallery, method: int) -> Floats:
    """[k, V]: of every stream of a method (its training seeds) and every video."""
    streams = len(videos[0].series[method])
    return np.array(
        [[value_of(axis, Reading(video, video.series[method][i], gallery)) for video in videos] for i in range(streams)]
    )
