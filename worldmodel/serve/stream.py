"""The stream that a session shows at present: where it began, what was done since, and the bookmark.

Used by the engine's thread. Shape letters: K latent frames of a chunk, A packed action size.
"""

from collections import deque
from dataclasses import dataclass, replace

from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel

from .dream import Dream, Opening, Pictures, advance, ago, begin, holding
from .protocol import Memory, Started
from .replay import Deed, Replay, sampler_of, write_replay
from .worlds import Worlds


@dataclass(frozen=True, slots=True)
class _Mark:
    """A moment to return to."""

    world: str
    dream: Dream
    log: tuple[Deed, ...]
    index: int


class Stream:
    """A dream with its history. It has none before `open`."""

    def __init__(self, worlds: Worlds, name: str, limit: int) -> None:
        """name: of the world that it begins in. limit: chunks that are remembered, to do them again."""
        self._worlds, self._name = worlds, name
        self.source, self.start = "start", 0  # of the newest beginning, as the protocol names it
        self.dream: Dream | None = None
        self._limit = limit
        self._log: list[Deed] = []
        self._script: deque[Deed] = deque()
        self._mark: _Mark | None = None

    @property
    def world(self) -> WorldModel:
        """The one that makes it at present."""
        return self._worlds.named[self._name]

    @property
    def now(self) -> Dream:
        """The dream at this moment. Raises UserError before there is one."""
        if self.dream is None:
            raise UserError("the stream has not begun yet")
        return self.dream

    @property
    def seed(self) -> int:
        """Seed of the newest beginning, 0 before there is one."""
        return self.dream.opening.seed if self.dream else 0

    @property
    def scripted(self) -> bool:
        """Whether recorded deeds are left to be done."""
        return bool(self._script)

    def open(
        self, opening: Opening, source: str, start: int, deeds: tuple[Deed, ...] = (), world: str | None = None
    ) -> None:
        """Begin anew, in the present world unless one is named; the deeds are done first."""
        name = self._name if world is None else world
        self._go_on(name, begin(self._worlds.find(name), opening), source, start, ())
        self._script.extend(deeds)

    def repeat(self, world: str, steps: int) -> None:
        """Begin anew in a world from the newest beginning, to do there what was done here, and what is left of it.

        steps: of its sampler, for the chunks after these. Raises UserError, and changes nothing, if the world's sampler
        cannot make the chunks so, or if not everything that was done is remembered.
        """
        deeds = (*self._whole(), *self._script)
        for number in sorted({steps, *(deed.steps for deed in deeds)}):
            try:
                sampler_of(self._worlds.find(world), number)
            except UserError as error:
                raise UserError(f"world '{world}' cannot repeat this stream: {error}") from error
        self.open(self.now.opening, self.source, self.start, deeds, world)

    def take_over(self) -> None:
        """Forget the recorded deeds that are left."""
        self._script.clear()

    def again(self, seed: int | None) -> Opening:
        """The newest beginning, with another seed if one is given. Raises UserError before there is one."""
        opening = self.now.opening
        return replace(opening, seed=opening.seed if seed is None else seed)

    def advance(self, wanted: Deed) -> tuple[Deed, Pictures]:
        """The next chunk, under the recorded deed, else under what is wanted. Raises NotFinite."""
        deed = self._script.popleft() if self._script else wanted
        pictures, self.dream = advance(self.world, sampler_of(self.world, deed.steps), deed.action, self.now)
        if len(self._log) < self._limit:
            self._log.append(deed)
        return deed, pictures

    def bookmark(self, index: int) -> None:
        """Remember this moment, at which the next picture has an index."""
        self._mark = _Mark(self._name, self.now.copy(), tuple(self._log), index)

    def back(self) -> int:
        """Return to the bookmark, in its world; gives its index. Raises UserError if there is none."""
        mark = self._mark
        if mark is None:
            raise UserError("there is no bookmark yet")
        self._go_on(mark.world, mark.dream.copy(), "bookmark", 0, mark.log)
        return mark.index

    def replay(self) -> bytes:
        """The replay file of all that was done since the beginning. Raises UserError if it was too much."""
        return write_replay(self.world, Replay(self.now.opening, self._whole()))

    def started(self, number: int) -> Started:
        """What a client is told of the stream, the session's stream of this number."""
        context = self.now.opening.context
        given = 0 if context is None else context.x.shape[1]
        chunks = self.now.chunks + len(self._script) if self._script else 0
        short = self.world.tokenizer.temporal - 1 if context is None else 0  # a first latent frame is one picture
        return Started(
            stream=number, source=self.source, index=self.start, seed=self.seed, context=given, world=self._name,
            scripted=max(0, chunks * self.world.pixel_frames - short),
        )  # fmt: skip

    def memory(self, number: int, index: int) -> Memory:
        """What the memory holds, in the session's stream of this number whose next picture has this index."""
        world, dream, held = self.world, self.now, holding(self.world, self.now)
        pictures = world.tokenizer.temporal

        def shown(frames: tuple[int, ...]) -> list[int]:
            return [index - 1 - ago(world, dream, frame) * pictures for frame in frames]

        return Memory(
            stream=number, index=index - 1, pictures=pictures, sink=held.sink, slow=shown(held.slow),
            read=shown(held.read), places=held.places, ring=held.ring,
        )  # fmt: skip

    def close(self) -> None:
        """Forget everything."""
        self.dream = self._mark = None

    def _whole(self) -> tuple[Deed, ...]:
        """All that was done since the beginning. Raises UserError if it was too much."""
        if len(self._log) < self.now.chunks:
            raise UserError(f"the stream is longer than the {self._limit} chunks that a replay file holds")
        return tuple(self._log)

    def _go_on(self, world: str, dream: Dream, source: str, start: int, log: tuple[Deed, ...]) -> None:
        self._name, self.dream, self.source, self.start = world, dream, source, start
        self._log, self._script = list(log), deque()
