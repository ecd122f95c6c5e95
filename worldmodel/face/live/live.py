"""Everybody's streams: who may begin one, of what, and that each is freed."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from worldmodel.errors import UserError
from worldmodel.face.alignment import MEAN_FACE
from worldmodel.face.faces import Networks
from worldmodel.face.generator import CopyPaste, FaceControl, Generator, PoissonBlend
from worldmodel.face.label import TEXT
from worldmodel.face.live.marking import Marking
from worldmodel.face.live.messages import Change, Hello
from worldmodel.face.live.references import Reference
from worldmodel.face.live.swapping import Choice, Settings, Stock, Stream, consent_facts
from worldmodel.face.methods import METHODS, find_method
from worldmodel.face.pipeline import reference_face
from worldmodel.face.reading import CAMERA, Source, open_source
from worldmodel.face.sign import check_signed, signed, signing_key
from worldmodel.options import check_range
from worldmodel.serve.outbox import Outbox
from worldmodel.serve.pictures import encode

PROBE = (360, 640)  # height and width at which the marks are tried before anybody connects
LEAVING = 12.0  # seconds that a newcomer waits for a stream that is being freed
THUMBNAIL = 160  # pixels


class Full(Exception):
    """There is no room for one more stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """source: a file, folder, camera or URL of this server, or None. size: side of the baselines' regions. streams: at
    once, at most."""

    source: str | None = None
    rate: Fraction = Fraction(25)
    size: int | None = None
    streams: int = 1
    settings: Settings = field(default_factory=Settings)

    def check(self) -> None:
        """UserError for numbers out of range."""
        check_range(1, 8, faces=self.settings.faces)
        check_range(1, 120, every=self.settings.every)
        check_range(64, 1024, size=self.size)
        check_range(1, 64, max_streams=self.streams)


class Live:
    """See the module. Making it checks everything that can be checked: a UserError for the first thing amiss."""

    def __init__(self, references: Sequence[Reference], methods: Sequence[str], networks: Networks, plan: Plan) -> None:
        plan.check()
        self.plan = plan
        key = signing_key()
        check_signed(signed({"format": 1}, key), "the signing key")
        generators, known = _methods(methods, plan.size)
        self._people = {reference.name: reference.load() for reference in references}
        Marking(*PROBE, next(iter(self._people.values()))[0], "jpeg", 88)
        sizes = sorted({generator.size for generator in generators.values()})
        faces = {
            (reference.name, size): reference_face(
                self._people[reference.name][1], networks, size, str(reference.picture)
            )
            for reference in references
            for size in sizes
        }
        by_name = {reference.name: reference for reference in references}
        loaded = {name: consent.reference_sha256 for name, (consent, _) in self._people.items()}
        self.stock = Stock(networks, generators, known, by_name, loaded, faces, key)
        for generator in generators.values():
            _try(generator)
        self._streams: set[Stream] = set()
        self._leaving: set[Stream] = set()
        self._lock = threading.Lock()
        self._live = False
        if plan.source is not None:
            source = self._open()  # a camera or URL is closed again: it is opened for whoever looks
            self._live = source.info.live
            source.close()

    @property
    def streams(self) -> int:
        return len(self._streams)

    def facts(self) -> dict[str, Any]:
        """What a client can ask for."""
        methods = [
            {"name": name, "chunk": generator.chunk, "size": generator.size,
             "parameters": sum(p.numel() for p in dit.parameters()) if (dit := getattr(generator, "dit", None)) else 0}
            for name, generator in self.stock.methods.items()
        ]  # fmt: skip
        people = [{"name": name} | consent_facts(consent) for name, (consent, _) in self._people.items()]
        source = None if self.plan.source is None else {"name": _shown(self.plan.source), "live": self._live}
        return {
            "methods": methods, "references": people, "source": source, "label": TEXT, "streams": self.streams,
            "max_streams": self.plan.streams, "faces": self.plan.settings.faces,
        }  # fmt: skip

    def thumbnail(self, name: str) -> bytes | None:
        """A small JPEG of a reference; None if there is none of this name."""
        if name not in self._people:
            return None
        picture = self._people[name][1]
        scale = THUMBNAIL / max(picture.shape[:2])
        size = max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale))
        return encode(np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8), "jpeg", 88)

    async def join(self, hello: Hello, outbox: Outbox) -> Stream:
        """Begin a stream. Raises Full, UserError for a name that there is not or a consent that does not stand."""
        choice = self._chosen(Choice(next(iter(self.stock.methods)), next(iter(self.stock.references))), hello)
        if hello.source == "server" and self.plan.source is None:
            raise UserError("this server has no pictures of its own: send yours, with source client")
        opens = self._open if hello.source == "server" else None
        waited = 0.0
        while (why := self._refusal(opens is not None)) is not None:
            if not self._leaving or waited > LEAVING:
                raise Full(why)
            await asyncio.sleep(0.05)
            waited += 0.05
        stream = Stream(self.stock, self.plan.settings, hello, choice, outbox, opens)
        self._streams.add(stream)
        stream.begin()
        return stream

    def change(self, stream: Stream, change: Change) -> None:
        """Another method or reference. UserError for a name that there is not."""
        stream.change(self._chosen(stream.wanted, change))

    async def leave(self, stream: Stream) -> None:
        """Free a stream: its thread, its memory, its camera."""
        if stream not in self._streams:
            return
        self._leaving.add(stream)
        try:
            await asyncio.to_thread(stream.stop)
        finally:
            self._leaving.discard(stream)
            self._streams.discard(stream)

    def close(self) -> None:
        """Free all streams."""
        for stream in list(self._streams):
            stream.stop()
            self._streams.discard(stream)

    def _refusal(self, own: bool) -> str | None:
        """Why one more stream cannot begin. own: of the server's source."""
        if len(self._streams) >= self.plan.streams:
            most = self.plan.streams
            is_are = "1 stream runs" if most == 1 else f"{most} streams run"
            return f"{is_are} already, which is all that this server takes: try again when a page was closed"
        if own and self._live and any(stream.own for stream in self._streams):
            return f"{_shown(self.plan.source or '')} is used by another page: try again when it was closed"
        return None

    def _chosen(self, now: Choice, wish: Hello | Change) -> Choice:
        method = now.method if wish.method is None else wish.method
        reference = now.reference if wish.reference is None else wish.reference
        if method not in self.stock.methods:
            raise UserError(f"no method {method!r:.80} here; there are {', '.join(self.stock.methods)}")
        if reference not in self.stock.references:
            raise UserError(f"no reference {reference!r:.80} here; there are {', '.join(self.stock.references)}")
        return Choice(method, reference)

    def _open(self) -> Source:
        assert self.plan.source is not None
        return open_source(self.plan.source, self.plan.rate)


