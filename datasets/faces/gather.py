"""Follow the faces of videos and keep them as aligned pieces: what training reads, as the stream would see it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.clips import video_paths
from worldmodel.datasets.faces.pieces import INDEX, Faces, Piece, write_faces, write_index
from worldmodel.errors import UserError
from worldmodel.face.alignment import apply, invert
from worldmodel.face.command import default_networks
from worldmodel.face.faces import Networks
from worldmodel.face.reading import Picture, open_source
from worldmodel.face.region import PADDING, crop_region
from worldmodel.face.track import Track, Tracker, Tracking
from worldmodel.folders import check_outputs, make_folder
from worldmodel.options import check_range, check_threads
from worldmodel.progress import progress_bar


@dataclass(slots=True)
class _Growing:
    """The piece of a track that is being filled."""

    start: int
    crops: list[NDArray[np.uint8]] = field(default_factory=list)
    landmarks: list[NDArray[np.float32]] = field(default_factory=list)

    def faces(self) -> Faces:
        return Faces(np.stack(self.crops), np.stack(self.landmarks))


def gather_command(
    videos: Path, out: Path, size: int = 128, faces: int = 4, shortest: int = 8, longest: int = 240, threads: int = 1
) -> int:
    """Follow the faces of videos and keep them aligned, to train a swap on.

    Example: worldmodel face gather my/videos --out data/faces

    VIDEOS is a file or a folder with subfolders. --size: side of the regions in pixels. --faces: how many people at
    once are followed. --shortest, --longest: frames of a piece; longer tracks make several. Faces that are tiny, in
    profile or lost are left out. It needs `worldmodel face fetch`.
    """
    import torch

    check_range(16, 1024, size=size)
    check_range(1, 8, faces=faces)
    check_range(1, 100_000, shortest=shortest, longest=longest)
    check_threads(threads)
    if longest < shortest:
        raise UserError(f"--longest {longest} must not be below --shortest {shortest}")
    torch.set_num_threads(threads)
    check_outputs(out)
    if (out / INDEX).exists():
        raise UserError(f"{out / INDEX}: is there already; give another --out")
    paths = video_paths(videos)
    pieces = gather(paths, videos, out, default_networks(), Tracking(faces=faces), size, shortest, longest)
    people = len({piece.person for piece in pieces})
    print(f"{out}: {sum(piece.frames for piece in pieces)} faces of {people} people in {len(pieces)} pieces")
    return 0


def gather(
    paths: list[Path], root: Path, out: Path, networks: Networks, settings: Tracking, size: int, shortest: int,
    longest: int,
) -> list[Piece]:  # fmt: skip
    """Write the pieces of all videos and their index. A UserError if there is no face in any of them."""
    make_folder(out)
    pieces = list[Piece]()
    with progress_bar("gather", len(paths), unit="videos") as advance:
        for path in paths:
            name = path.name if path == root else path.relative_to(root).as_posix()
            for person, start, faces in _tracks(path, networks, settings, size, longest):
                if len(faces.crops) >= shortest:
                    file = f"{len(pieces):06d}.npz"
                    write_faces(out / file, faces)
                    pieces.append(Piece(file, f"{name}#{person}", name, start, len(faces.crops), size))
            advance(1)
    if not pieces:
        raise UserError(f"{root}: no face is seen for {shortest} frames in any of {len(paths)} videos")
    write_index(out, pieces)
    return pieces


def _tracks(
    path: Path, networks: Networks, settings: Tracking, size: int, longest: int
) -> Iterator[tuple[int, int, Faces]]:
    """Person, first frame and faces of every piece of a video, as its frames come: memory does not grow with it."""
    tracker, source = Tracker(networks, settings), open_source(str(path))
    tracks, growing = None, dict[int, _Growing]()
    try:
        pictures = (event for event in source if isinstance(event, Picture))
        for number, picture in enumerate(pictures):
            tracks = tracker.step(tracks, picture.pixels, float(picture.pts * source.info.time_base))
            seen = {t.name: t for t in tracks.visible if t.seen == tracks.time and t.why == "" and t.misses == 0}
            for name in [name for name in growing if name not in seen]:
                ended = growing.pop(name)
                yield name, ended.start, ended.faces()
            for name, track in seen.items():
                piece = growing.setdefault(name, _Growing(number))
                _add(piece, picture.pixels, track, size)
                if len(piece.crops) == longest:
                    del growing[name]
                    yield name, piece.start, piece.faces()
    finally:
        source.close()
    for name, piece in growing.items():
        yield name, piece.start, piece.faces()


def _add(piece: _Growing, picture: NDArray[np.uint8], track: Track, size: int) -> None:
    piece.crops.append(crop_region(picture, track.pose, size))
    inside = apply(invert(track.pose.matrix(size, PADDING)), track.face.landmarks)
    piece.landmarks.append(inside.astype(np.float32))
