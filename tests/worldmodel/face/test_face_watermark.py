"""The invisible mark: survives H.264, small enough not to be seen, and is not found where it is not."""

from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest

from worldmodel.face.watermark import STRENGTH, Watermark, find


@cache
def scene(count: int, height: int = 360, width: int = 640) -> tuple[np.ndarray, ...]:
    """Smooth structures at several scales, moving, with grain: far more uneven than the mark is strong."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    waves = [(rng.uniform(-0.06, 0.06, 2), rng.uniform(0, 6), rng.uniform(-2, 2)) for _ in range(24)]
    out = []
    for i in range(count):
        grey = 120 + sum(7 * np.sin(a * x + b * y + phase + 0.1 * v * i) for (a, b), phase, v in waves)
        grain = rng.normal(0, 3, (height, width))
        out.append(np.repeat(np.clip(grey + grain, 0, 255)[..., None], 3, -1).astype(np.uint8))
    return tuple(out)


@pytest.mark.needs("h264")
@pytest.mark.parametrize(("quality", "shade"), [(18, 1.0), (26, 1.0), (26, 0.3)])
def test_it_is_found_after_h264_with_its_number(tmp_path: Path, quality: int, shade: float) -> None:
    pictures, number = [(picture * shade).astype(np.uint8) for picture in scene(24)], 0xB3A5
    assert not find(pictures).there
    mark = Watermark(360, 640, number)
    with av.open(str(tmp_path / "a.mp4"), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        stream.options = {"crf": str(quality), "preset": "veryfast"}
        for picture in pictures:
            before = picture.copy()
            mark.draw(picture)
            assert np.abs(picture.astype(int) - before).max() == (STRENGTH if shade == 1 else 1)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    again = av.open(str(tmp_path / "a.mp4"))
    found = find(frame.to_ndarray(format="rgb24") for frame in again.decode(video=0))
    again.close()
    assert found.there and found.number == number


def test_smooth_places_get_a_single_level() -> None:
    picture = np.full((360, 640, 3), 140, np.uint8)
    picture[:, 320:] = np.random.default_rng(2).integers(110, 170, (360, 320, 1))
    before = picture.copy()
    Watermark(360, 640, 9).draw(picture)
    differs = np.abs(picture.astype(int) - before)
    assert (differs[:, :312] == 1).all() and (differs[:, 328:] == STRENGTH).all()
    assert find([picture]).number == 9


def test_unmarked_noise_is_about_a_normal_variable() -> None:
    rng = np.random.default_rng(1)
    seen = [find([rng.integers(0, 256, (96, 160, 3), np.uint8)]).certainty for _ in range(60)]
    assert 0.6 < np.std(seen) < 1.4 and max(map(abs, seen)) < 5


@pytest.mark.parametrize(("height", "width"), [(1, 1), (97, 131), (16, 16)])
def test_any_size_and_saturated_pixels(height: int, width: int) -> None:
    for value in (0, 255):
        picture = np.full((height, width, 3), value, np.uint8)
        Watermark(height, width, 7).draw(picture)
        assert np.abs(picture.astype(int) - value).max() <= STRENGTH
    find([picture])
    assert not find([]).there