def _methods(names: Sequence[str], size: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generators by the names that clients ask for, and what each is known by in records.

    Baselines make chunks of a single picture here: they know nothing of the past, so that nothing need be late.
    """
    generators, known = {}, {}
    for name in names:
        baseline = name in METHODS
        generator, key = find_method(name, size if baseline else None)
        if isinstance(generator, CopyPaste | PoissonBlend):
            generator = replace(generator, chunk=1)
        short = name if baseline else _folder_name(name)
        if short in generators:
            raise UserError(f"--methods {name}: another one has the name '{short}'")
        generators[short], known[short] = generator, key
    if not generators:
        raise UserError(f"--methods: name one or more of {', '.join(METHODS)}, or folders of trained swaps")
    return generators, known


def _try(generator: Generator[Any]) -> None:
    """Make one chunk, so that nobody waits for what is slow the first time, and what cannot run fails here."""
    size = generator.size
    grey = torch.zeros(1, generator.chunk, 3, size, size)
    landmarks = torch.from_numpy(np.concatenate((np.zeros((17, 2)), MEAN_FACE))).float() * size
    control = FaceControl(
        grey, torch.ones_like(grey[:, :, :1]), landmarks.expand(1, generator.chunk, 68, 2),
        torch.ones(1, generator.chunk, dtype=torch.bool),
    )  # fmt: skip
    generator.generate(control, generator.begin(grey[0, 0], 1))


def _folder_name(name: str) -> str:
    folder = Path(name).resolve()
    return (folder.parent if folder.name == "model" else folder).name[:40].strip() or "trained"


def _shown(source: str) -> str:
    """A source's name without where it lies: paths and addresses may hold what is nobody's business."""
    return source if source.startswith(CAMERA) else source.split("?")[0].rstrip("/").rpartition("/")[2] or "source"
