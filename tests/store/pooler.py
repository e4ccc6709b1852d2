"""A pooler that hands each transaction to another connection of the server, as PgBouncer does in transaction mode."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_SSL, _CANCEL = 80877103, 80877102
_FLUSH = b"H"  # the driver sends it after Parse and Describe
_DESCRIBED = (b"T", b"n", b"E")  # RowDescription, NoData, ErrorResponse
_ANSWERED = (b"S", b"Q")  # Sync and Query: the server answers ReadyForQuery
_READY = b"Z"
_TERMINATE = b"X"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def pooler(url: str, width: int = 3) -> AsyncIterator[str]:
    """A URL by which the server is reached over the pooler."""
    target = urlsplit(url)
    assert target.hostname
    assert target.port
    running = _Pooler(target.hostname, target.port, width)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield url.replace(f":{target.port}/", f":{port}/")
    finally:
        server.close()


class _Pooler:
    def __init__(self, host: str, port: int, width: int) -> None:
        self._host = host
        self._port = port
        self._width = width

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        servers: list[Streams] = []
        try:
            hello = await self._hello(reader, writer)
            for number in range(self._width):
                servers.append(await asyncio.open_connection(self._host, self._port))
                servers[-1][1].write(hello)
                await _relay_answers(servers[-1][0], None if number else writer)
            turn = 0
            while True:
                turn += 1
                await _transaction(reader, writer, servers[turn % self._width])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # one of the two went away, so the others do
        finally:
            for _, each in [*servers, (reader, writer)]:
                each.close()

    async def _hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        head = await reader.readexactly(8)
        length, code = struct.unpack("!ii", head)
        if code == _SSL:
            writer.write(b"N")
            return await self._hello(reader, writer)
        assert code != _CANCEL
        return head + await reader.readexactly(length - 8)


async def _transaction(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Streams) -> None:
    """Relays until the server says that no transaction is open."""
    while True:
        kind, message = await _message(reader)
        if kind == _TERMINATE:
            raise ConnectionResetError
        server[1].write(message)
        if kind == _FLUSH:
            await _relay_answers(server[0], writer, _DESCRIBED)
        elif kind in _ANSWERED and await _relay_answers(server[0], writer) == b"I":
            return


async def _relay_answers(
    server: asyncio.StreamReader, writer: asyncio.StreamWriter | None, last: tuple[bytes, ...] = (_READY,)
) -> bytes:
    """Relays up to a last message, and returns its end: of ReadyForQuery the transaction's state."""
    while True:
        kind, message = await _message(server)
        if writer is not None:
            writer.write(message)
        if kind in last:
            return message[-1:]


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
