"""The places of a server: who has one, and who may come back to it.

A session whose connection broke keeps its place for `Limits.resume` seconds and makes nothing meanwhile. Its client
comes back with the resume token that it was given; each is good once, and the next connection gets another. Whoever
arrives when all places are taken gets that of the session that has been waiting longest. Used by the event loop only.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .limits import Limits
from .session import Session

_TOKEN_BYTES = 24
_REMEMBERED = 1024  # tokens of sessions that were not kept any longer


class Full(Exception):
    """There is no room for one more session."""


class BadToken(Exception):
    """A resume token that this server never gave, or that was used."""


class Line(Protocol):
    """A connection, as seen from here."""

    async def give_way(self) -> None:
        """End it; returns when it has let go of its session."""
        ...


@dataclass(slots=True, eq=False)
class _Place:
    session: Session
    line: Line | None  # None while the session waits for its client
    token: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))
    before: str | None = None  # the token that was used last, until the client is known to have the newest
    end: asyncio.TimerHandle | None = None  # of the wait


class Places:
    """At most `limits.sessions` of them."""

    def __init__(self, limits: Limits, on_leave: Callable[[Session], None]) -> None:
        """on_leave: called with every session that has lost its place."""
        self._limits, self._on_leave = limits, on_leave
        self._places: dict[Session, _Place] = {}  # those that wait stand behind the others, the newest last
        self._over: deque[str] = deque(maxlen=_REMEMBERED)

    @property
    def sessions(self) -> list[Session]:
        """All that have a place."""
        return list(self._places)

    @property
    def connected(self) -> int:
        """How many of them have a client at this moment."""
        return sum(place.line is not None for place in self._places.values())

    def make_room(self) -> None:
        """See to it that a place is free: ends the session that has waited longest if need be. Raises Full."""
        if len(self._places) < self._limits.sessions:
            return
        waiting = next((place for place in self._places.values() if place.line is None), None)
        if waiting is None:
            places = self._limits.sessions
            raise Full(f"all {places} places of this server are taken: try again when somebody has left")
        self._expire(waiting)

    def take(self, session: Session, line: Line) -> str:
        """Give a new session a place; returns its resume token."""
        place = self._places[session] = _Place(session, line)
        return place.token

    async def claim(self, token: str, line: Line) -> tuple[Session, str] | None:
        """The session of a token, detached, and its next token; None if it was not kept any longer. Raises BadToken.

        Another connection of the session, whose end the server has not noticed yet, gives way first.
        """
        place = next((place for place in self._places.values() if token in (place.token, place.before)), None)
        if place is None and token in self._over:
            return None
        if place is None:
            raise BadToken("this resume token is none of this server's, or was used: connect without one")
        if place.end is not None:
            place.end.cancel()
        former, place.line, place.end = place.line, line, None
        fresh = secrets.token_urlsafe(_TOKEN_BYTES)
        place.before, place.token = token, fresh
        if former is not None:
            await former.give_way()
            place.session.detach()
        return place.session, fresh  # while it waited here, another connection may have got a newer one

    def confirm(self, session: Session, line: Line) -> None:
        """The client has answered: it has its newest token, the one before is used up. What a connection says that has
        been replaced proves nothing."""
        place = self._places.get(session)
        if place is not None and place.line is line:
            place.before = None

    def keep(self, session: Session, line: Line) -> None:
        """The connection broke: the session waits for its client. Nothing happens if it has another connection."""
        place = self._places.get(session)
        if place is None or place.line is not line:
            return
        del self._places[session]
        self._places[session] = place  # to the end of the line
        place.line = None
        session.detach()
        place.end = asyncio.get_running_loop().call_later(self._limits.resume, self._expire, place)

    def leave(self, session: Session, line: Line) -> None:
        """The client has left for good. Nothing happens if the session has another connection."""
        place = self._places.get(session)
        if place is not None and place.line is line:
            self._forget(place)

    def _expire(self, place: _Place) -> None:
        self._over.extend(token for token in (place.token, place.before) if token)
        self._forget(place)

    def _forget(self, place: _Place) -> None:
        if place.end is not None:
            place.end.cancel()
        del self._places[place.session]
        self._on_leave(place.session)
