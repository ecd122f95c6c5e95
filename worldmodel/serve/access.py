"""Who may connect: loopback without a token, anything else with one, and never a foreign web page."""

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from worldmodel.errors import UserError

MIN_TOKEN = 8  # characters


def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """Raise UserError unless it is safe to listen on this address."""
    if token is None and not is_loopback(host):
        raise UserError(
            f"host {host}: everybody who reaches this address could use the stream; "
            f"give --token SECRET (at least {MIN_TOKEN} characters), or bind to 127.0.0.1"
        )
    if token is not None and len(token) < MIN_TOKEN:
        raise UserError(f"token: {len(token)} characters are too easy to guess, use {MIN_TOKEN} or more")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise UserError("token: use printable ASCII characters without spaces, it travels in an address")


class Guard:
    """Judges a request by its headers and query."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def refusal(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """Why a request may not pass, None if it may: it is foreign, or does not have the token.

        The token is a bearer's or (openpi's clients) an API key in the header Authorization, or `token` in the query.
        """
        if (line := self.foreign(headers)) is not None or self._token is None:
            return line
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer if scheme.lower() in ("bearer", "api-key") else query.get("token", "")
        right = hmac.compare_digest(given.encode(), self._token.encode())
        return None if right else "this server needs its token: open the address that it printed when it started"

    def foreign(self, headers: Mapping[str, str]) -> str | None:
        """Why a request may see nothing at all, not even the page; None if it may.

        Without a token the Host header must be a loopback name, so that a web page cannot reach the server through a
        name of its own that resolves to this machine. A request of a web page (it has an Origin) must come from here.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and _place(origin) != host:
            return f"pages of {origin} may not use this server"
        if self._token is None and not is_loopback(_name(host)):
            return f"this server is for this machine only, not for {host!r}"
        return None


def _place(origin: str) -> str:
    """Name and port of an Origin header, empty if it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
