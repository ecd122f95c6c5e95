"""What a swap is evaluated on: JSON lines, each a stretch of a target video and a picture of who it should become.

    {"kind": "short", "target": "a/walk.mp4", "target_person": "a", "start": 120, "frames": 125,
     "reference": "stills/b.jpg", "reference_person": "b"}

Paths are relative to the manifest's folder. kind: `short` or `long`, the two sets (200 of each in the paper); start and
frames: of the target, in frames from 0.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from worldmodel import noise
from worldmodel.datasets.clips import video_paths
from worldmodel.datasets.faces.pieces import json_lines, refuse
from worldmodel.datasets.video import VideoFile, open_video
from worldmodel.errors import UserError
from worldmodel.face.reading import IMAGES
from worldmodel.folders import check_creatable
from worldmodel.options import check_range
from worldmodel.serial import from_json, write_text

Kind = Literal["short", "long"]
KINDS: tuple[Kind, ...] = ("short", "long")
STARTS, REFERENCES = range(2)  # draws of an entry


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. target, reference: paths as they stand in the manifest."""

    kind: Kind
    target: str
    target_person: str
    start: int
    frames: int
    reference: str
    reference_person: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read and found whole."""

    path: Path
    entries: tuple[Entry, ...]

    def of(self, kind: Kind) -> list[Entry]:
        return [entry for entry in self.entries if entry.kind == kind]

    def place(self, relative: str) -> Path:
        """A target or reference as a path from here."""
        return self.path.parent / relative


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest as a whole: one UserError lists everything that is wrong with it.

    Every line must be an entry and no two the same; targets must be videos that hold their stretch, references pictures
    that are there; nobody is swapped for themselves.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; `worldmodel face manifest VIDEOS --references PICTURES --out {path}`")
    wrong, entries, places = list[str](), list[Entry](), list[str]()
    for place, data in json_lines(path, wrong):
        try:
            entries.append(from_json(data, Entry, place))
            places.append(place)
        except UserError as error:
            wrong.append(str(error))
    videos = dict[str, VideoFile | None]()
    first = dict[Entry, str]()
    for place, entry in zip(places, entries, strict=True):
        if entry in first:
            wrong.append(f"{place}: the same as {first[entry]}")
        first.setdefault(entry, place)
        if entry.target_person == entry.reference_person:
            wrong.append(f"{place}: {entry.target_person} is swapped for themselves")
        if not (path.parent / entry.reference).is_file():
            wrong.append(f"{place}: reference {entry.reference} is not there")
        if entry.target not in videos:
            try:
                videos[entry.target] = open_video(path.parent / entry.target)
            except UserError as error:
                videos[entry.target] = None
                wrong.append(f"{place}: target {error}")
        video = videos[entry.target]
        if video is not None and (entry.start < 0 or not 1 <= entry.frames <= len(video) - entry.start):
            wrong.append(
                f"{place}: frames {entry.start} to {entry.start + entry.frames - 1} of {entry.target}, which has "
                f"{len(video)}"
            )
    if not entries and not wrong:
        wrong.append(f"{path}: no entries in it")
    refuse(wrong)
    return Manifest(path, tuple(entries))


def write_manifest(path: Path, entries: list[Entry]) -> None:
    """Write a manifest; what it names is checked when it is read."""
    write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in entries), path)


def manifest_command(
    videos: Path, references: Path, out: Path, short: int = 200, long: int = 200, short_seconds: float = 5.0,
    long_seconds: float = 600.0, seed: int = 0,
) -> int:  # fmt: skip
    """List what a swap is evaluated on: short and long stretches of videos, each with a picture of somebody else.

    Example: worldmodel face manifest my/videos --references my/pictures --out evaluation.jsonl

    A person is the folder that a file lies in, or, right under VIDEOS or REFERENCES, the file itself (its name without
    the ending). --short, --long: how many of each kind; --short-seconds, --long-seconds: how long they are.
    """
    check_range(0, 100_000, short=short, long=long)
    check_range(0, 2**62, seed=seed)
    if short + long == 0 or not (0 < short_seconds <= 1e6 and 0 < long_seconds <= 1e6):
        raise UserError(f"--short {short} and --long {long} of {short_seconds} and {long_seconds} s make no manifest")
    check_creatable(out)
    entries = choose(
        videos, references, out.parent, {"short": (short, short_seconds), "long": (long, long_seconds)}, seed
    )
    write_manifest(out, entries)
    made = read_manifest(out)
    print(f"{out}: {len(made.of('short'))} short and {len(made.of('long'))} long stretches")
    return 0


def choose(
    videos: Path, references: Path, base: Path, wanted: dict[Kind, tuple[int, float]], seed: int = 0
) -> list[Entry]:
    """Entries of each kind, `wanted` of so many seconds: videos in turn, starts and references drawn by the seed.

    No two stretches of a kind with the same reference begin at one place. A UserError if no video is long enough, or if
    there are fewer different entries than wanted.
    """
    found = [(open_video(path), _person(path, videos)) for path in video_paths(videos)]
    pictures = sorted(p for p in references.rglob("*") if p.suffix.lower() in IMAGES) if references.is_dir() else []
    if not pictures:
        raise UserError(f"{references}: no folder with pictures in it ({', '.join(IMAGES)})")
    entries = list[Entry]()
    for kind in KINDS:
        count, seconds = wanted[kind]
        made = dict[Entry, None]()
        for attempt in range(4 * count):
            if len(made) == count:
                break
            if (entry := _entry(kind, seconds, attempt, found, pictures, references, base, seed)) is not None:
                made[entry] = None
        if len(made) < count:
            longest = max(float(video.seconds[-1]) for video, _ in found)
            raise UserError(
                f"{videos}: only {len(made)} different {kind} stretches of {seconds:g} s with somebody else's picture, "
                f"{count} were wanted; its longest video has {longest:.1f} s"
            )
        entries += made
    return entries


def _entry(
    kind: Kind, seconds: float, attempt: int, found: list[tuple[VideoFile, str]], pictures: list[Path], root: Path,
    base: Path, seed: int,
) -> Entry | None:  # fmt: skip
    """The entry of an attempt; None where no video is long enough or nobody else has a picture."""
    frames = [max(1, round(seconds * float(video.fps))) for video, _ in found]
    fitting = [n for n, (video, _) in enumerate(found) if len(video) >= frames[n]]
    if not fitting:
        return None
    which = fitting[attempt % len(fitting)]
    video, person = found[which]
    others = [picture for picture in pictures if _person(picture, root) != person]
    if not others:
        return None
    key = noise.row_seed(seed, torch.tensor([2 * attempt + KINDS.index(kind)]))
    draw = noise.uniform(key, torch.arange(2)[None], 0)[0].double().numpy()
    start = int(draw[STARTS] * (len(video) - frames[which] + 1))
    reference = others[int(np.floor(draw[REFERENCES] * len(others)))]
    places = (Path(os.path.relpath(path, base or Path())).as_posix() for path in (video.path, reference))
    target, picture = places
    return Entry(kind, target, person, start, frames[which], picture, _person(reference, root))


def _person(path: Path, root: Path) -> str:
    """Who a file shows: the folder below `root` that it lies in, or its own name."""
    if path == root or path.parent == root:
        return path.stem
    return path.relative_to(root).parts[0]
