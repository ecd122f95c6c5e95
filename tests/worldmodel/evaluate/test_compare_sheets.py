"""Contact sheets and films hold the frames that they name; recorded frames go on with the next recording."""

import numpy as np
import panorama
import pytest

from worldmodel.evaluate.compare.sheets import CELL, cells
from worldmodel.evaluate.lettering import Canvas
from worldmodel.evaluate.recordings import cut, onward, onward_frames


def numbered(lengths):
    """Recordings whose pixels are 10 * episode + frame."""
    episodes = []
    for number, length in enumerate(lengths):
        pixels = (
            np.full((length, 2, 2, 3), 10 * number, np.uint8) + np.arange(length, dtype=np.uint8)[:, None, None, None]
        )
        episodes.append(panorama.Recording(pixels, np.zeros((length, 1), np.float32)))
    return panorama.ArrayRecordings(tuple(episodes), ("a",))


def test_recorded_frames_go_on_with_the_next_episode():
    recordings = numbered([5, 3, 4])
    assert onward(recordings, 1, 1, 9) == [(1, 1, 3), (2, 0, 4), (0, 0, 3)]
    pieces = cut(recordings, [(1, 1), (0, 0)], 2)
    found = onward_frames(recordings, pieces, np.array([0, 1, 2, 5, 6, 8]))[..., 0, 0, 0]
    assert found.tolist() == [[11, 12, 20, 23, 0, 2], [0, 1, 2, 10, 11, 20]]


def test_canvas_keeps_frames_as_they_are_and_writes_beside_them():
    frame = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    canvas = Canvas(60, 200)
    canvas.paste(frame, 35, 10)
    canvas.write("frame 7", 12, 100, align="center")
    found = canvas.finish()
    assert (found[35:55, 10:40] == frame).all()
    ink = np.argwhere(found[:30].min(-1) < 128)
    assert len(ink) > 20
    assert 4 <= ink[:, 0].mean() <= 20
    assert ink[:, 1].mean() == pytest.approx(100, abs=6)
    assert (found[56:] == 255).all()


def test_cells_have_one_width():
    small = cells(np.arange(2 * 3 * 8 * 16 * 3, dtype=np.uint8).reshape(2, 3, 8, 16, 3))
    assert small.shape == (2, 3, 64, CELL, 3)
    assert (small[0, 0, :8, :8] == small[0, 0, 0, 0]).all()
    large = cells(np.full((1, 128, 256, 3), 77, np.uint8))
    assert large.shape == (1, 64, CELL, 3)
    assert (large == 77).all()
