"""What all sessions of one server share: the world, the engine's thread, the files, the limits."""

import asyncio
import threading

import numpy as np
import torch

from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel

from .bindings import bind
from .downloads import Downloads
from .dream import advance, begin, chunk_action, context_frames, from_footage, from_picture, from_start, picture_size
from .engine import Engine
from .limits import Limits
from .pictures import encode, fit, read_picture, to_uint8
from .protocol import MAX_TEXT, MAX_UPLOAD, UPLOAD_PICTURE, VERSION, Hello, Restart, Welcome
from .replay import read_replay
from .session import Session
from .sources import Footage, RealWorldFactory, Recordings


class Full(Exception):
    """There is no room for one more session."""


class Studio:
    """Opens and closes sessions, and finds them their beginnings."""

    def __init__(
        self,
        world: WorldModel,
        limits: Limits,
        *,
        real: RealWorldFactory | None = None,
        recordings: Recordings | None = None,
        threads: int = 1,
    ) -> None:
        self.world, self.limits = world, limits
        self.real = real if world.actions is not None else None
        self.recordings = recordings
        self.downloads = Downloads()
        self.engine = Engine(threads)
        self.sessions: set[Session] = set()
        self._reading = threading.Lock()  # recordings are read by one thread at a time
        self._thumbnails: dict[int, bytes] = {}

    def open(self) -> None:
        """Start the engine."""
        self.engine.start(self._warm_up)

    def close(self) -> None:
        """End the engine and delete the files."""
        self.engine.stop()
        self.downloads.close()

    def join(self, hello: Hello) -> Session:
        """A session for a client. Raises Full, or UserError if it asks for what this world does not have."""
        if len(self.sessions) >= self.limits.sessions:
            raise Full(f"all {self.limits.sessions} places of this server are taken: try again when somebody has left")
        opening = from_start(self.world, hello.start, hello.seed)
        session = Session(
            self.world, hello, opening, limits=self.limits, downloads=self.downloads, wake=self.engine.wake,
            real=self.real,
        )  # fmt: skip
        session.say(self.welcome())
        self.sessions.add(session)
        self.engine.add(session)
        return session

    def leave(self, session: Session) -> None:
        """Forget a session."""
        self.sessions.discard(session)
        self.engine.remove(session)

    def welcome(self) -> Welcome:
        """What this world is."""
        world, (height, width) = self.world, picture_size(self.world)
        return Welcome(
            version=VERSION, title=str(world.card.get("title", "a learned world")), width=width, height=height,
            fps=world.fps, chunk=world.pixel_frames, context=context_frames(world) * world.tokenizer.temporal,
            starts=0 if world.starts is None else world.starts.batch,
            frames=self.recordings.frames if self.recordings else 0, real=self.real is not None,
            sampler=type(world.stream.sampler).__name__, steps=getattr(world.stream.sampler, "steps", 0),
            parameters=sum(p.numel() for p in world.dit.parameters()), controls=list(bind(world.actions)),
            limits={
                "sessions": self.limits.sessions, "idle": self.limits.idle, "text": MAX_TEXT, "upload": MAX_UPLOAD,
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
            replay = await asyncio.to_thread(read_replay, self.world, data)
            session.restart(lambda: replay.opening, "replay", 0, replay.deeds)

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
        """The first chunks of a process are slow: nobody should see them."""
        dream = begin(self.world, from_start(self.world, 0, 0))
        spec = self.world.actions
        still = np.zeros((self.world.dit.chunk, spec.dim if spec else 0), np.float32)
        for _ in range(2):
            _, dream = advance(self.world, self.world.stream.sampler, chunk_action(self.world, still), dream)
