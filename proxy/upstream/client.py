"""The one HTTP call: a turn goes up, its answer comes back through `send`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import lru_cache

from proxy import errors
from proxy.chain import Send
from proxy.protocol import headers as http
from proxy.protocol.events import Answer, Chunk, Head, Trailers
from proxy.protocol.turn import Operation, Turn
from proxy.upstream.connection import Connection, Patience
from proxy.upstream.pool import Endpoint, Pool
from proxy.upstream.relay import Relay

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
    """How long and how much (bytes) an answer may take."""

    patience: Patience
    max_answer_bytes: int
    max_frame_bytes: int


class Client:
    """Calls one backend."""

    def __init__(self, pool: Pool, limits: Limits, *, authorization: bytes | None, forward_credentials: bool) -> None:
        self._pool = pool
        self._limits = limits
        self._authorization = b"" if authorization is None else http.block(((b"Authorization", authorization),))
        self._refused = _REFUSED if forward_credentials else _REFUSED | _CREDENTIALS
        self._refused_of_creates = self._refused | {b"accept-encoding"}

    async def __call__(self, turn: Turn, send: Send) -> None:
        """Relays the answer to `turn`. Raises `UpstreamError` for whatever goes wrong on this side."""
        endpoint, connection = await self._begin(turn)
        try:
            await self._relay(turn, connection, send)
        except asyncio.CancelledError:
            if not connection.expired:
                raise
            self._expire()
        finally:
            # An answer that is not over leaves a connection that cannot be used again: it is dropped,
            # and so the backend learns at once that nobody waits any more.
            self._pool.release(endpoint, connection)

    async def _begin(self, turn: Turn) -> tuple[Endpoint, Connection]:
        """Sends the request until an answer begins: a second time, on a fresh connection, if a used one was dead."""
        for fresh in (False, True):
            endpoint, connection = (not fresh and self._pool.at_hand()) or await self._pool.acquire(fresh=fresh)
            begun = False
            try:
                self._send(connection, turn.method, self._request(turn, endpoint))
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

    def _send(self, connection: Connection, method: str, request: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # nobody else can await the answer
        connection.send(method, request, self._limits.patience, task.cancel)

    async def _head(self, connection: Connection) -> None:
        try:
            await connection.head()
        except asyncio.CancelledError:
            if not connection.expired:
                raise
            self._expire()

    def _expire(self) -> None:
        """Turns the cancellation by the connection's clock into what it means; one by a client goes on."""
        task = asyncio.current_task()
        if task is not None and task.uncancel():
            raise asyncio.CancelledError
        total = self._limits.patience.total
        raise errors.TotalTimeout(f"The backend did not finish its answer within {total:g} seconds.")

    async def _relay(self, turn: Turn, connection: Connection, send: Send) -> None:
        headers, media, encoding, _ = http.read(connection.headers)
        if turn.operation is Operation.CREATE and http.is_json(media):
            body = connection.whole() or await self._whole(connection)
            if len(body) > self._limits.max_answer_bytes:
                raise self._too_large()
            await send(Answer(connection.status, connection.reason, headers, body))
        elif turn.operation is Operation.CREATE and media == b"text/event-stream" and encoding in (None, b"identity"):
            await send(Head(connection.status, connection.reason, headers, events=True))
            await Relay(send, self._limits.max_frame_bytes).run(connection)
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
                raise self._too_large()
        return b"".join(parts)

    def _too_large(self) -> errors.UpstreamProtocol:
        return errors.UpstreamProtocol(f"The backend's answer is larger than {self._limits.max_answer_bytes} bytes.")

    def _request(self, turn: Turn, endpoint: Endpoint) -> bytes:
        # An answer that is read here must not be compressed on this hop.
        refused = self._refused_of_creates if turn.operation is Operation.CREATE else self._refused
        lines, present = _passed_on(turn.headers, refused)
        added = tuple((name, value) for name, value in turn.upstream_headers if name.lower() not in present)
        body = turn.body.raw
        if body or turn.method in ("POST", "PUT", "PATCH"):
            added += ((b"Content-Length", b"%d" % len(body)),)
        start = f"{turn.method} {endpoint.prefix}".encode() + turn.target + b" HTTP/1.1\r\nHost: " + endpoint.authority
        return b"%b\r\n%b%b%b\r\n%b" % (start, lines, self._authorization, http.block(added), body)

    @property
    def ready(self) -> bool:
        """Whether any endpoint is believed to be well."""
        return any(endpoint.healthy for endpoint in self._pool.endpoints)

    async def check(self, path: str) -> None:
        """Asks every endpoint for `path` once and notes which ones answer with a 2xx."""
        for endpoint in self._pool.endpoints:
            endpoint.healthy = await self._answers(endpoint, path)

    async def _answers(self, endpoint: Endpoint, path: str) -> bool:
        probe = Pool([endpoint], limit=1, connect=self._limits.patience.first_byte, idle=0, wait=1)
        try:
            _, connection = await probe.acquire(fresh=True)
        except errors.ProxyError:
            return False
        try:
            request = b"GET " + f"{endpoint.prefix}{path}".encode() + b" HTTP/1.1\r\nHost: " + endpoint.authority
            self._send(connection, "GET", request + b"\r\nConnection: close\r\n\r\n")
            await self._head(connection)
            return 200 <= connection.status < 300
        except errors.UpstreamError:
            return False
        finally:
            probe.release(endpoint, connection)

    def close(self) -> None:
        """Drops the idle connections."""
        self._pool.close()


@lru_cache(maxsize=256)
def _passed_on(headers: http.Headers, refused: frozenset[bytes]) -> tuple[bytes, frozenset[bytes]]:
    """The header lines that go upstream, and their names in lower case."""
    kept = http.without(headers, refused)
    return http.block(kept), frozenset(name.lower() for name, _ in kept)
