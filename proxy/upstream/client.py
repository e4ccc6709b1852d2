"""The one HTTP call: a turn goes up, its answer comes back through `send`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from proxy import errors
from proxy.chain import Send
from proxy.protocol import headers as http
from proxy.protocol import jsonbytes, sse
from proxy.protocol.events import TERMINAL, Answer, Chunk, Event, Frames, Head, Trailers
from proxy.protocol.sse import Decoder, FrameTooLarge
from proxy.protocol.turn import Operation, Turn
from proxy.upstream.connection import Connection
from proxy.upstream.pool import Endpoint, Pool

_CREDENTIALS = frozenset({b"authorization", b"cookie", b"x-api-key", b"api-key"})
# Headers with which a client could steer the machinery behind the gateway (llm-d), or that this hop makes anew.
_REFUSED = frozenset(
    {
        b"host",
        b"content-length",
        b"expect",
        b"x-gateway-destination-endpoint",
        b"x-gateway-destination-endpoint-served",
        b"x-prefiller-host-port",
        b"x-data-parallel-host-port",
    }
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long (seconds) and how much (bytes) an answer may take."""

    first_byte: float
    idle: float
    total: float
    max_answer_bytes: int
    max_frame_bytes: int


class Client:
    """Calls one backend."""

    def __init__(self, pool: Pool, limits: Limits, *, authorization: bytes | None, forward_credentials: bool) -> None:
        self._pool = pool
        self._limits = limits
        self._authorization = authorization
        self._refused = _REFUSED if forward_credentials else _REFUSED | _CREDENTIALS

    async def __call__(self, turn: Turn, send: Send) -> None:
        """Relays the answer to `turn`. Raises `UpstreamError` for whatever goes wrong on this side."""
        try:
            async with asyncio.timeout(self._limits.total) as total:
                await self._exchange(turn, send)
        except TimeoutError:
            if not total.expired():
                raise
            raise errors.TotalTimeout(
                f"The backend did not finish its answer within {self._limits.total:g} seconds."
            ) from None

    async def _exchange(self, turn: Turn, send: Send) -> None:
        endpoint, connection = await self._begin(turn)
        try:
            connection.watch_idle(self._limits.idle)
            await self._relay(turn, connection, send)
        finally:
            # An answer that is not over leaves a connection that cannot be used again: it is dropped,
            # and so the backend learns at once that nobody waits any more.
            self._pool.release(endpoint, connection)

    async def _begin(self, turn: Turn) -> tuple[Endpoint, Connection]:
        """Sends the request until an answer begins: a second time, on a fresh connection, if a used one was dead."""
        for fresh in (False, True):
            endpoint, connection = await self._pool.acquire(fresh=fresh)
            begun = False
            try:
                connection.send(turn.method, self._request(turn, endpoint))
                await self._head(connection)
                begun = True
                return endpoint, connection
            except errors.UpstreamDropped:
                if fresh or not connection.used or connection.began:
                    raise
            finally:
                if not begun:
                    self._pool.release(endpoint, connection)
        raise errors.UpstreamDropped()

    async def _head(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._limits.first_byte):
                await connection.head()
        except TimeoutError:
            raise errors.FirstByteTimeout(
                f"The backend did not begin its answer within {self._limits.first_byte:g} seconds."
            ) from None

    async def _relay(self, turn: Turn, connection: Connection, send: Send) -> None:
        headers = http.end_to_end(connection.headers)
        media = http.media_type(headers)
        encoded = http.get(headers, b"content-encoding") not in (None, b"identity")
        if turn.operation is Operation.CREATE and http.is_json(media):
            body = await self._whole(connection)
            await send(Answer(connection.status, connection.reason, headers, body))
        elif turn.operation is Operation.CREATE and media == b"text/event-stream" and not encoded:
            await send(Head(connection.status, connection.reason, headers, events=True))
            await self._relay_events(connection, send)
        else:
            await send(Head(connection.status, connection.reason, headers))
            while data := await connection.read():
                await send(Chunk(data))
        if connection.trailers:
            await send(Trailers(http.end_to_end(connection.trailers)))

    async def _whole(self, connection: Connection) -> bytes:
        parts: list[bytes] = []
        size = 0
        while data := await connection.read():
            parts.append(data)
            size += len(data)
            if size > self._limits.max_answer_bytes:
                raise errors.UpstreamProtocol(
                    f"The backend's answer is larger than {self._limits.max_answer_bytes} bytes."
                )
        return b"".join(parts)

    async def _relay_events(self, connection: Connection, send: Send) -> None:
        decoder = Decoder(self._limits.max_frame_bytes)
        over = False
        try:
            while data := await connection.read():
                over = await _pass(decoder.feed(data), send) or over
            over = await _pass(decoder.end(), send) or over
        except FrameTooLarge:
            raise errors.UpstreamProtocol(
                f"One event of the backend is larger than {self._limits.max_frame_bytes} bytes."
            ) from None
        except jsonbytes.NotJSON as error:
            # Raised by whoever looked into an event on its way out.
            raise errors.UpstreamProtocol(f"An event of the backend could not be understood: {error}") from error
        except errors.StreamCut:
            if not over:
                raise
        if not over:
            raise errors.StreamCut()
        if decoder.rest():
            await send(sse.event(decoder.rest()))

    def _request(self, turn: Turn, endpoint: Endpoint) -> bytes:
        lines = [
            f"{turn.method} {endpoint.prefix}".encode() + turn.target + b" HTTP/1.1",
            b"Host: " + endpoint.authority,
        ]
        lines += [name + b": " + value for name, value in self._headers(turn)]
        body = turn.body.raw
        if body or turn.method in ("POST", "PUT", "PATCH"):
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _headers(self, turn: Turn) -> http.Headers:
        refused = self._refused
        if turn.operation is Operation.CREATE:
            # The answer is read here: it must not be compressed on this hop.
            refused = refused | {b"accept-encoding"}
        headers = http.without(turn.headers, refused)
        present = {name.lower() for name, _ in headers}
        added = tuple((n, v) for n, v in turn.upstream_headers if n.lower() not in present)
        if self._authorization is not None:
            added += ((b"Authorization", self._authorization),)
        return headers + added

    @property
    def ready(self) -> bool:
        """Whether any endpoint is believed to be well."""
        return any(endpoint.healthy for endpoint in self._pool.endpoints)

    async def check(self, path: str) -> None:
        """Asks every endpoint for `path` once and notes which ones answer with a 2xx."""
        for endpoint in self._pool.endpoints:
            endpoint.healthy = await self._answers(endpoint, path)

    async def _answers(self, endpoint: Endpoint, path: str) -> bool:
        probe = Pool([endpoint], limit=1, connect=self._limits.first_byte, idle=0, wait=1)
        try:
            _, connection = await probe.acquire(fresh=True)
        except errors.ProxyError:
            return False
        try:
            request = b"GET " + f"{endpoint.prefix}{path}".encode() + b" HTTP/1.1\r\nHost: " + endpoint.authority
            connection.send("GET", request + b"\r\nConnection: close\r\n\r\n")
            await self._head(connection)
            return 200 <= connection.status < 300
        except errors.UpstreamError:
            return False
        finally:
            probe.release(endpoint, connection)

    def close(self) -> None:
        """Drops the idle connections."""
        self._pool.close()


async def _pass(parts: Iterable[Frames | Event], send: Send) -> bool:
    """Sends the parts on; whether the response is over with one of them."""
    over = False
    for part in parts:
        await send(part)
        over = over or (isinstance(part, Event) and part.type in TERMINAL)
    return over
