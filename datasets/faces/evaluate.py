"""`worldmodel evaluate swap`: on rendered heads, whose exact swap is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

import torch

from worldmodel.datasets.evaluate import as_typed, finish, prepare
from worldmodel.datasets.heads.swaps import HeadSwaps, Side
from worldmodel.errors import UserError
from worldmodel.evaluate.report_files import write_pictures
from worldmodel.face.evaluate.case import Case, Piece
from worldmodel.face.evaluate.evaluate import evaluate_swap
from worldmodel.face.evaluate.judge import HeadsJudge, check_independent
from worldmodel.face.evaluate.methods import Method, open_methods, parse_methods
from worldmodel.face.evaluate.reader import RegionReader
from worldmodel.face.swap_model import SwapModel
from worldmodel.folders import check_outputs
from worldmodel.options import check_range

SIZE = 64  # of regions, where no trained method says one
PIECE = 48  # frames that are rendered at once, about


def swap(
    methods: tuple[str, ...] = (),
    judge: Path = Path("runs/heads_judge"),
    out: Path | None = None,
    json: Path | None = None,
    videos: int = 16,
    seconds: float = 4.0,
    baselines: tuple[str, ...] = ("copy-paste", "poisson"),
    side: Side = "test",
    occluded: float = 0.5,
    landmarks: bool = True,
    seed: int = 0,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Face swaps beside baselines: identity, likeness to the truth, pose, expression, steadiness, seam, drift, speed.

    Example: worldmodel evaluate swap pure=runs/p0,runs/p1 gated=runs/g0,runs/g1 --judge runs/heads_judge --out reports

    Each method is NAME=FOLDER,FOLDER,... with a folder per training seed; the others are compared with the first. A
    folder alone is one method, and without any the --baselines are measured. All stream the same --videos rendered
    heads of --seconds, of people whom nobody trained on (--side test), beside the input unchanged (target) and the
    exact swap (truth). --judge: a recogniser (configs/heads_judge.py) that no loss looked at. --no-landmarks leaves out
    what the published landmark network is needed for (worldmodel face fetch).
    """
    command = as_typed(swap, locals())
    check_range(1, 100_000, videos=videos)
    check_range(0, 2**62, seed=seed)
    if not 0 < seconds <= 36_000:
        raise UserError(f"--seconds must be above 0 and at most 36000, not {seconds}")
    check_outputs(out, file=json)
    prepare(device, threads)
    arms = parse_methods(methods)
    found = HeadsJudge.find(judge)
    opened = open_methods(arms, baselines, device)
    notes = independence(found, opened)
    read = None
    if landmarks:
        from worldmodel.face.networks.landmarks import Landmarks68

        read = RegionReader(Landmarks68())
    models = [model for method in opened for model in method.models if isinstance(model, SwapModel)]
    data = HeadSwaps(
        size=models[0].size if models else SIZE,
        references=max([model.codec.references for model in models], default=1),
        occluded=occluded,
        seed=seed,
    )
    cases = head_cases(data, side, videos, seconds, [model.chunk for method in opened for model in method.models])
    notes = (
        f"Videos: {videos} rendered heads of {cases[0].frames / data.fps:g} s at {data.fps:g} frames/s, regions of "
        f"{data.size} pixels, people of the {side} side, seed {seed}; {occluded:.0%} of them with something before the "
        "face.",
        f"Judge: {found.name}.",
        *notes,
    )
    done = evaluate_swap(cases, opened, found, read=read, notes=notes, device=device)
    print(done.table)
    if out is not None:
        write_pictures(done.report, out, "swap")
    return finish(replace(done.report, command=command, seeds=(seed,)), "swap", out, json)


def independence(judge: HeadsJudge, methods: Sequence[Method]) -> tuple[str, ...]:
    """A UserError if a method learned from the judge; else a note on those of which nothing is recorded."""
    unknown = []
    for method in methods:
        for folder, model in zip(method.arm.folders, method.models, strict=False):  # baselines have no folders
            if isinstance(model, SwapModel) and not check_independent(
                judge.embedder, judge.folder, Path(folder), model
            ):
                unknown.append(folder)
    if not unknown:
        return ()
    named = ", ".join(unknown)
    return (f"Nothing records which recogniser trained {named}: whether the judge is another one is open.",)


@dataclass(frozen=True, slots=True)
class HeadPieces:
    """The pieces of a rendered video, made when they are asked for."""

    data: HeadSwaps
    side: Side
    number: int
    frames: int
    together: int

    def __call__(self) -> Iterator[Piece]:
        index = torch.tensor([self.number])
        for first in range(0, self.frames, self.together):
            clip = self.data.clips(self.side, index, min(self.together, self.frames - first), first)
            control = clip.control
            yield Piece(control.target, clip.x[0], control.landmarks[0].double().numpy())


def head_cases(data: HeadSwaps, side: Side, count: int, seconds: float, chunks: Sequence[int]) -> list[Case]:
    """Videos 0 to count - 1 of a side, as long as asked for or up to a common multiple of all chunks longer."""
    step = lcm(*chunks) if chunks else 1
    frames = max(1, -(-round(seconds * data.fps) // step)) * step
    together = max(1, PIECE // step) * step
    cases = []
    for number in range(count):
        control = data.clips(side, torch.tensor([number]), 1).control
        new, old = control.who[0].tolist()
        pieces = HeadPieces(data, side, number, frames, together)
        cases.append(Case(f"Person {new} for {old}", new, control.reference[0], data.fps, frames, pieces))
    return cases
