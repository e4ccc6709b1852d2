"""A client's request: its head, checked for what two readers may take for two things, and its body as it comes."""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from proxy import errors
from proxy.protocol.headers import Headers, get

if TYPE_CHECKING:
    from proxy.server.connection import Connection

_FRAMING = (b"content-length", b"transfer-encoding")
_SINGLE = (b"host", b"content-length", b"content-type", b"transfer-encoding")
_ABSOLUTE = re.compile(rb"(?i)https?://[^/?]*/?")
_ODD_IN_TARGET = re.compile(rb"[\x00-\x20\x7f#]")  # a fragment is no part of a target: the next reader cuts it off
_ODD_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Request:
    """A request as it came: its head, and its body as soon as somebody asks for it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.method = ""
        self.target = b""  # as the client spelled it, without a scheme and a host
        self.headers: Headers = ()
        self.keep_alive = True
        self.http_1_1 = True
        self.asks = False  # the client waits for a word before it sends the body; it may never send it
        self.complete = False  # all of the body has come
        self.size = 0  # bytes of body that have come
        self.limit: int | None = None  # how many of them somebody wants; None: nobody has asked yet
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: str | None = None

    def locate(self) -> None:
        """Takes a proxy's form of the target for what it means here."""
        if not self.target.startswith(b"/"):
            self.target = _ABSOLUTE.sub(b"/", self.target, count=1)

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition(b"?")[0].decode("utf-8", "surrogateescape")

    @property
    def query(self) -> str:
        """What follows the target's question mark."""
        return self.target.partition(b"?")[2].decode("utf-8", "surrogateescape")

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises `BodyTooLarge`, or `InvalidRequest` when it cannot be read."""
        self.limit = limit
        while not self.complete and self._error is None and self.size <= limit:
            await self._more()
        if self._error is not None:
            raise errors.InvalidRequest(f"The request body could not be read: {self._error}")
        if self.size > limit:
            raise too_large(limit)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def invite(self) -> None:
        """Tells a client that asked first that it may send its body."""
        asks, self.asks = self.asks, False
        if asks and not self.size and self.connection.transport is not None:
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def discard(self) -> None:
        """Reads what is left of the body, and throws it away."""
        self.limit = 0
        self._parts = []
        while not self.complete and self._error is None:
            await self._more()

    async def _more(self) -> None:
        self.connection.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    # What the connection tells

    def came(self, part: bytes) -> None:
        """More of the body."""
        self.size += len(part)
        if self.limit is None or self.size <= self.limit:
            self._parts.append(part)
        elif self.limit:
            self._wake()

    def end(self, error: str | None = None) -> None:
        """The body is over; `error`: before its end."""
        self.complete, self._error = error is None, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@lru_cache(maxsize=256)
def check_head(target: bytes, headers: Headers, http_1_1: bool) -> bool:
    """Whether the client asks before it sends its body.

    Raises `ValueError` for what one reader may take for this and another for that.
    """
    _check_target(target)
    names = [name.lower() for name, _ in headers]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise ValueError(f"the header {name.decode()} is there more than once")
    if http_1_1 and b"host" not in names:
        raise ValueError("the header host is missing")
    if not http_1_1 and b"transfer-encoding" in names:
        raise ValueError("HTTP/1.0 has no transfer-encoding")
    for name, value in headers:
        if _ODD_IN_VALUE.search(value):
            raise ValueError(f"the header {name.decode('latin-1')} holds a control character")
    return http_1_1 and (get(headers, b"expect") or b"").lower() == b"100-continue"


def _check_target(target: bytes) -> None:
    if _ODD_IN_TARGET.search(target):
        raise ValueError("its target holds a control character or a fragment")
    if not target.startswith((b"/", b"*")):
        raise ValueError("its target is not a path")


def framing(request: Request) -> Headers:
    """The headers that say how long its body is, if it has one. Raises `ValueError` where none can say so."""
    if request.method == "CONNECT":
        raise ValueError("tunnels are not made here")
    pairs = tuple(pair for pair in request.headers if pair[0].lower() in _FRAMING)
    return () if all(name.lower() == b"content-length" and not int(value) for name, value in pairs) else pairs


def head_size(request: Request) -> int:
    """The bytes of what its head holds."""
    return len(request.target) + sum(len(name) + len(value) for name, value in request.headers)


def too_large(limit: int) -> errors.BodyTooLarge:
    """The error that names the limit."""
    return errors.BodyTooLarge(f"The request body is larger than {limit} bytes.")
