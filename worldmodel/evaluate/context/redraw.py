"""What a model draws when it comes back: rollouts from a case's start on, under the recorded actions.

Letters: V visits, S frames of a view, H W pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.evaluate.context.bench import Bench, Case, groups
from worldmodel.evaluate.context.similarity import Scale
from worldmodel.evaluate.continuation import beginning, context_frames, continuations, following, whole_chunks
from worldmodel.evaluate.recordings import Pixels, clip_of, cut, onward_actions
from worldmodel.models.world import WorldModel
from worldmodel.rollout import start

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of one model. scores, right [E, V]: of each measure and visit, mean over the noise seeds; right: retrieval.

    views [V, H, W, 3]: the first frame back, of the first noise seed. memory_bytes: of one stream after the longest
    visit.
    """

    scores: NDArray[np.float64]
    right: NDArray[np.float64]
    views: Pixels
    memory_bytes: int


def measure(
    world: WorldModel, bench: Bench, scales: tuple[Scale, ...], progress: Progress = lambda frames: None
) -> Measurement:
    """Roll out every visit once per noise seed, and judge the views that the model comes back to."""
    scores, right, first = [], [], None
    for seed in bench.settings.seeds:
        views = redraw(world, bench, seed, progress)
        first = views[:, 0] if first is None else first
        found = [scale.judge(views) for scale in scales]
        scores.append([score for score, _ in found])
        right.append([hit for _, hit in found])
    assert first is not None
    return Measurement(np.mean(scores, 0), np.mean(right, 0), first, memory_bytes(world, bench))


def redraw(world: WorldModel, bench: Bench, seed: int, progress: Progress = lambda frames: None) -> Pixels:
    """The frames at the pose come back to, [V, S, H, W, 3]; those of visits without a horizon stay black."""
    made = np.zeros_like(bench.real)
    for rows in groups(bench):
        cases = [bench.cases[row] for row in rows]
        chunks = cases[0].chunks
        begin = context_frames(world, chunks)
        pieces = cut(bench.recordings, [(case.episode, case.start - begin) for case in cases], begin)
        generated = whole_chunks(world, _longest(bench, cases)) * world.pixel_frames
        control = following(world, pieces, chunks, onward_actions(bench.recordings, pieces, begin + generated))
        places = np.array([_wanted(bench, case) for case in cases])  # [rows, S] after the context
        wanted = np.unique(places)
        context = beginning(world, pieces, chunks)
        video = continuations(world, context, control, seed, progress=progress, wanted=wanted)
        for row, frames, at in zip(rows, video, np.searchsorted(wanted, places), strict=True):
            made[row] = frames[at]
    return made


def _wanted(bench: Bench, case: Case) -> NDArray[np.int64]:
    return case.visit.back - case.start + np.arange(bench.settings.views)


def _longest(bench: Bench, cases: list[Case]) -> int:
    return max(int(_wanted(bench, case)[-1]) + 1 for case in cases)


def frames_to_make(world: WorldModel, bench: Bench) -> int:
    """Pixel frames that `measure` rolls out."""
    found = 0
    for rows in groups(bench):
        longest = _longest(bench, [bench.cases[row] for row in rows])
        found += len(rows) * whole_chunks(world, longest) * world.pixel_frames
    return found * len(bench.settings.seeds)


@torch.no_grad()
def memory_bytes(world: WorldModel, bench: Bench) -> int:
    """Bytes that the memory of one stream owns after the context and the whole of the longest visit."""
    case = max(bench.cases, key=lambda case: case.visit.back - case.visit.look + context_frames(world, case.chunks))
    begin = context_frames(world, case.chunks)
    chunks = case.chunks + whole_chunks(world, _longest(bench, [case]))
    first = case.start - begin
    length = min(context_frames(world, chunks), bench.recordings.lengths[case.episode] - first)
    chunks = (1 + (length - 1) // world.tokenizer.temporal) // world.dit.chunk
    clip = clip_of(world, cut(bench.recordings, [(case.episode, first)], context_frames(world, chunks)))
    seed = torch.zeros(1, dtype=torch.int64, device=world.device)
    return start(world.dit, world.stream.memory, seed, clip, world.stream.context_time).memory.nbytes
