"""Pictures and model values are each other's inverse; fitting keeps the middle and the aspect."""

import numpy as np
import torch

from worldmodel.pixels import fit, to_float, to_uint8


def test_every_value_comes_back() -> None:
    picture = np.arange(256, dtype=np.uint8).reshape(1, 8, 32, 1).repeat(3, -1)
    made = to_uint8(to_float(picture))
    assert np.array_equal(made, picture) and made.flags.c_contiguous
    assert to_float(picture)[0, 0].flatten()[[0, 51, 255]].tolist() == [-1.0, torch.tensor(51 / 127.5 - 1).item(), 1.0]


def test_values_are_rounded_and_clipped() -> None:
    values = torch.tensor([-2.0, -1.0, 0.0, 0.0039, 1.0, 3.0]).reshape(1, 1, 6).expand(3, 1, 6)
    assert to_uint8(values)[0, :, 1].tolist() == [0, 0, 128, 128, 255, 255]  # 127.5 rounds to even


def test_fit_cuts_both_sides() -> None:
    frame = np.zeros((40, 80, 3), np.uint8)
    frame[:, 20:60] = 200  # the middle half
    made = fit(frame, 20, 20)
    assert made.shape == (20, 20, 3) and (made == 200).all()
    assert fit(frame, 40, 80) is frame
    wide = fit(frame, 20, 40)
    np.testing.assert_array_equal(
        wide[:, :, 0], np.where((np.arange(40) >= 10) & (np.arange(40) < 30), 200, 0) * np.ones((20, 1))
    )
    assert fit(np.full((7, 9, 3), 9, np.uint8), 32, 32).shape == (32, 32, 3)


def test_fit_averages_the_middle() -> None:
    """30 x 60 to 6 x 6: the middle 30 columns, each pixel the mean of a 5 x 5 block."""
    picture = np.random.default_rng(0).integers(0, 256, (30, 60, 3), np.uint8)
    blocks = picture[:, 15:45].reshape(6, 5, 6, 5, 3).mean((1, 3))
    np.testing.assert_allclose(fit(picture, 6, 6), blocks, atol=0.51)
    np.testing.assert_array_equal(fit(picture.transpose(1, 0, 2), 6, 6), fit(picture, 6, 6).transpose(1, 0, 2))


def test_fit_of_extreme_shapes() -> None:
    assert fit(np.full((2, 2, 3), 9, np.uint8), 16, 32).shape == (16, 32, 3)
    line = np.zeros((1, 1_000_001, 3), np.uint8)
    line[0, 500_000] = 250
    assert (fit(line, 64, 64) == 250).all()  # and no picture of 64 x 64,000,064 on the way
