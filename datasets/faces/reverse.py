"""Role reversal: put somebody else's face on real pieces, so that the real one can be learned as the truth.

The swap that makes the inputs may be any generator, a poor one too: what it leaves of its errors is only in the input
(LivingSwap, 2512.07951).
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel import noise
from worldmodel.datasets.faces.pieces import Faces, Piece, read_faces, read_index, write_faces
from worldmodel.errors import UserError
from worldmodel.face.colour import match, ring
from worldmodel.face.generator import FaceControl, Generator, State
from worldmodel.face.methods import find_method
from worldmodel.face.region import soft_mask, to_crops, to_patch
from worldmodel.options import check_range, check_threads
from worldmodel.progress import progress_bar


def reverse_command(faces: Path, method: str = "poisson", seed: int = 0, threads: int = 1) -> int:
    """Give gathered faces inputs for role reversal: somebody else's face on them, made by a simple swap or a
    trained one.

    Example: worldmodel face reverse data/faces

    A training then sees the swapped face and learns to make the real one (`data.reversed`).
    """
    check_threads(threads)
    check_range(0, 2**62, seed=seed)
    torch.set_num_threads(threads)
    count = reverse(faces, find_method(method, read_index(faces)[0].size)[0], seed)
    print(f"{faces}: {count} pieces have swapped inputs")
    return 0


def reverse[S: State](folder: Path, generator: Generator[S], seed: int = 0) -> int:
    """Give every piece of a folder swapped crops, of a random other person's frame. Returns how many there are.

    Only the soft mask of the region changes, colours are matched as in the stream. A UserError for a folder with one
    person, and for a generator of another size.
    """
    pieces = read_index(folder)
    if pieces[0].size != generator.size:
        raise UserError(f"{folder}: regions of {pieces[0].size} pixels, the generator makes {generator.size}")
    if len({piece.person for piece in pieces}) < 2:
        raise UserError(f"{folder}: one person only: there is nobody else's face to put on")
    with progress_bar("reverse", len(pieces), unit="pieces") as advance:
        for number, piece in enumerate(pieces):
            others = [other for other in pieces if other.person != piece.person]
            key = noise.row_seed(seed, torch.tensor([number]))
            draw = noise.uniform(key, torch.arange(2)[None], 0)[0].double()
            other = others[int(draw[0] * len(others))]
            reference = read_faces(folder, other).crops[int(draw[1] * other.frames)]
            faces = read_faces(folder, piece)
            swapped = swap_piece(faces, piece, generator, reference)
            write_faces(folder / piece.file, Faces(faces.crops, faces.landmarks, swapped))
            advance(1)
    return len(pieces)


@torch.no_grad()
def swap_piece[S: State](
    faces: Faces, piece: Piece, generator: Generator[S], reference: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """The crops [T, S, S, 3] of a piece with the face of a reference [S, S, 3]."""
    state, mask, made = generator.begin(to_crops(reference), 1), soft_mask(piece.size), list[NDArray[np.uint8]]()
    around = ring(mask)
    for start in range(0, piece.frames, generator.chunk):
        at = np.minimum(np.arange(start, start + generator.chunk), piece.frames - 1)
        crops, landmarks = faces.crops[at], torch.from_numpy(faces.landmarks[at])
        masks = torch.from_numpy(mask).expand(1, len(at), 1, -1, -1)
        control = FaceControl(to_crops(crops)[None], masks, landmarks[None], torch.ones(1, len(at), dtype=torch.bool))
        out, state = generator.generate(control, state)
        for crop, face in list(zip(crops, out[0], strict=True))[: piece.frames - start]:
            target = crop.astype(np.float32)
            patch = to_patch(face)
            patch = match(patch, target, around).apply(patch)
            blended = target + mask[..., None] * (patch - target)
            made.append(np.rint(blended.clip(0, 255)).astype(np.uint8))
    return np.stack(made)
