"""A folder of aligned faces: an index of JSON lines, and an array file per piece of a track.

    pieces.jsonl     a line per piece: file, person, video, start (frame of the video), frames, size
    000000.npz       crops uint8 [T, S, S, 3], landmarks fp32 [T, 68, 2] in pixels of the crops; swapped, if there is
                     one: crops of the same frames with another face

A person is a track of a video; the same face in two videos is two people unless their names are made one in the index.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.serial import from_json, write_text

INDEX = "pieces.jsonl"
MOST = 40  # mistakes that are listed


@dataclass(frozen=True, slots=True)
class Piece:
    """One line of the index."""

    file: str
    person: str
    video: str
    start: int
    frames: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Faces:
    """What a piece's file holds. swapped: None, or inputs for role reversal."""

    crops: NDArray[np.uint8]  # [T, S, S, 3]
    landmarks: NDArray[np.float32]  # [T, 68, 2]
    swapped: NDArray[np.uint8] | None = None  # [T, S, S, 3]


def write_faces(path: Path, faces: Faces) -> None:
    """Write a piece's file beside its place and rename it. A full disk is a UserError."""
    partial = path.with_name(f".{path.name}")
    arrays = {"crops": faces.crops, "landmarks": faces.landmarks}
    if faces.swapped is not None:
        arrays["swapped"] = faces.swapped
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written ({error.strerror or error})") from error


def read_faces(folder: Path, piece: Piece) -> Faces:
    """A piece's arrays, checked against its line in the index; a UserError that names the file."""
    path = folder / piece.file
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile, EOFError) as error:
        raise UserError(f"{path}: cannot be read as a piece of faces ({str(error).splitlines()[0]})") from error
    pictures = (piece.frames, piece.size, piece.size, 3)
    expected = {"crops": (np.uint8, pictures), "landmarks": (np.float32, (piece.frames, 68, 2))}
    expected |= {"swapped": (np.uint8, pictures)} if "swapped" in arrays else {}
    for name, (kind, shape) in expected.items():
        found = arrays.get(name)
        if found is None or found.dtype != kind or found.shape != shape:
            what = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise UserError(f"{path}: '{name}' must be {np.dtype(kind)} {list(shape)}, there is {what}")
    return Faces(arrays["crops"], arrays["landmarks"], arrays.get("swapped"))


def write_index(folder: Path, pieces: Iterable[Piece]) -> None:
    write_text("".join(json.dumps(asdict(piece)) + "\n" for piece in pieces), folder / INDEX)


def read_index(folder: Path) -> list[Piece]:
    """The index, checked as a whole: one UserError that lists every mistake."""
    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"{path}: no such file; `worldmodel face gather VIDEOS --out {folder}` makes it")
    pieces, wrong = list[Piece](), list[str]()
    for place, data in json_lines(path, wrong):
        try:
            piece: Piece = from_json(data, Piece, place)
        except UserError as error:
            wrong.append(str(error))
            continue
        if piece.frames < 1 or piece.size < 16 or piece.start < 0:
            wrong.append(f"{place}: frames {piece.frames}, size {piece.size} or start {piece.start} is none")
        elif not (folder / piece.file).is_file():
            wrong.append(f"{place}: {piece.file} is not there")
        pieces.append(piece)
    if len({piece.size for piece in pieces}) > 1:
        wrong.append(f"{path}: pieces of several sizes, {sorted({piece.size for piece in pieces})}")
    if not pieces and not wrong:
        wrong.append(f"{path}: no pieces in it")
    refuse(wrong)
    return pieces


def json_lines(path: Path, wrong: list[str]) -> Iterable[tuple[str, object]]:
    """Place and content of every line that is JSON; what is none is noted in `wrong`. Empty lines are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line)
            except json.JSONDecodeError as error:
                wrong.append(f"{path}:{number}: not JSON ({error})")


def refuse(wrong: list[str]) -> None:
    """One UserError for all that is wrong, if anything is."""
    if wrong:
        more = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
        raise UserError("; ".join(wrong[:MOST]) + more)
