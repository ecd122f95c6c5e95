"""The stream that a session shows at present: where it began, what was done since, and the bookmark.

Used by the engine's thread. Shape letters: K latent frames of a chunk, A packed action size.
"""

from collections import deque
from dataclasses import dataclass, replace

from worldmodel.errors import UserError
from worldmodel.models.world import WorldModel

from .dream import Dream, Opening, Pictures, advance, begin
from .protocol import Started
from .replay import Deed, Replay, sampler_of, write_replay


@dataclass(frozen=True, slots=True)
class _Mark:
    """A moment to return to."""

    dream: Dream
    log: tuple[Deed, ...]
    index: int


class Stream:
    """A dream with its history. It has none before `open`."""

    def __init__(self, world: WorldModel, limit: int) -> None:
        """limit: chunks that are remembered for a replay file."""
        self.world = world
        self.source, self.start = "start", 0  # of the newest beginning, as the protocol names it
        self.dream: Dream | None = None
        self._limit = limit
        self._log: list[Deed] = []
        self._script: deque[Deed] = deque()
        self._mark: _Mark | None = None

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
        """Whether a replay says what is done next."""
        return bool(self._script)

    def open(self, opening: Opening, source: str, start: int, deeds: tuple[Deed, ...] = ()) -> None:
        """Begin anew; the deeds of a replay are done first."""
        self._go_on(begin(self.world, opening), source, start, ())
        self._script.extend(deeds)

    def again(self, seed: int | None) -> Opening:
        """The newest beginning, with another seed if one is given. Raises UserError before there is one."""
        opening = self.now.opening
        return replace(opening, seed=opening.seed if seed is None else seed)

    def advance(self, wanted: Deed) -> tuple[Deed, Pictures]:
        """The next chunk, under what the replay says, else under what is wanted. Raises NotFinite."""
        deed = self._script.popleft() if self._script else wanted
        pictures, self.dream = advance(self.world, sampler_of(self.world, deed.steps), deed.action, self.now)
        if len(self._log) < self._limit:
            self._log.append(deed)
        return deed, pictures

    def bookmark(self, index: int) -> None:
        """Remember this moment, at which the next picture has an index."""
        self._mark = _Mark(self.now.copy(), tuple(self._log), index)

    def back(self) -> int:
        """Return to the bookmark; gives its index. Raises UserError if there is none."""
        if self._mark is None:
            raise UserError("there is no bookmark yet")
        self._go_on(self._mark.dream.copy(), "bookmark", 0, self._mark.log)
        return self._mark.index

    def replay(self) -> bytes:
        """The replay file of all that was done since the beginning. Raises UserError if it was too much."""
        if len(self._log) < self.now.chunks:
            raise UserError(f"the stream is longer than the {self._limit} chunks that a replay file holds")
        return write_replay(self.world, Replay(self.now.opening, tuple(self._log)))

    def started(self, number: int) -> Started:
        """What a client is told of the stream, the session's stream of this number."""
        context = self.now.opening.context
        given = 0 if context is None else context.x.shape[1]
        return Started(stream=number, source=self.source, index=self.start, seed=self.seed, context=given)

    def close(self) -> None:
        """Forget everything."""
        self.dream = self._mark = None

    def _go_on(self, dream: Dream, source: str, start: int, log: tuple[Deed, ...]) -> None:
        self.dream, self.source, self.start = dream, source, start
        self._log, self._script = list(log), deque()
