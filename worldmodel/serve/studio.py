"""What all sessions of one server share: the world, the engine's thread, the files, the limits."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel
from worldmodel.pixels import fit, to_uint8

from .bindings import bind
from .downloads import Downloads
from .dream import advance, begin, chunk_action, context_frames, from_footage, from_picture, from_start, picture_size
from .engine import Engine
from .limits import Limits
from .pictures import encode, read_picture
from .places import Line, Places
from .protocol import (
    MAX_TEXT,
    MAX_UPLOAD,
    UPLOAD_PICTURE,
    VERSION,
    Hello,
    Notice,
    Restart,
    Welcome,
    WorldFacts,
    in_words,
)
from .replay import maker, read_replay, sampler_of
from .session import Session
from .sources import Footage, RealWorldFactory, Recordings
from .worlds import Worlds

LAST_WORDS = 3.0  # seconds that clients have to read why the engine died


class Studio:
    """Opens and closes sessions, and finds them their beginnings.

    world: the first one, for everything that the worlds have in common.
    """

    def __init__(
        self,
        world: WorldModel,
        limits: Limits,
        *,
        name: str = "world",
        also: Mapping[str, WorldModel] | None = None,
        real: RealWorldFactory | None = None,
        recordings: Recordings | None = None,
        threads: int = 1,
    ) -> None:
        """name: of the world. also: others of the same format by their names, to be driven by the same keys.

        Raises UserError if they differ in their format, or two have one name.
        """
        if name in (also or {}):
            raise UserError(f"two worlds have the name '{name}'")
        self.worlds = Worlds.of({name: world} | dict(also or {}))
        self.world, self.limits = self.worlds.first, limits
        self.real = real if world.actions is not None else None
        self.recordings = recordings
        self.downloads = Downloads()
        self.engine = Engine(threads)
        self.places = Places(limits, self.engine.remove)
        self._reading = threading.Lock()  # recordings are read by one thread at a time
        self._thumbnails: dict[int, bytes] = {}

    def open(self, on_failure: Callable[[], None] = lambda: None) -> None:
        """Start the engine and make the first chunks. Raises UserError if the world cannot run.

        on_failure: called in the engine's thread if it dies later; the sessions have got their last message by then.
        """

        def told() -> None:
            until = time.monotonic() + LAST_WORDS
            while self.places.sessions and time.monotonic() < until:
                time.sleep(0.02)
            on_failure()

        try:
            self.engine.start(self._warm_up, told)
        except UserError as error:
            raise UserError(f"this world cannot be streamed: {error}") from error
        except Exception as error:  # whatever arithmetic and memory of a device can raise
            raise UserError(f"this world cannot be streamed, its first chunk fails: {in_words(error)}") from error

    def close(self) -> None:
        """End the engine and delete the files. Does nothing a second time."""
        self.engine.stop()
        self.downloads.close()

    async def join(self, hello: Hello, line: Line) -> Session:
        """The session of a client that has connected: its own one if it can be resumed, else a new one.

        Raises Full, BadToken, or UserError if it asks for what this world does not have.
        """
        opening = from_start(self.world, hello.start, hello.seed)
        sampler_of(self.world if hello.world is None else self.worlds.find(hello.world), hello.steps or 0)
        if hello.resume is not None and (claimed := await self.places.claim(hello.resume, line)) is not None:
            session, token = claimed
            session.resume(hello, replace(self.welcome(), resume=token, resumed=True, seq=session.seq))
            return session
        self.places.make_room()
        session = Session(
            self.worlds, hello, opening, limits=self.limits, downloads=self.downloads, wake=self.engine.wake,
            real=self.real,
        )  # fmt: skip
        session.say(replace(self.welcome(), resume=self.places.take(session, line)))
        if hello.resume is not None:
            kept = f"{self.limits.resume:g} seconds"
            session.say(Notice(text=f"a broken stream is kept for {kept} at most, yours is gone: a new one begins"))
        self.engine.add(session)
        return session

    @property
    def sessions(self) -> list[Session]:
        """All that have a place, with or without a connection."""
        return self.places.sessions

    @property
    def card(self) -> dict[str, Any]:
        """The model card of the first world; empty if what it says about itself is no card."""
        return _card(self.world)

    def welcome(self) -> Welcome:
        """What this world is."""
        world, (height, width) = self.world, picture_size(self.world)
        worlds = [_facts(name, each) for name, each in self.worlds.named.items()]
        return Welcome(
            version=VERSION, title=worlds[0].title, width=width, height=height,
            fps=world.fps, chunk=world.pixel_frames, context=context_frames(world) * world.tokenizer.temporal,
            starts=0 if world.starts is None else world.starts.batch,
            frames=self.recordings.frames if self.recordings else 0, real=self.real is not None,
            sampler=worlds[0].sampler, steps=worlds[0].steps, parameters=worlds[0].parameters, worlds=worlds,
            controls=list(bind(world.actions)),
            limits={
                "sessions": self.limits.sessions, "idle": self.limits.idle, "resume": self.limits.resume,
                "text": MAX_TEXT, "upload": MAX_UPLOAD,
            },
        )  # fmt: skip

    async def restart(self, session: Session, wish: Restart) -> None:
        """Restart a session from where it wishes. Raises UserError if there is no such place."""
        seed = session.seed if wish.seed is None else wish.seed
        match wish.source:
            case "start":
                opening = from_start(self.world, wish.index, seed)
                session.restart(lambda: opening, "start", wish.index)
            case "frame":
                footage = await asyncio.to_thread(self._footage, wish.index)
                session.restart(lambda: from_footage(self.world, footage, seed), "frame", wish.index)
            case "real":
                session.from_real(wish.seed)
            case "bookmark":
                session.back()

    async def upload(self, session: Session, kind: int, data: bytes) -> None:
        """Restart a session from an uploaded picture, or play an uploaded replay. Raises UserError."""
        if kind == UPLOAD_PICTURE:
            height, width = picture_size(self.world)
            picture = await asyncio.to_thread(read_picture, data, height, width)
            session.restart(lambda: from_picture(self.world, picture, session.seed), "picture", 0)
        else:
            name = await asyncio.to_thread(maker, self.worlds, data)
            replay = await asyncio.to_thread(read_replay, self.worlds.named[name], data)
            session.restart(lambda: replay.opening, "replay", 0, replay.deeds, name)

    def start_picture(self, index: int) -> bytes:
        """The last picture of one of the beginnings, as JPEG. Raises UserError."""
        context = from_start(self.world, index, 0).context
        if context is None:
            raise UserError("this world starts from nothing")
        if index not in self._thumbnails:
            with torch.no_grad():
                pixels = self.world.tokenizer.decode(context.x)
            self._thumbnails[index] = encode(to_uint8(pixels[0, -1]), "jpeg", 90)
        return self._thumbnails[index]

    def frame_picture(self, frame: int) -> bytes:
        """A frame of the recordings in the world's size, as JPEG. Raises UserError."""
        recordings = self._recordings(frame)
        with self._reading:
            picture = recordings.picture(frame)
        return encode(fit(picture, *picture_size(self.world)), "jpeg", 90)

    def _footage(self, frame: int) -> Footage:
        recordings = self._recordings(frame)
        with self._reading:
            footage = recordings.footage(frame, context_frames(self.world))
        size = picture_size(self.world)
        return Footage(np.stack([fit(picture, *size) for picture in footage.pixels]), footage.actions)

    def _recordings(self, frame: int) -> Recordings:
        if self.recordings is None:
            raise UserError("this server was started without recordings")
        if not 0 <= frame < self.recordings.frames:
            raise UserError(f"there are {self.recordings.frames} recorded frames, number {frame} is none of them")
        return self.recordings

    def _warm_up(self) -> None:
        """The first chunks of a process are slow, nobody should see them; and they show whether the worlds run."""
        for world in self.worlds.named.values():
            _check(world)
            dream = begin(world, from_start(world, 0, 0))
            spec = world.actions
            still = np.zeros((world.dit.chunk, spec.dim if spec else 0), np.float32)
            while dream.chunks < 2 or dream.failing:  # it raises NotFinite if it goes on failing
                _, dream = advance(world, world.stream.sampler, chunk_action(world, still), dream)


def _card(world: WorldModel) -> dict[str, Any]:
    return world.card if isinstance(world.card, dict) else {}


def _facts(name: str, world: WorldModel) -> WorldFacts:
    return WorldFacts(
        name=name, title=str(_card(world).get("title", "a learned world")),
        parameters=sum(p.numel() for p in world.dit.parameters()), sampler=type(world.stream.sampler).__name__,
        steps=getattr(world.stream.sampler, "steps", 0),
    )  # fmt: skip


def _check(world: WorldModel) -> None:
    """Raise UserError for a world whose pictures would have no time, or no beginning."""
    if not (math.isfinite(world.fps) and world.fps > 0):
        raise UserError(f"its fps must be a finite number above 0, not {world.fps}")
    if world.starts is None:
        return
    if world.starts.batch == 0 or world.starts.x.shape[1] == 0:
        raise UserError(f"its starts hold no frame, their shape is {list(world.starts.x.shape)}")
    for name, values in (("x", world.starts.x), ("action", world.starts.control.action)):
        bad = ~torch.isfinite(values).flatten(1).all(1)
        if bad.any():
            raise UserError(f"its starts: {name} of beginning {int(bad.nonzero()[0])} is not finite")
