import io

import numpy as np
import pytest
from PIL import Image

from worldmodel.errors import UserError
from worldmodel.serve.pictures import decode, encode, read_picture
from worldmodel.serve.protocol import Codec

NO_PICTURE = "not a picture: it is no JPEG, PNG, WebP, BMP or GIF file"


def file(picture: np.ndarray, kind: str = "PNG", **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, kind, **options)
    return out.getvalue()


def gradient(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack((255 * y / height, 255 * x / width, 0 * x + 99), -1).astype(np.uint8)


def test_raw_is_exact() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    assert np.array_equal(decode(encode(picture, "raw", 1), Codec.RAW, 7, 5), picture)


@pytest.mark.parametrize(("name", "codec"), [("jpeg", Codec.JPEG), ("webp", Codec.WEBP)])
def test_lossy_codecs_keep_colours_in_their_channels(name: str, codec: Codec) -> None:
    picture = gradient(32, 48)
    back = decode(encode(picture, name, 95), codec, 48, 32)
    assert back.shape == picture.shape
    assert np.abs(back.astype(int) - picture).mean() < 3
    coarse = encode(picture, name, 5)
    assert len(coarse) < len(encode(picture, name, 95))


def test_broken_payload() -> None:
    with pytest.raises(ValueError, match="not a JPEG"):
        decode(b"nothing", Codec.JPEG, 4, 4)


def test_uploaded_picture_is_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    picture = np.zeros((20, 20, 3), np.uint8)
    picture[:, :10] = 255  # left half: after turning, the upper half
    upright = read_picture(file(picture, "PNG", exif=exif), 20, 20)
    assert upright[:9].min() > 200
    assert upright[11:].max() < 50


def test_grey_and_transparent_pictures() -> None:
    assert read_picture(file(np.full((9, 9), 77, np.uint8)), 8, 8).tolist() == [[[77] * 3] * 8] * 8
    assert read_picture(file(np.full((9, 9, 4), 77, np.uint8)), 8, 8).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"garbage", NO_PICTURE),
        (file(gradient(50, 50))[:-700], "not a picture"),
        (file(gradient(50, 50), "JPEG")[:400], "not a picture"),
        (file(np.zeros((7000, 7000), np.uint8)), "40 million"),
        (file(np.zeros((20000, 20000), np.uint8)), "far more pixels than the 40 million"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", NO_PICTURE),
        (file(gradient(50, 50), "TIFF"), NO_PICTURE),
        (file(gradient(50, 50), "QOI")[:400], NO_PICTURE),
    ],
    ids=["garbage", "truncated png", "truncated jpeg", "large", "bomb", "eps", "tiff", "qoi"],
)
def test_what_is_no_picture(data: bytes, text: str) -> None:
    with pytest.raises(UserError, match=text) as caught:
        read_picture(data, 16, 16)
    assert "0x" not in str(caught.value) and "PIL" not in str(caught.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_formats_that_are_read(kind: str) -> None:
    assert np.abs(read_picture(file(gradient(32, 32), kind), 32, 32).astype(int) - gradient(32, 32)).mean() < 16


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_a_damaged_picture_is_a_picture_or_one_line(kind: str) -> None:
    whole, rng = file(gradient(24, 24), kind), np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 4):
            data[place] = rng.integers(256)
        try:
            assert read_picture(bytes(data), 16, 16).shape == (16, 16, 3)
        except UserError as error:
            assert "\n" not in str(error)


def test_a_reader_that_trips_is_one_line(monkeypatch) -> None:
    def trip(*_: object) -> None:
        raise IndexError("index out of\nrange")

    monkeypatch.setattr("worldmodel.serve.pictures.ImageOps.exif_transpose", trip)
    with pytest.raises(UserError, match=r"not a picture that can be read .index out of range"):
        read_picture(file(gradient(9, 9)), 16, 16)
