"""A connection to a policy that a robot's loop never waits for: a thread asks, reconnects and keeps the answer."""

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.policies.serving.client import PolicyClient, Refused
from worldmodel.policies.serving.contexts import TRIAL


@dataclass(frozen=True, slots=True)
class Reply:
    """actions: [K, A] in the robot's units, None if there are none. token: [W], of a trial. why: there is neither, in
    one line."""

    actions: NDArray[np.float32] | None
    why: str = ""
    token: NDArray[np.float32] | None = None


class Link(Protocol):
    """What a robot client needs of a connection. No call waits."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the server said on connecting."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a request may be made: there is a connection, and no request is under way or unread."""
        ...

    @property
    def trouble(self) -> str:
        """Why there is no connection, in one line; "" if there is one."""
        ...

    def ask(self, request: Mapping[str, Any]) -> None:
        """Make a request; only when `ready`."""
        ...

    def reply(self) -> Reply | None:
        """The answer, once; None while there is none."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Seconds between tries to connect: `first`, then twice as long each time up to `most`; of each a random share of
    1/2 to 1 is waited, so that robots that lost one server do not come back all at once."""

    first: float = 0.1
    most: float = 5.0

    def seconds(self, tries: int, share: float) -> float:
        """After `tries` failures, for a share in [0, 1]."""
        return min(self.most, self.first * 2.0 ** min(tries, 30)) * (0.5 + 0.5 * share)


class PolicyLink:
    """A `Link` over a WebSocket. Use it as a context manager."""

    def __init__(
        self, address: str, token: str | None = None, timeout: float = 10.0, backoff: Backoff | None = None
    ) -> None:
        """The first connection is made here, in the calling thread. Raises as `PolicyClient` does."""
        self._connect: Callable[[], PolicyClient] = lambda: PolicyClient(address, token, timeout)
        self._backoff = backoff or Backoff()
        self._client: PolicyClient | None = self._connect()
        self._metadata = self._client.metadata
        self._changed, self._ends = threading.Condition(), threading.Event()
        self._request: Mapping[str, Any] | None = None
        self._reply: Reply | None = None
        self._trouble = ""
        self.reconnections = 0
        self._thread = threading.Thread(target=self._run, name="policy link", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    @property
    def ready(self) -> bool:
        with self._changed:
            return not self._trouble and self._request is None and self._reply is None and not self._ends.is_set()

    @property
    def trouble(self) -> str:
        with self._changed:
            return self._trouble

    def ask(self, request: Mapping[str, Any]) -> None:
        with self._changed:
            if self._request is not None or self._reply is not None:
                raise RuntimeError("one request at a time: read the reply to the last one first")
            self._request = request
            self._changed.notify()

    def reply(self) -> Reply | None:
        with self._changed:
            reply, self._reply = self._reply, None
            return reply

    def close(self) -> None:
        """Leave; a request under way gets no reply."""
        self._ends.set()
        with self._changed:
            self._changed.notify()
        if (client := self._client) is not None:
            client.close()
        self._thread.join(1.0)  # one that is connecting ends by itself

    def _run(self) -> None:
        while not self._ends.is_set():
            if self._client is None:
                self._reconnect()
            else:
                self._serve(self._client)
        if self._client is not None:
            self._client.close()

    def _serve(self, client: PolicyClient) -> None:
        """Wait for a request and ask the server."""
        with self._changed:
            self._changed.wait_for(lambda: self._request is not None or self._ends.is_set())
            request = self._request
        if request is not None:
            reply = self._answered(client, request)
            with self._changed:
                self._request, self._reply = None, reply

    def _answered(self, client: PolicyClient, request: Mapping[str, Any]) -> Reply:
        what = "trial" if TRIAL in request else "observation"
        try:
            if TRIAL in request:
                return Reply(None, token=client.token(request[TRIAL]))
            actions = client.infer(request).get("actions")
        except Refused as refused:
            return Reply(None, f"the server refuses the {what}: {refused}")
        except ConnectionError as error:
            self._lose(str(error))
            return Reply(None, str(error))
        if not isinstance(actions, np.ndarray) or actions.ndim != 2 or not np.isfinite(actions).all():
            return Reply(None, "the server's answer has no finite actions of shape (K, A)")
        return Reply(actions.astype(np.float32))

    def _lose(self, why: str) -> None:
        with self._changed:
            self._client, self._trouble = None, why

    def _reconnect(self) -> None:
        """Try until there is a connection to the same policy, or the end."""
        tries = 0
        while not self._ends.wait(self._backoff.seconds(tries, random.random())):
            tries += 1
            try:
                client = self._connect()
            except (ConnectionError, UserError) as error:
                self._lose(str(error))
                continue
            if _what(client.metadata) != _what(self._metadata):
                client.close()
                self._lose("another policy answers now, with other observations or actions: connect anew to use it")
                continue
            with self._changed:
                self._client, self._trouble = client, ""
                self.reconnections += 1
            return


def _what(metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    return metadata.get("observation"), metadata.get("actions")
