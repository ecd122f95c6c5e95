"""One client's stream: its dream, its pace, its queue. Two threads meet here.

The event loop calls the methods under "doors"; they only leave notes. The engine's thread calls `wait`, `turn` and
`close`, and owns everything that has to do with the model. Nothing is shared with other sessions.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel
from worldmodel.sampler import AnySampler

from .beside import Beside
from .bindings import rest
from .downloads import Downloads
from .dream import Dream, NotFinite, Opening, advance, begin, chunk_action, context_frames, from_footage, remembered
from .inputs import InputTimeline
from .keepsakes import Keepsakes
from .limits import Limits
from .meter import Meter
from .outbox import Outbox
from .projector import Choices, Projector, Stamp
from .protocol import (
    CLOSE_FAILED,
    CONTEXT,
    HELD,
    REAL,
    Error,
    Hello,
    Notice,
    Paused,
    ProtocolError,
    ServerMessage,
    Settings,
    Started,
    Stats,
    Welcome,
    in_words,
    write_message,
)
from .replay import Deed, Replay, sampler_of, write_replay
from .sources import Footage, RealWorldFactory


@dataclass(frozen=True, slots=True)
class _Mark:
    """A moment to return to."""

    dream: Dream
    log: tuple[Deed, ...]
    index: int


class Session:
    """One client."""

    def __init__(
        self,
        world: WorldModel,
        hello: Hello,
        opening: Opening,
        *,
        limits: Limits,
        downloads: Downloads,
        wake: Callable[[], None],
        real: RealWorldFactory | None = None,
    ) -> None:
        self.world, self.limits = world, limits
        self.choices = self._choices(hello)
        self.outbox = Outbox(limits.queue * world.pixel_frames, hello.window, wake)
        self.meter = Meter()
        self.projector = Projector(self.outbox, world.fps)
        self.seen = time.monotonic()
        self._wake, self._factory = wake, real
        self._keepsakes = Keepsakes(downloads, world.fps, limits.video, self.say)
        self._inputs = InputTimeline(world.actions, world.dit.chunk, world.pixel_frames / world.fps)
        self._requests: deque[Callable[[], object]] = deque()
        self._sampler = sampler_of(world, self.choices.steps)
        self._due = 0.0
        self._paused, self._done, self._detached = hello.paused, False, False
        # of the newest stream
        self._dream: Dream | None = None
        self._source, self._start = "start", hello.start
        self._log: list[Deed] = []
        self._script: deque[Deed] = deque()
        self._mark: _Mark | None = None
        self._beside: Beside | None = None
        self.restart(lambda: opening, "start", hello.start)

    # -- doors: called from the event loop -----------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """Seed of the newest stream."""
        return self._dream.opening.seed if self._dream else 0

    @property
    def active(self) -> bool:
        """Whether somebody holds a key."""
        return self._inputs.pressed

    def input(self, seq: int, action: dict[str, float]) -> None:
        """Note what is held from now on. Raises ProtocolError."""
        self._inputs.put(seq, action, time.perf_counter())

    @property
    def seq(self) -> int:
        """Number of the newest input."""
        return self._inputs.newest

    def detach(self) -> None:
        """The connection broke: no chunk is made and nothing is sent until `resume`."""
        self._detached = True
        self.outbox.hold()

    def resume(self, hello: Hello, welcome: Welcome) -> None:
        """The client is back, with the settings of its hello and no key held. What waits for it follows the welcome."""
        sampler = sampler_of(self.world, hello.steps or 0)

        def go_on() -> None:
            self.choices, self._sampler, self._paused = self._choices(hello), sampler, hello.paused
            self._due = time.perf_counter()
            where = [] if self._dream is None else [self._started(self._dream)]
            self.outbox.reopen(hello.window, [write_message(message) for message in (welcome, *where)])
            if self._paused:
                self.say(Paused(on=True))

        self._inputs.release()
        self._detached = False
        self._tell(go_on)

    def pause(self, on: bool) -> None:
        self._ask(lambda: self._pause(on))

    def settings(self, change: Settings) -> None:
        """Use other settings from the next chunk on. Raises UserError."""
        wanted = {name: getattr(change, name) for name in ("codec", "quality", "policy", "pace", "steps")}
        changed = {name: value for name, value in wanted.items() if value is not None}
        sampler_of(self.world, change.steps or 0)

        def use() -> None:
            self.choices = replace(self.choices, **changed)
            self._sampler = sampler_of(self.world, self.choices.steps)
            self._due = time.perf_counter()

        self._ask(use)

    def restart(self, make: Callable[[], Opening], source: str, index: int, deeds: tuple[Deed, ...] = ()) -> None:
        """Begin anew from what `make` returns (called in the engine's thread), and play the deeds of a replay."""
        self._ask(lambda: self._open(make(), source, index, deeds))

    def reset(self, seed: int | None) -> None:
        """Begin anew from the same beginning."""

        def again() -> None:
            opening = self._now().opening
            opening = replace(opening, seed=opening.seed if seed is None else seed)
            if self._source == "real" and self._beside is not None:
                self._open_beside(opening.seed)
            else:
                self._open(opening, self._source, self._start)

        self._ask(again)

    def bookmark(self) -> None:
        """Remember this moment."""

        def set_mark() -> None:
            self._mark = _Mark(self._now().copy(), tuple(self._log), self.projector.index)
            self.say(Notice(text="bookmark set"))

        self._ask(set_mark)

    def back(self) -> None:
        """Return to the bookmark."""
        self._ask(self._return)

    def record(self, on: bool) -> None:
        """Start or finish a video."""
        keep = self._keepsakes
        self._ask((lambda: keep.start(f"dream-{self.seed}.mp4")) if on else keep.finish)

    def save(self) -> None:
        """Make a replay file."""
        self._ask(self._save)

    def real(self, on: bool) -> None:
        """Run the simulator beside the dream, or stop showing it."""
        self._ask(lambda: self._show_real(on))

    def from_real(self, seed: int | None) -> None:
        """Begin anew where the simulator stands; with a seed, in a new episode of it."""
        self._ask(lambda: self._open_beside(seed))

    def say(self, message: ServerMessage) -> None:
        """Send a control message; from any thread."""
        self.outbox.say(write_message(message))

    def fail(self, line: str) -> None:
        """End the session with an error; from any thread."""
        self.outbox.end(CLOSE_FAILED, "failed", write_message(Error(message=line, fatal=True)))

    def stats(self, clients: int) -> Stats:
        """The numbers of this moment."""
        dream, now = self._dream, time.perf_counter()
        return Stats(
            stream=self.projector.stream, fps=round(self.meter.rate(now), 2), chunk=self.meter.latency(),
            stages=self.meter.stages(), queue=self.outbox.waiting, queue_limit=self.outbox.limit,
            drops=self.outbox.drops, memory=remembered(self.world, dream) if dream else 0,
            memory_bytes=dream.state.memory.nbytes if dream else 0, held=dream.held if dream else 0,
            frames=self.projector.index, steps=self.choices.steps, paused=self._paused,
            recording=self._keepsakes.recording, clients=clients,
        )  # fmt: skip

    def _ask(self, request: Callable[[], object]) -> None:
        """Leave a request for the engine's thread."""
        if len(self._requests) >= self.limits.requests:
            raise ProtocolError(f"more than {self.limits.requests} requests at once")
        self._requests.append(request)
        self._wake()

    def _choices(self, hello: Hello) -> Choices:
        return Choices(
            codec=hello.codec, quality=hello.quality, policy=hello.policy,
            pace=self.world.fps if hello.pace is None else hello.pace, steps=hello.steps or 0,
        )  # fmt: skip

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def wait(self, now: float) -> float | None:
        """Seconds until this session wants a turn: 0 now, None not before something changes."""
        if self._done or self._detached:
            return None
        if self._requests:
            return 0.0
        full = self.choices.waits and not self.outbox.room(self.world.pixel_frames)
        behind = self._beside is not None and not self._beside.ready
        if self._dream is None or self._paused or full or behind:
            return None
        return max(0.0, self._due - now)

    def turn(self, now: float) -> None:
        """Do what was asked for, or make the next chunk."""
        try:
            if not self._requests:
                self._make(now)
            while self._requests:
                self._requests.popleft()()
        except UserError as error:
            self.say(Error(message=in_words(error)))
        except NotFinite as error:
            self._done = True
            self.fail(str(error))

    def close(self) -> None:
        """Let go of everything, in the background. The session gets no further turn."""
        self._done = True
        self._dream = self._mark = None
        self._requests.clear()
        self._keepsakes.close()
        if self._beside is not None:
            self._beside.close()

    def join(self, timeout: float) -> None:
        """Wait for the simulator of a closed session, so many seconds at most."""
        if self._beside is not None:
            self._beside.join(timeout)

    def _make(self, now: float) -> None:
        """The next chunk, under the keys or under the script of a replay."""
        scripted = bool(self._script)
        seq, action = self._inputs.take(now)
        deed = self._script.popleft() if scripted else Deed(chunk_action(self.world, action), self.choices.steps)
        pictures, self._dream = advance(self.world, self._sampler_for(deed), deed.action, self._now())
        if len(self._log) < self.limits.replay:
            self._log.append(deed)

        frames, stamp = pictures.frames, self.projector.stamp(seq, len(pictures.frames), now)
        before = time.perf_counter()
        self.projector.show(frames, stamp, HELD if pictures.held else 0, self.choices)
        after = time.perf_counter()
        self.meter.chunk(after, len(frames), after - now, pictures.seconds | {"encode": after - before})

        if self._beside is not None and self._beside.shown:
            show = self.projector.show
            self._beside.step(self._executed(deed), lambda real: show(real[-stamp.size :], stamp, REAL, self.choices))
        self._keepsakes.add(frames)
        if self._dream.state.memory.nbytes > self.limits.memory:
            self._pause(True, f"the memory has grown over {self.limits.memory >> 20} MB: restart to go on")
        elif scripted and not self._script:
            self._pause(True, "the replay has ended: go on, and it is yours to drive")
        self._due = self._next_due(now, len(frames))

    def _next_due(self, now: float, pictures: int) -> float:
        """When to start the next chunk: at the pace; what was missed by more than a chunk is not caught up with."""
        return now if self.choices.pace == 0 else max(self._due + pictures / self.choices.pace, now)

    def _open(self, opening: Opening, source: str, index: int, deeds: tuple[Deed, ...] = ()) -> Stamp:
        first = self._begin(begin(self.world, opening), source, index)
        self._script = deque(deeds)
        return first

    def _begin(self, dream: Dream, source: str, start: int, log: tuple[Deed, ...] = (), index: int = 0) -> Stamp:
        """Show a dream from its present moment on, as a new stream; returns the stamp of its first picture."""
        self._dream, self._source, self._start, self._log, self._script = dream, source, start, list(log), deque()
        self._due = time.perf_counter()
        self._inputs.take(self._due)  # what was tapped before belongs to the old stream
        self.projector.begin(index)
        self.say(self._started(dream))
        first = self.projector.stamp(0, 1, self._due)
        self.projector.show(dream.last[None], first, CONTEXT, self.choices)
        return first

    def _started(self, dream: Dream) -> Started:
        """What the pictures that follow belong to."""
        context, stream = dream.opening.context, self.projector.stream
        given = 0 if context is None else context.x.shape[1]
        return Started(stream=stream, source=self._source, index=self._start, seed=self.seed, context=given)

    def _return(self) -> None:
        if self._mark is None:
            raise UserError("there is no bookmark yet")
        mark = self._mark
        self._begin(mark.dream.copy(), "bookmark", 0, mark.log, mark.index)

    def _pause(self, on: bool, reason: str = "") -> None:
        self._paused, self._due = on, time.perf_counter()
        self.say(Paused(on=on, reason=reason))

    def _save(self) -> None:
        if len(self._log) < self._now().chunks:
            raise UserError(f"the stream is longer than the {self.limits.replay} chunks that a replay file holds")
        data = write_replay(self.world, Replay(self._now().opening, tuple(self._log)))
        self._keepsakes.save(data, f"dream-{self.seed}.safetensors")

    def _show_real(self, on: bool) -> None:
        spec, world = self.world.actions, self.world
        if self._factory is None or spec is None:
            raise UserError("no simulator of this world is installed")
        new = on and self._beside is None
        if new:
            bounds = zip(spec.low, spec.high, strict=True)
            still = np.array([[rest(low, high) for low, high in bounds]] * spec.pack, np.float32)
            temporal, latents = world.tokenizer.temporal, context_frames(world)
            self._beside = Beside(
                self._factory, temporal=temporal, latents=latents, still=still, on_failure=self._real_failed
            )
        if self._beside is not None:
            self._beside.shown = on
        if on:
            self._open_beside(self.seed if new else None)

    def _open_beside(self, seed: int | None) -> None:
        """The simulator gives a beginning, the dream starts from it."""
        if self._beside is None:
            raise UserError("the real world is not running: switch it on first")
        wanted = self.seed if seed is None else seed
        self._beside.footage(seed, lambda footage: self._tell(lambda: self._open_real(footage, wanted)))

    def _open_real(self, footage: Footage, seed: int) -> None:
        if self._beside is not None:
            self._beside.asked = False
        first = self._open(from_footage(self.world, footage, seed), "real", 0)
        self.projector.show(footage.pixels[-1:], first, CONTEXT | REAL, self.choices)

    def _real_failed(self, line: str) -> None:
        """Called in the simulator's thread."""

        def forget() -> None:
            self._beside = None
            self.say(Error(message=line))

        self._tell(forget)

    def _tell(self, request: Callable[[], object]) -> None:
        """Leave a request for the engine's thread; from the simulator's, which is not limited."""
        self._requests.append(request)
        self._wake()

    def _executed(self, deed: Deed) -> np.ndarray:
        """A deed [K, A] in environment units, [K, pack, D]: exactly what the model was told."""
        spec = self.world.actions
        if spec is None:
            raise UserError("this world has no actions")
        return spec.denormalise(deed.action.unflatten(-1, (spec.pack, spec.dim))).numpy()

    def _sampler_for(self, deed: Deed) -> AnySampler:
        return self._sampler if deed.steps == self.choices.steps else sampler_of(self.world, deed.steps)

    def _now(self) -> Dream:
        if self._dream is None:
            raise UserError("the stream has not begun yet")
        return self._dream
