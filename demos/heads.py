"""Look at rendered heads and their exact swaps: a contact sheet or a video.

    python demos/heads.py heads.png
    python demos/heads.py heads.mp4 --clips 6 --frames 100 --size 96

A row of the sheet is a clip: the reference, then the target's frames, below them the same frames with the new face. A
video shows the clips beside each other: reference, target, swap. Nobody here is real.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from worldmodel.datasets.heads.swaps import HeadSwaps
from worldmodel.errors import UserError
from worldmodel.folders import check_creatable
from worldmodel.pixels import check_video, enlarge, to_uint8, write_video


def sheet(reference: NDArray[np.uint8], target: NDArray[np.uint8], swap: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """reference [B, S, S, 3], target and swap [B, T, S, S, 3] -> [B * 2 * S, (1 + T) * S, 3]."""
    lines = [np.concatenate((reference[:, None], each), 1) for each in (target, swap)]
    rows = np.stack(lines, 1).transpose(0, 1, 3, 2, 4, 5)  # [B, 2, S, 1 + T, S, 3]
    return rows.reshape(rows.shape[0] * 2 * rows.shape[2], -1, 3)


def film(reference: NDArray[np.uint8], target: NDArray[np.uint8], swap: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same -> [T, 3 * S, B * S, 3]."""
    held = np.broadcast_to(reference[:, None], target.shape)
    stacked = np.concatenate((held, target, swap), 2)  # [B, T, 3 * S, S, 3]
    frames = stacked.transpose(1, 2, 0, 3, 4)
    return frames.reshape(*frames.shape[:2], -1, 3)


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a .png, or a video's name")
    parser.add_argument("--clips", type=int, default=6)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int, default=64, help="pixels of a face's sides")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(args)
    try:
        still = given.out.suffix.lower() == ".png"
        if still:
            check_creatable(given.out)
        else:
            check_video(given.out)
        data = HeadSwaps(
            size=given.size, length=given.frames, batch=given.clips, seed=given.seed, fps=4 if still else 25
        )
        clip = data.clips("test", torch.arange(given.clips), given.frames)
        shown = (to_uint8(part) for part in (clip.control.reference[:, 0], clip.control.target.crops, clip.x))
        if still:
            cv2.imwrite(str(given.out), enlarge(sheet(*shown), 2)[..., ::-1])
        else:
            write_video(given.out, enlarge(film(*shown), 2), data.fps)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(given.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
