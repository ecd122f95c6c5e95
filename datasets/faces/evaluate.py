"""`worldmodel evaluate swap`: on rendered heads, whose exact swap is known, or on the real videos of a manifest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from worldmodel.datasets.evaluate import as_typed, finish, prepare
from worldmodel.datasets.faces.manifest import Kind, read_manifest
from worldmodel.datasets.heads.swaps import HeadSwaps, Side
from worldmodel.errors import UserError
from worldmodel.evaluate.report_files import write_pictures
from worldmodel.face.evaluate.case import Case, Truth
from worldmodel.face.evaluate.evaluate import evaluate_swap
from worldmodel.face.evaluate.judge import HeadsJudge, PublishedJudge, check_independent
from worldmodel.face.evaluate.methods import ENDS, TARGET, Method, chunks_of, open_methods, parse_methods
from worldmodel.face.evaluate.reader import RegionReader
from worldmodel.face.evaluate.regions import Piece, RegionRounds
from worldmodel.face.evaluate.video import VideoRounds, reference_region
from worldmodel.face.faces import Networks
from worldmodel.face.protocols import LandmarkModel
from worldmodel.face.swap_model import SwapModel
from worldmodel.folders import check_outputs
from worldmodel.options import check_range
from worldmodel.pixels import to_uint8

JUDGE = Path("runs/heads_judge")
HEADS, REAL = 64, 256  # sides of regions where no trained method says one
PIECE = 48  # frames that are rendered at once, about


def swap(
    methods: tuple[str, ...] = (),
    manifest: Path | None = None,
    kind: Kind = "short",
    judge: Path | None = None,
    out: Path | None = None,
    json: Path | None = None,
    videos: int | None = None,
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

    Example: worldmodel evaluate swap pure=runs/p0,runs/p1 gated=runs/g0,runs/g1 --out reports/swap

    Each method is NAME=FOLDER,FOLDER,... with a folder per training seed; the others are compared with the first. A
    folder alone is one method, and without any the --baselines are measured. All swap the same --videos (16) rendered
    heads of --seconds, of people whom nobody trained on (--side test), beside the input unchanged (target) and the
    exact swap (truth). --judge: a recogniser (runs/heads_judge) that no loss looked at. --no-landmarks leaves out what
    the published landmark network is needed for (worldmodel face fetch).

    --manifest FILE takes real videos instead (worldmodel face manifest), those of --kind, the first --videos of them or
    all; their judge is the published recogniser, and there is no truth.
    """
    command = as_typed(swap, locals())
    check_range(1, 100_000, videos=videos)
    check_range(0, 2**62, seed=seed)
    if not 0 < seconds <= 36_000 or not 0 <= occluded <= 1:
        raise UserError(f"--seconds {seconds} must be in (0, 36000], --occluded {occluded} in [0, 1]")
    if manifest is not None and (judge is not None or not landmarks):
        raise UserError(
            "--manifest: real faces are judged by the published recogniser, which needs landmarks; leave --judge and "
            "--no-landmarks out"
        )
    check_outputs(out, file=json)
    prepare(device, threads)
    arms = parse_methods(methods)
    if manifest is None:
        opened = open_methods(arms, baselines, device, ENDS, HEADS)
        data = heads_for(opened, occluded, seed)
        heads = HeadsJudge.find(JUDGE if judge is None else judge)
        notes = (_on_heads(data, side, videos or 16, seconds), *independence(heads, opened))
        cases, found = head_cases(data, side, videos or 16, seconds, chunks_of(opened)), heads
        read = RegionReader(landmark_model()) if landmarks else None
    else:
        opened = open_methods(arms, baselines, device, (TARGET,), REAL)
        networks = real_networks()
        cases, found = real_cases(manifest, kind, videos, networks), PublishedJudge()
        notes, read = (_on_videos(manifest, kind, len(cases)),), RegionReader(networks.landmarks)
    notes = (*notes, f"Judge: {found.name}.")
    done = evaluate_swap(cases, opened, found, read=read, notes=notes, device=device)
    print(done.table)
    if out is not None:
        write_pictures(done.report, out, "swap")
    return finish(replace(done.report, command=command, seeds=(seed,)), "swap", out, json)


def landmark_model() -> LandmarkModel:
    from worldmodel.face.networks.landmarks import Landmarks68

    return Landmarks68()


def real_networks() -> Networks:
    from worldmodel.face.command import default_networks

    return default_networks()


def heads_for(methods: Sequence[Method], occluded: float, seed: int) -> HeadSwaps:
    """Heads in regions of the methods' size, with as many references as any wants."""
    models = [model for method in methods for model in method.models]
    references = [model.codec.references for model in models if isinstance(model, SwapModel)]
    return HeadSwaps(size=models[0].size, references=max(references, default=1), occluded=occluded, seed=seed)


def _on_heads(data: HeadSwaps, side: Side, videos: int, seconds: float) -> str:
    return (
        f"Videos: {videos} rendered heads of {seconds:g} s (or up to a chunk longer) at {data.fps:g} frames/s, regions "
        f"of {data.size} pixels, people of the {side} side, seed {data.seed}; {data.occluded:.0%} of them have "
        "something before the face. Truth is what is rendered with the new face. Outside the mask the target's face "
        "stays, whose skin colour the made one is given: what is shown looks less like the new person than what was "
        "made, for the truth too."
    )


def _on_videos(manifest: Path, kind: Kind, count: int) -> str:
    return (
        f"Videos: {count} {kind} stretches of {manifest}, through the pipeline of `worldmodel swap` (one face, looked "
        "for every 8 pictures). Regions of 192 pixels are measured, cut out of the pictures before and after. There is "
        "no truth: pose and expression are compared with the input's."
    )


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
            truth = Truth(clip.x[0], clip.control.landmarks[0].double().numpy())
            yield Piece(clip.control.target, truth)


def head_cases(data: HeadSwaps, side: Side, count: int, seconds: float, step: int) -> list[Case]:
    """Videos 0 to count - 1 of a side, as long as asked for or longer, up to a multiple of `step` frames."""
    frames = max(1, -(-round(seconds * data.fps) // step)) * step
    together = max(1, PIECE // step) * step
    cases = []
    for number in range(count):
        control = data.clips(side, torch.tensor([number]), 1).control
        new, old = control.who[0].tolist()
        rounds = RegionRounds(control.reference[0], data.fps, HeadPieces(data, side, number, frames, together))
        cases.append(Case(f"Person {new} for {old}", str(new), to_uint8(control.reference[0]), frames, rounds))
    return cases


def real_cases(manifest: Path, kind: Kind, count: int | None, networks: Networks) -> list[Case]:
    """The first `count` stretches of a kind, or all. UserErrors as `read_manifest`, for none of the kind, and for
    references that are not one frontal face."""
    read = read_manifest(manifest)
    entries = read.of(kind)[:count]
    if not entries:
        raise UserError(f"{manifest}: no {kind} stretches in it")
    cases = []
    for entry in entries:
        picture = read.place(entry.reference)
        rounds = VideoRounds(networks, read.place(entry.target), entry.start, entry.frames, picture)
        name = f"{entry.reference_person} for {entry.target_person}, from frame {entry.start} of {entry.target}"
        region = reference_region(picture, networks)
        cases.append(Case(name, entry.reference_person, region, entry.frames, rounds))
    return cases
