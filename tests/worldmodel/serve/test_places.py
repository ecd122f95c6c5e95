"""Resume tokens, without a network."""

import asyncio
from typing import Any

import pytest

from worldmodel.serve.limits import Limits
from worldmodel.serve.places import BadToken, Places


class Kept:
    """A session that counts how often it was detached."""

    def __init__(self) -> None:
        self.detached = 0

    def detach(self) -> None:
        self.detached += 1


class Wire:
    """A connection that lets go of its session when it may."""

    def __init__(self) -> None:
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def give_way(self) -> None:
        self.asked.set()
        await self.may.wait()


def test_each_of_two_racing_connections_gets_its_own_token() -> None:
    async def work() -> None:
        session: Any = Kept()
        places, first, second, third = Places(Limits(), lambda _: None), Wire(), Wire(), Wire()
        token = places.take(session, first)
        early = asyncio.create_task(places.claim(token, second))
        await first.asked.wait()
        late = asyncio.create_task(places.claim(token, third))
        await second.asked.wait()
        first.may.set()
        earlier = await early
        second.may.set()
        later = await late
        assert earlier is not None and later is not None
        assert len({token, earlier[1], later[1]}) == 3
        places.confirm(session, second)  # it has been replaced: it cannot know the third's token
        third.may.set()
        with pytest.raises(BadToken):
            await places.claim(earlier[1], Wire())
        again = await places.claim(token, last := Wire())  # the third's welcome may be lost
        assert again is not None and again[0] is session
        places.confirm(session, last)
        with pytest.raises(BadToken):
            await places.claim(token, Wire())

    asyncio.run(asyncio.wait_for(work(), 10))
