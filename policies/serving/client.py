"""A client of a served policy that waits for its answers: for scripts, evaluations and measurements.

A robot that must not wait uses `robot_client`.
"""

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import connect

from worldmodel.errors import UserError
from worldmodel.policies.serving.contexts import TRIAL
from worldmodel.policies.serving.framing import FramingError, pack, unpack
from worldmodel.policies.serving.requests import TOKEN

MAX_ANSWER = 64 * 1024 * 1024  # bytes


class Refused(Exception):
    """The server has read a request and says in one line what is wrong with it; the connection goes on."""


class PolicyClient:
    """A connection in the calling thread. Use it as a context manager.

    metadata: what the server said on connecting (`requests.metadata`, if it is ours).
    """

    def __init__(self, address: str, token: str | None = None, timeout: float = 10.0) -> None:
        """address: such as ws://127.0.0.1:8000/, as the server printed it. timeout: seconds, also for every answer.

        Raises UserError if the address is none or the server refuses, ConnectionError if nobody answers there.
        """
        self.address, self._timeout = address, timeout
        where, token = _split(address, token)
        headers = {"Authorization": f"Api-Key {token}"} if token else None
        self._open = contextlib.ExitStack()
        try:
            self._socket = self._open.enter_context(
                connect(
                    where, compression=None, additional_headers=headers, open_timeout=timeout, close_timeout=1,
                    max_size=MAX_ANSWER,
                )
            )  # fmt: skip
            self.metadata = self._read()
        except InvalidStatus as error:
            said = (error.response.body or b"").decode(errors="replace").strip() or str(error)
            if error.response.status_code == 503:  # full now, perhaps not later
                raise ConnectionError(f"{where}: {said:.300}") from error
            raise UserError(f"{where}: {said:.300}") from error
        except InvalidURI as error:
            raise UserError(f"{address}: an address is such as ws://127.0.0.1:8000") from error
        except (OSError, InvalidHandshake, ConnectionClosed) as error:
            self.close()
            raise ConnectionError(f"{where}: no policy answers there ({error or type(error).__name__})") from error
        except (Refused, FramingError) as error:
            self.close()
            raise UserError(f"{where}: no policy server: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._open.close()

    def token(self, trial: Mapping[str, Any]) -> NDArray[np.float32]:
        """What a finished trial shows of the robot that made it, [W], to be sent as "token" with later observations; of
        several trials, their sum or mean. trial: arrays as `contexts` says. Raises as `infer`."""
        made = self.infer({TRIAL: trial}).get(TOKEN)
        if not isinstance(made, np.ndarray) or made.ndim != 1 or not np.isfinite(made).all():
            raise Refused("the server's answer has no finite token of shape (W,)")
        return made.astype(np.float32)

    def infer(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for the chunk that follows an observation; the answer has "actions" [K, A] and "server_timing" (ms).

        Raises Refused for an observation that is wrong, ConnectionError if the connection has ended (then, or when the
        answer does not come in time: a later answer could not be told from the next one).
        """
        try:
            request, limit = pack(observation), self.metadata.get("max_message")
            if isinstance(limit, int) and len(request) > limit:  # the server would cut the line, perhaps without a word
                raise Refused(f"the message has {len(request)} bytes, the server reads at most {limit}")
            self._socket.send(request)
            return self._read()
        except FramingError as error:
            raise Refused(str(error)) from error
        except (ConnectionClosed, TimeoutError, OSError) as error:
            self.close()
            raise ConnectionError(f"the policy server is gone: {_ended(error, self._timeout)}") from error

    def _read(self) -> dict[str, Any]:
        received = self._socket.recv(self._timeout)
        if isinstance(received, str):
            raise Refused(received)
        return unpack(received)


def _split(address: str, token: str | None) -> tuple[str, str | None]:
    """A WebSocket address without its token, and the token. Raises UserError."""
    try:
        parts = urlsplit(address if "://" in address else f"ws://{address}")
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        if scheme not in ("ws", "wss") or not parts.hostname or parts.port == 0:
            raise ValueError(address)
    except ValueError:
        raise UserError(f"{address!r}: an address is such as ws://127.0.0.1:8000") from None
    given = parse_qs(parts.query).get("token", [None])[0]
    return urlunsplit((scheme, parts.netloc, parts.path or "/", "", "")), token or given


def _ended(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.reason:
        return error.rcvd.reason
    return str(error) or type(error).__name__
