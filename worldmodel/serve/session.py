"""One client's stream: its dream, its pace, its queue. Two threads meet here.

The event loop calls the methods under "doors"; they only leave notes. The engine's thread calls `wait`, `turn` and
`close`, and owns the dream (stream.py) and the simulator (companion.py). Nothing is shared with other sessions.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from worldmodel.errors import UserError
from worldmodel.kernels import backend

from .companion import Companion
from .downloads import Downloads
from .dream import NotFinite, Opening, chunk_action, from_footage
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
    Memory,
    Notice,
    Paused,
    ProtocolError,
    ServerMessage,
    Settings,
    Stats,
    Welcome,
    in_words,
    write_message,
)
from .replay import Deed, sampler_of
from .sources import Footage, RealWorldFactory
from .stream import Stream
from .worlds import Worlds


class Session:
    """One client."""

    def __init__(
        self,
        worlds: Worlds,
        hello: Hello,
        opening: Opening,
        *,
        limits: Limits,
        downloads: Downloads,
        wake: Callable[[], None],
        real: RealWorldFactory | None = None,
    ) -> None:
        self._worlds, self.limits = worlds, limits
        self.world = world = worlds.first  # for what all have in common
        self.choices = Choices.of(hello, world.fps)
        self.outbox = Outbox(limits.queue * world.pixel_frames, hello.window, wake)
        self.meter = Meter()
        self.projector = Projector(self.outbox, world.fps)
        self.seen, self._wake = time.monotonic(), wake
        self._keepsakes = Keepsakes(downloads, world.fps, limits.video, self.say)
        self._inputs = InputTimeline(world.actions, world.dit.chunk, world.pixel_frames / world.fps)
        self._requests: deque[Callable[[], object]] = deque()
        self._stream = Stream(worlds, hello.world or worlds.first_name, limits.replay)
        self._companion = Companion(world, real, self._tell, lambda line: self.say(Error(message=line)))
        self._memory: Memory | None = None  # what it holds now
        self._due = 0.0
        self._paused, self._done, self._detached = hello.paused, False, False
        self.restart(lambda: opening, "start", hello.start)

    # -- doors: called from the event loop -----------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """Seed of the newest stream."""
        return self._stream.seed

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
        """The client is back, with the settings of its hello and no key held. What waits for it follows the welcome.

        Nothing happens if this connection breaks, too, before the engine's thread comes to it.
        """
        number = self.outbox.breaks

        def go_on() -> None:
            where = [] if self._stream.dream is None else [self._stream.started(self.projector.stream)]
            pause = [Paused(on=True)] if hello.paused else []
            memory = [self._memory] if self._memory is not None and self._memory.places else []
            greeting = [write_message(message) for message in (welcome, *where, *pause, *memory)]
            if self.outbox.reopen(number, hello.window, greeting):
                self._paused, self._due = hello.paused, time.perf_counter()
                self._choose(Choices.of(hello, self.world.fps))

        self._inputs.release()
        self._detached = False
        self._tell(go_on)

    def pause(self, on: bool) -> None:
        self._ask(lambda: self._pause(on))

    def settings(self, change: Settings) -> None:
        """Use other settings from the next chunk on."""

        def use() -> None:
            self._due = time.perf_counter()
            self._choose(self.choices.changed(change))

        self._ask(use)

    def restart(
        self,
        make: Callable[[], Opening],
        source: str,
        index: int,
        deeds: tuple[Deed, ...] = (),
        world: str | None = None,
    ) -> None:
        """Begin anew from what `make` returns (called in the engine's thread), and play the deeds of a replay in the
        world of a name; None: in the present one."""
        self._ask(lambda: self._open(make(), source, index, deeds, world))

    def switch(self, world: str) -> None:
        """Begin anew in a world, from the same beginning and under the same keys. Raises UserError if it has none."""
        self._worlds.find(world)
        self._ask(lambda: self._repeat(world))

    def take_over(self) -> None:
        """Let the client drive, although recorded keys are left."""
        self._ask(self._stream.take_over)

    def reset(self, seed: int | None) -> None:
        """Begin anew from the same beginning."""

        def again() -> None:
            opening = self._stream.again(seed)
            if self._stream.source == "real" and self._companion.running:
                self._open_beside(opening.seed)
            else:
                self._open(opening, self._stream.source, self._stream.start)

        self._ask(again)

    def bookmark(self) -> None:
        """Remember this moment."""

        def set_mark() -> None:
            self._stream.bookmark(self.projector.index)
            self.say(Notice(text="bookmark set"))

        self._ask(set_mark)

    def back(self) -> None:
        """Return to the bookmark."""
        self._ask(lambda: self._show_beginning(self._stream.back()))

    def record(self, on: bool) -> None:
        """Start or finish a video."""
        keep = self._keepsakes
        self._ask((lambda: keep.start(f"dream-{self.seed}.mp4")) if on else keep.finish)

    def save(self) -> None:
        """Make a replay file."""
        self._ask(lambda: self._keepsakes.save(self._stream.replay(), f"dream-{self.seed}.safetensors"))

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
        dream, memory, now = self._stream.dream, self._memory, time.perf_counter()
        sink, slow, ring = (memory.sink, memory.slow, memory.ring) if memory else (0, [], 0)
        return Stats(
            stream=self.projector.stream, fps=round(self.meter.rate(now), 2), chunk=self.meter.latency(),
            stages=self.meter.stages(), queue=self.outbox.waiting, queue_limit=self.outbox.limit,
            drops=self.outbox.drops, memory=sink + len(slow) + ring,
            memory_bytes=dream.state.memory.nbytes if dream else 0, held=dream.held if dream else 0,
            frames=self.projector.index, steps=self.choices.steps, paused=self._paused,
            recording=self._keepsakes.recording, clients=clients, sink=sink, slow=slow, ring=ring,
            backend=backend.setting(), fallbacks={str(each): count for each, count in backend.fallbacks().items()},
        )  # fmt: skip

    def _ask(self, request: Callable[[], object]) -> None:
        """Leave a request for the engine's thread."""
        if len(self._requests) >= self.limits.requests:
            raise ProtocolError(f"more than {self.limits.requests} requests at once")
        self._requests.append(request)
        self._wake()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def wait(self, now: float) -> float | None:
        """Seconds until this session wants a turn: 0 now, None not before something changes."""
        if self._done or self._detached:
            return None
        if self._requests:
            return 0.0
        full = self.choices.waits and not self.outbox.room(self.world.pixel_frames)
        if self._stream.dream is None or self._paused or full or not self._companion.ready:
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
        self._stream.close()
        self._requests.clear()
        self._keepsakes.close()
        self._companion.close()

    def join(self, timeout: float) -> None:
        """Wait for the simulator of a closed session, so many seconds at most."""
        self._companion.join(timeout)

    def _make(self, now: float) -> None:
        """The next chunk, under the keys or under the script of a replay."""
        scripted = self._stream.scripted
        seq, action = self._inputs.take(now)
        deed, pictures = self._stream.advance(Deed(chunk_action(self.world, action), self.choices.steps))

        frames, stamp = pictures.frames, self.projector.stamp(seq, len(pictures.frames), now)
        before = time.perf_counter()
        self.projector.show(frames, stamp, HELD if pictures.held else 0, self.choices)
        after = time.perf_counter()
        self.meter.chunk(after, len(frames), after - now, pictures.seconds | {"encode": after - before})

        if self._companion.shown:
            show = self.projector.show
            self._companion.step(deed, lambda real: show(real[-stamp.size :], stamp, REAL, self.choices))
        self._tell_memory()
        self._keepsakes.add(frames)
        if self._stream.now.state.memory.nbytes > self.limits.memory:
            self._pause(True, f"the memory has grown over {self.limits.memory >> 20} MB: restart to go on")
        elif scripted and not self._stream.scripted:
            self._pause(True, "the recorded keys have ended: go on, and it is yours to drive")
        self._due = self._next_due(now, len(frames))

    def _next_due(self, now: float, pictures: int) -> float:
        """When to start the next chunk: at the pace; what was missed by more than a chunk is not caught up with."""
        return now if self.choices.pace == 0 else max(self._due + pictures / self.choices.pace, now)

    def _choose(self, choices: Choices) -> None:
        """Use these settings. Raises UserError, and changes nothing, if the present world has no such sampler."""
        sampler_of(self._stream.world, choices.steps)
        self.choices = choices

    def _open(
        self, opening: Opening, source: str, index: int, deeds: tuple[Deed, ...] = (), world: str | None = None
    ) -> Stamp:
        self._stream.open(opening, source, index, deeds, world)
        return self._show_beginning(0)

    def _repeat(self, world: str) -> None:
        """The same keys again. A simulator is not shown any more: it cannot go back to this beginning."""
        self._stream.repeat(world, self.choices.steps)
        self._companion.hide()
        self._show_beginning(0)

    def _show_beginning(self, index: int) -> Stamp:
        """Show the stream from its present moment on, as a new one; returns the stamp of its first picture."""
        self._due = time.perf_counter()
        self._inputs.take(self._due)  # what was tapped before belongs to the old stream
        self.projector.begin(index)
        self.say(self._stream.started(self.projector.stream))
        first = self.projector.stamp(0, 1, self._due)
        self.projector.show(self._stream.now.last[None], first, CONTEXT, self.choices)
        self._tell_memory()
        return first

    def _tell_memory(self) -> None:
        """Tell the client what the memory holds, if it chooses frames and holds others than before."""
        before, now = self._memory, self._stream.memory(self.projector.stream, self.projector.index)
        self._memory = now
        if now.places and (before is None or now != replace(before, index=now.index)):
            self.outbox.say(write_message(now), kind="memory")

    def _pause(self, on: bool, reason: str = "") -> None:
        self._paused, self._due = on, time.perf_counter()
        self.say(Paused(on=on, reason=reason))

    def _show_real(self, on: bool) -> None:
        new = self._companion.show(on)
        if on:
            self._open_beside(self.seed if new else None)

    def _open_beside(self, seed: int | None) -> None:
        """The simulator gives a beginning, the dream starts from it."""
        wanted = self.seed if seed is None else seed

        def open_real(footage: Footage) -> None:
            first = self._open(from_footage(self.world, footage, wanted), "real", 0)
            self.projector.show(footage.pixels[-1:], first, CONTEXT | REAL, self.choices)

        self._companion.begin(seed, open_real)

    def _tell(self, request: Callable[[], object]) -> None:
        """Leave a request for the engine's thread that is not limited: the simulator's, or a returned client's."""
        self._requests.append(request)
        self._wake()
