"""The axes that swaps are compared on, and one number per video for each. Letters: T frames, D width of an embedding.

A number is NaN where a video does not tell: too few frames, a mask without a border, times of an end of the scale.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from worldmodel.face.evaluate.head_pose import expression_errors, jitter, pose_errors
from worldmodel.face.evaluate.meter import Measured, Series
from worldmodel.face.evaluate.slope import slope

Floats = NDArray[np.float64]
Better = Literal["higher", "lower", "near 1", "near 0"]
CHUNKS_BEFORE = 1  # of each video, whose times do not count


@dataclass(frozen=True, slots=True)
class Axis:
    """text: what it means, for the report."""

    name: str
    unit: str
    better: Better
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
    """Who could be meant: unit vectors [P, D] of the references of P people, and their numbers."""

    vectors: Floats
    who: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One stream of one video."""

    video: Measured
    series: Series
    gallery: Gallery

    @property
    def minutes(self) -> Floats:
        return np.arange(len(self.series["seam"])) / self.video.case.fps / 60

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


def retrieved(embedding: NDArray[np.floating], gallery: Gallery, who: int) -> float:
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


def _drift(column: int) -> Callable[[Reading], float]:
    return lambda at: slope(at.series["colour"][:, column], at.minutes).value


def _speed(at: Reading) -> float:
    if not at.series.seconds:
        return float("nan")
    frames = at.video.case.frames / len(at.series.seconds) * len(at.chunk_seconds)
    return frames / float(at.chunk_seconds.sum())


def _jitter(at: Reading) -> float:
    if len(at.minutes) < 3:
        return float("nan")
    return jitter(at.series["landmarks"]) / max(jitter(at.video.common["input_landmarks"]), 1e-9)


def _latency(share: float) -> Callable[[Reading], float]:
    return lambda at: 1000 * float(np.quantile(at.chunk_seconds, share)) if at.series.seconds else float("nan")


def _with_truth(at: Reading) -> float:
    return float((at.series["made_embedding"] * at.video.common["truth_embedding"]).sum(1).mean())


def _pose(at: Reading) -> float:
    return float(pose_errors(at.series["landmarks"], at.video.common["truth_landmarks"]).mean())


def _expression(at: Reading) -> float:
    return float(expression_errors(at.series["landmarks"], at.video.common["truth_landmarks"]).mean())


Rule = Callable[[Reading], float]
AXES: Mapping[str, tuple[Axis, Rule]] = {
    axis.name: (axis, rule)
    for axis, rule in (
        (
            Axis("identity_cosine", "", "higher", "cosine of the shown face with the reference, in the judge's space"),
            lambda at: float(at.cosines.mean()),
        ),
        (
            Axis("identity_retrieval", "", "higher", "share of frames whose nearest reference of all people is theirs"),
            lambda at: retrieved(at.series["embedding"], at.gallery, at.video.case.who),
        ),
        (
            Axis("identity_cosine_made", "", "higher", "the same of the made face, before its colours are matched"),
            lambda at: float((at.series["made_embedding"].astype(np.float64) @ at.reference).mean()),
        ),
        (
            Axis("identity_cosine_truth", "", "higher", "cosine of the made face with the true one of the same frame"),
            _with_truth,
        ),
        (Axis("psnr", "dB", "higher", "of the made face within the mask; equal pictures have 100 dB"), _mean("psnr")),
        (Axis("psnr_region", "dB", "higher", "of the made face in the whole region"), _mean("psnr_region")),
        (Axis("pose_error", "degrees", "lower", "angle between the heads' turnings, shown and true"), _pose),
        (
            Axis("expression_error", "% of the face", "lower", "rms of the landmarks' movements, shown and true"),
            _expression,
        ),
        (
            Axis("landmark_jitter_ratio", "x", "lower", "rms second difference of landmarks, shown over input"),
            _jitter,
        ),
        (Axis("warping_error", "levels", "lower", "rms change along the input's optical flow"), _mean("warping")),
        (Axis("seam_gradient_ratio", "x", "near 1", "gradient across the mask's border, shown over input"),
         _mean("seam")),
        (Axis("ring_colour_error", "levels", "lower", "distance of mean colours on the mask's border"), _mean("ring")),
        (
            Axis("background_exact", "", "higher", "share of the pixels that the mask does not reach with equal bits"),
            _mean("background"),
        ),
        (
            Axis("identity_variance", "", "lower", "of the embeddings of a video around their mean, 1 - |mean|^2"),
            lambda at: identity_spread(at.series["embedding"]),
        ),
        (
            Axis("identity_drift_per_minute", "per minute", "near 0", "slope of the cosine with the reference"),
            lambda at: slope(at.cosines, at.minutes).value,
        ),
        (
            Axis("brightness_drift_per_minute", "levels per minute", "near 0", "slope of shown less input"),
            _drift(0),
        ),
        (Axis("blueness_drift_per_minute", "levels per minute", "near 0", "the same of B - Y"), _drift(1)),
        (Axis("redness_drift_per_minute", "levels per minute", "near 0", "the same of R - Y"), _drift(2)),
        (
            Axis("contrast_drift_per_minute", "levels per minute", "near 0", "the same of brightness's deviation"),
            _drift(3),
        ),
        (Axis("frames_per_second", "frames/s", "higher", "of the generator alone, one face"), _speed),
        (Axis("chunk_latency_p50", "ms", "lower", "of the generator, a chunk"), _latency(0.5)),
        (Axis("chunk_latency_p95", "ms", "lower", "of the generator, a chunk"), _latency(0.95)),
    )
}  # fmt: skip
OF_LANDMARKS = ("pose_error", "expression_error", "landmark_jitter_ratio")


def axes_of(landmarks: bool) -> tuple[Axis, ...]:
    """Those that are measured; without landmarks some are not."""
    return tuple(axis for axis, _ in AXES.values() if landmarks or axis.name not in OF_LANDMARKS)


def value_of(axis: Axis, reading: Reading) -> float:
    return AXES[axis.name][1](reading)


def table_of(axis: Axis, videos: Sequence[Measured], gallery: Gallery, method: int) -> Floats:
    """[k, V]: of every stream of a method (its training seeds) and every video."""
    streams = len(videos[0].series[method])
    return np.array(
        [[value_of(axis, Reading(video, video.series[method][i], gallery)) for video in videos] for i in range(streams)]
    )
