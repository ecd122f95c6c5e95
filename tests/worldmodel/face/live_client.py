"""A client of the live swap, and people who may be swapped in, for tests."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np
from painted import GREEN, RED, networks, paint
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from worldmodel.face.consent import write_consent
from worldmodel.face.live.live import Live, Plan
from worldmodel.face.live.messages import shot
from worldmodel.face.live.references import allowed
from worldmodel.face.live.swapping import Settings
from worldmodel.serve.pictures import decode, encode
from worldmodel.serve.protocol import VERSION, FrameHeader, read_frame

HEIGHT, WIDTH = 180, 320


def agree(picture: Path) -> Path:
    """The record of consent beside a picture."""
    consent = picture.with_suffix(".json")
    write_consent(picture, f"{picture.stem} Person", "I agree to my face in tests of this program.", consent)
    return consent


def people(folder: Path, *names: str) -> Path:
    """A folder of references, each a face with a patch of its own colour in the middle, and its consent."""
    folder.mkdir()
    for name in names:
        face = paint((GREEN, 64, 48, 60))
        face[33:63, 49:79, 2] = 255 if name == "ann" else 0
        cv2.imwrite(str(folder / f"{name}.png"), face[..., ::-1])
        agree(folder / f"{name}.png")
    return folder


def live(folder: Path, methods: tuple[str, ...] = ("copy-paste", "poisson"), **plan: Any) -> Live:
    settings = Settings(occlusion=False)
    return Live(allowed(folder), methods, networks(), Plan(**{"size": 64, "settings": settings, **plan}))


def target(x: float = 150.0, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return paint((RED, x, 90, 70), height=height, width=width)


class Client:
    """Use it as a context manager. `messages` keeps what was said, `pictures` what was shown, until it is asked for."""

    def __init__(self, address: str, greets: bool = True, **hello: Any) -> None:
        bare, _, token = address.partition("?")
        url = f"ws{bare.removeprefix('http')}ws" + (f"?{token}" if token else "")
        self._stack = ExitStack()
        self.socket = self._stack.enter_context(connect(url, compression=None, max_size=None))
        self.number = 0
        self.said: list[dict[str, Any]] = []
        self.shown: list[tuple[FrameHeader, np.ndarray]] = []
        if greets:
            self.say("hello", **{"version": VERSION, "source": "client", "quality": 95, **hello})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def send(self, picture: np.ndarray, quality: int = 95) -> int:
        """A picture as JPEG, 40 ms after the one before; its number."""
        self.number += 1
        self.socket.send(shot(self.number, 40_000 * self.number, encode(picture, "jpeg", quality)))
        return self.number

    def take(self) -> None:
        received = self.socket.recv(20)
        if isinstance(received, str):
            self.said.append(json.loads(received))
        else:
            header, data = read_frame(received)
            self.shown.append((header, decode(data, header.codec, header.width, header.height)))

    def message(self, kind: str, fits: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The next message of a kind that fits; those before it are thrown away."""
        while True:
            while self.said:
                said = self.said.pop(0)
                if said["type"] == kind and fits(said):
                    return said
            self.take()

    def picture(self, fits: Callable[[FrameHeader], bool] = lambda _: True) -> tuple[FrameHeader, np.ndarray]:
        while True:
            while self.shown:
                header, pixels = self.shown.pop(0)
                if fits(header):
                    return header, pixels
            self.take()

    def last_words(self) -> tuple[str, int]:
        """The last error and the code with which the server closes."""
        line = ""
        try:
            while True:
                self.take()
                for said in self.said:
                    line = said["message"] if said["type"] == "error" else line
                self.said.clear()
        except ConnectionClosed as closed:
            return line, closed.rcvd.code if closed.rcvd else 1006


def middle(picture: np.ndarray, x: float = 150.0) -> np.ndarray:
    """The mean colour in the middle of the face at (x, 90)."""
    return picture[82:99, round(x) - 8 : round(x) + 9].reshape(-1, 3).mean(0)
