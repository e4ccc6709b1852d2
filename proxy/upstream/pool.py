"""Connections to one backend: several endpoints in turn, idle connections kept and used again, newest first."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from proxy import errors
from proxy.upstream.connection import Connection


@dataclass(slots=True)
class Endpoint:
    """Where one server of a backend listens."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str  # the URL's own path, put before every request's
    authority: bytes  # for the Host header
    idle: deque[Connection] = field(default_factory=deque)
    healthy: bool = True

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext | None = None) -> Endpoint:
        """Reads a URL such as http://host:8000; a /v1 at its end is dropped, since requests bring their own."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        context = (tls or ssl.create_default_context()) if secure else None
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        authority = parts.netloc.rpartition("@")[2].encode()
        return cls(url, parts.hostname or "", port, context, prefix, authority)


class Pool:
    """Hands out connections: `acquire`, then `release` in every case."""

    def __init__(self, endpoints: list[Endpoint], *, limit: int, connect: float, idle: float, wait: float) -> None:
        self._endpoints = endpoints
        self._next = 0
        self._connect_limit = connect
        self._idle_limit = idle
        self._wait_limit = wait
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()  # for a connection to come back
        self.open = 0  # connections handed out, or about to be

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints, healthy or not."""
        return self._endpoints

    async def acquire(self, *, fresh: bool = False) -> tuple[Endpoint, Connection]:
        """A connection to the next endpoint that takes one; a used one unless `fresh`.

        Raises `Overloaded` when all connections are taken for too long, `UpstreamUnreachable`, `ConnectTimeout`.
        """
        await self._slot()
        try:
            found = await self._reach(fresh)
        except BaseException:
            self._give_back()
            raise
        return found

    def at_hand(self) -> tuple[Endpoint, Connection] | None:
        """What `acquire` would give without waiting: a used connection to the only endpoint, the most common case."""
        endpoint = self._endpoints[0]
        if len(self._endpoints) > 1 or not endpoint.idle or self._waiting or self.open >= self._limit:
            return None
        kept = self._kept(endpoint)
        if kept is None:
            return None
        self.open += 1
        return endpoint, kept

    def release(self, endpoint: Endpoint, connection: Connection) -> None:
        """Takes a connection back: kept if it can be used again, else dropped."""
        self._give_back()
        if connection.reusable:
            connection.rest()
            endpoint.idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Drops every idle connection."""
        for endpoint in self._endpoints:
            while endpoint.idle:
                endpoint.idle.pop().close()

    async def _slot(self) -> None:
        """Takes one of the places that `limit` allows; in the order of asking, where there is none."""
        if self.open < self._limit and not self._waiting:
            self.open += 1
            return
        given = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        try:
            async with asyncio.timeout(self._wait_limit):
                await given
        except BaseException as error:
            if given.done() and not given.cancelled():
                self._give_back()
            elif given in self._waiting:
                self._waiting.remove(given)
            if not isinstance(error, TimeoutError):
                raise
            raise errors.Overloaded(
                "All connections to the backend are in use. Retry later.", headers=((b"Retry-After", b"1"),)
            ) from None

    def _give_back(self) -> None:
        while self._waiting:
            given = self._waiting.popleft()
            if not given.done():
                given.set_result(None)  # the place goes over to the next one
                return
        self.open -= 1

    async def _reach(self, fresh: bool) -> tuple[Endpoint, Connection]:
        failure: errors.UpstreamError | None = None
        for endpoint in self._in_turn():
            try:
                return endpoint, await self._connection(endpoint, fresh)
            except errors.UpstreamError as error:
                failure = error
        raise failure or errors.UpstreamUnreachable()

    def _in_turn(self) -> list[Endpoint]:
        count = len(self._endpoints)
        if count == 1:
            return self._endpoints
        order = [self._endpoints[(self._next + step) % count] for step in range(count)]
        self._next = (self._next + 1) % count
        return [e for e in order if e.healthy] or order

    async def _connection(self, endpoint: Endpoint, fresh: bool) -> Connection:
        if not fresh:
            kept = self._kept(endpoint)
            if kept is not None:
                return kept
        return await self._connect(endpoint)

    def _kept(self, endpoint: Endpoint) -> Connection | None:
        while endpoint.idle:
            connection = endpoint.idle.pop()
            if connection.fresh(self._idle_limit):
                return connection
            connection.close()
        return None

    async def _connect(self, endpoint: Endpoint) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_limit):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), endpoint.host, endpoint.port, ssl=endpoint.tls
                )
        except TimeoutError:
            raise errors.ConnectTimeout(
                f"The backend did not accept a connection within {self._connect_limit:g} seconds."
            ) from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise errors.UpstreamUnreachable(f"The backend could not be reached: {reason}") from error
        return connection
