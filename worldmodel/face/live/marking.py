"""What every picture of a live stream carries: the visible label and the invisible watermark. There is no way without.

Before the first picture of a size leaves, a grey one is marked, encoded as the stream's are, decoded and looked at: if
the label cannot be read in it, or the watermark not found, nothing leaves.
"""

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.face.consent import Consent
from worldmodel.face.label import TEXT, draw_label
from worldmodel.face.watermark import Watermark, find
from worldmodel.serve.pictures import CodecName, decode, encode
from worldmodel.serve.protocol import Codec, in_words

LETTER = 5  # pixels: letters that are less tall or wide are not read
GREY = 128


class Marking:
    """The marks of pictures [height, width, 3] of one reference; a UserError unless they can be read from what leaves.

    The watermark's number is the first 16 bits of the reference's SHA-256.
    """

    def __init__(self, height: int, width: int, consent: Consent, codec: CodecName, quality: int) -> None:
        self.number = int(consent.reference_sha256[:4], 16)
        self._watermark = Watermark(height, width, self.number)
        self._check(height, width, codec, quality)

    def draw(self, picture: NDArray[np.uint8]) -> None:
        """Mark a picture in place."""
        draw_label(picture)
        self._watermark.draw(picture)

    def _check(self, height: int, width: int, codec: CodecName, quality: int) -> None:
        size = f"pictures of {width} x {height}"
        plain = np.full((height, width, 3), GREY, np.uint8)
        try:
            self.draw(plain)
            seen = decode(encode(plain, codec, quality), Codec[codec.upper()], width, height)
        except Exception as error:
            raise UserError(f"{size} cannot be marked as swapped, nothing is streamed ({in_words(error)})") from error
        if not readable(seen):
            raise UserError(f"the label cannot be read in {size}, nothing is streamed")
        found = find([seen])
        if not found.there or found.number != self.number:
            raise UserError(f"the watermark cannot be found in {size}, nothing is streamed")


def readable(marked: NDArray[np.uint8]) -> bool:
    """Whether a label is to be seen in a marked grey picture [H, W, 3]: bright letters of a size on a dark ground."""
    grey = marked.astype(np.int16).mean(-1)
    dark = grey < GREY - 40
    bright = grey > GREY + 60
    if not dark.any() or not bright.any():
        return False
    rows, columns = np.flatnonzero(bright.any(1)), np.flatnonzero(bright.any(0))
    tall, wide = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    return bool(tall >= LETTER and wide >= LETTER * len(TEXT))
