"""HTTP/1.1 by hand: what a scripted answer is made of, and the record of what arrived."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate

REASONS = {200: "OK", 204: "No Content", 304: "Not Modified", 400: "Bad Request", 404: "Not Found"}
REASONS |= {405: "Method Not Allowed", 413: "Content Too Large", 500: "Internal Server Error"}
REASONS |= {429: "Too Many Requests", 503: "Service Unavailable"}
Headers = list[tuple[str, str]]


@dataclass
class Received:
    """One request as it came, and what became of its answer."""

    head: bytes
    body: bytes
    connection: int
    reused: bool
    written: int = 0
    answered: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    gone_at: float | None = None

    @property
    def method(self) -> str:
        return self.head.split(b" ", 2)[0].decode()

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    def header(self, name: str) -> str | None:
        wanted = name.lower().encode()
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == wanted:
                return value.strip().decode("latin-1")
        return None


class Exchange:
    """What a script is handed: the request, and the means to answer it well or badly."""

    def __init__(self, request: Received, writer: asyncio.StreamWriter, usual: Script) -> None:
        self.request = request
        self.keep_alive = True
        self.on_write: Callable[[bytes], Awaitable[bytes]] = unchanged
        self.on_content: Callable[[bytes], Iterable[bytes]] = lambda data: (data,)
        self._writer = writer
        self._usual = usual

    async def write(self, data: bytes) -> None:
        """Writes under backpressure; `request.written` counts what the kernel or the small buffer took."""
        data = await self.on_write(data)
        self._writer.write(data)
        await self._writer.drain()
        self.request.written += len(data)

    async def reply(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        extra = headers or []
        body = b"".join(self.on_content(body))
        if status not in (204, 304) and not any(name.lower() == "content-length" for name, _ in extra):
            extra = [("content-length", str(len(body))), *extra]
        payload = b"" if self.request.method == "HEAD" else body
        await self.write(head(status, extra) + payload)

    async def begin(self, headers: Headers | None = None, status: int = 200) -> None:
        """Writes the head of an event stream."""
        default = [("content-type", "text/event-stream; charset=utf-8"), ("vary", "Origin")]
        await self.write(head(status, [*(headers or default), ("transfer-encoding", "chunked")]))

    async def chunk(self, data: bytes) -> None:
        for part in self.on_content(data):
            await self.write(b"%x\r\n%b\r\n" % (len(part), part))

    async def end(self, trailers: Headers | None = None) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in trailers or [])
        await self.write(f"0\r\n{lines}\r\n".encode("latin-1"))

    async def as_usual(self) -> None:
        """Answers as vLLM would."""
        await self._usual(self)

    def cut(self) -> None:
        """Closes in the middle: the client sees the end of the stream."""
        self.keep_alive = False
        self.request.answered = True
        self._writer.close()

    def reset(self) -> None:
        """Closes with a TCP reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.cut()


async def unchanged(data: bytes) -> bytes:
    return data


Script = Callable[[Exchange], Awaitable[None]]


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    first = [("date", formatdate(usegmt=True)), ("server", "uvicorn")]
    lines = "".join(f"{name}: {value}\r\n" for name, value in [*first, *headers])
    return f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\n{lines}\r\n".encode("latin-1")
