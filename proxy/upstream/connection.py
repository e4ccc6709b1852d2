"""One connection to a backend: an asyncio protocol over llhttp's parser, with backpressure and limits in time.

Bodies arrive as they are: not decompressed, not re-chunked. What came in one read comes out as one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from proxy import errors
from proxy.protocol.headers import Headers, get

_HIGH_WATER = 256 * 1024  # bytes that may wait for the reader before the socket is no longer read

Sink = Callable[[bytes], bool]  # takes bytes of a body; False: its task must go on from there


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an answer may take, in seconds."""

    first_byte: float  # until its head is there
    idle: float  # of silence within it
    total: float

    @property
    def shortest(self) -> float:
        """How often it must be looked at the clock."""
        return min(self.first_byte, self.idle, self.total)


class Connection(asyncio.Protocol):
    """Sends one request at a time; `head`, then `read` until it gives b"", or `pump` until it gives False."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._error: errors.UpstreamError | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self.used = 0  # requests that were answered on this connection
        self.idle_since = 0.0
        self._reset("")

    def _reset(self, method: str) -> None:
        self._method = method
        self._reason = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._held = 0  # bytes that came since the reader last took some
        self._paused = False
        self._keep = False
        self.began = False  # any byte of the answer has come
        self.status = 0  # final status, once the head is there
        self.headers: Headers = ()
        self.trailers: Headers = ()
        self.complete = False
        self.expired = False  # the answer took longer than the total allows; its task has been interrupted
        self._patience: Patience | None = None
        self._sent = self._heard = 0.0
        self.on_body = self._chunks.append  # which the parser calls, for each chunk of a body
        self._parser = httptools.HttpResponseParser(self)

    # What the shell calls

    def send(self, method: str, request: bytes, patience: Patience, interrupt: Callable[[], object]) -> None:
        """Writes a whole request; the answer is awaited with `head`.

        A task that keeps an answer for longer than the total, wherever it waits, is interrupted.
        """
        self._reset(method)
        if self._transport is None or self._transport.is_closing():
            raise errors.UpstreamDropped()
        self._patience, self._interrupt = patience, interrupt
        self._sent = self._heard = self._loop.time()
        if self._alarm is None:
            self._alarm = self._loop.call_later(patience.shortest, self._look_at_clock)
        self._transport.write(request)

    async def head(self) -> None:
        """Waits for the status line and headers. Raises `UpstreamDropped`, `UpstreamProtocol`, `FirstByteTimeout`."""
        while not self.status:
            self._raise_if_broken()
            await self._wait()

    async def read(self) -> bytes:
        """What has come of the body since the last call; b"" at its end. Raises `StreamCut`, `IdleTimeout`."""
        while not self._chunks:
            if self.complete:
                return b""
            self._raise_if_broken()
            await self._wait()
        return self._taken()

    def whole(self) -> bytes:
        """All of the body, where it has come already; else b""."""
        return self._taken() if self.complete and self._chunks else b""

    async def pump(self, sink: Sink) -> bool:
        """Waits while `sink` takes what comes, in the very calls that read it: no task is woken for that.

        Returns True when the sink says that its task must go on, and False at the body's end. Raises as `read` does.
        """
        while True:
            if self._chunks:
                if not sink(self._taken()):
                    return True
            elif self.complete:
                return False
            else:
                self._raise_if_broken()
                if await self._sunk(sink):
                    return True

    async def _sunk(self, sink: Sink) -> bool:
        """Lends the sink to `data_received` until it does not want more."""
        self._sink = sink
        try:
            await self._wait()
            return self._sink is None
        finally:
            self._sink = None

    def _taken(self) -> bytes:
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._held = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._heard = self._loop.time()
            self._transport.resume_reading()
        return data

    @property
    def reason(self) -> bytes:
        """The reason phrase, as the backend spelled it."""
        return self._reason

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the answer is over, and neither side wants to close."""
        open_ = self._transport is not None and not self._transport.is_closing()
        return open_ and self.complete and self._keep and self._error is None

    def fresh(self, seconds: float) -> bool:
        """Whether an idle connection is still open, and has not been idle for longer than that."""
        open_ = self._transport is not None and not self._transport.is_closing() and self._error is None
        return open_ and self._loop.time() - self.idle_since < seconds

    def rest(self) -> None:
        """Ends the watch of an answer that is over; the connection may wait for its next request."""
        self._patience = None
        self.used += 1
        self.idle_since = self._loop.time()

    def close(self) -> None:
        """Drops the connection at once, whatever is in flight: the backend sees its client gone."""
        self._unwatch()
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.began = True
        self._heard = self._loop.time()
        self._held += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(errors.UpstreamProtocol("The backend changed the protocol although it was not asked to."))
        except httptools.HttpParserError as error:
            self._fail(errors.UpstreamProtocol(f"The backend's answer is not HTTP/1.1: {error}"))
        if self._sink is not None and self._chunks and self._error is None:
            if not self._sink(self._taken()):
                self._sink = None
            elif not self.complete:
                return
        if self._held > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._unwatch()
        if self.status and not self.complete and error is None and self._ends_with_connection():
            self.complete = True
        if not self.complete:
            self._fail(errors.StreamCut() if self.status else errors.UpstreamDropped())
        self._keep = False
        self._wake()

    # What the parser calls

    def on_message_begin(self) -> None:
        if self.complete:
            # What nobody asked for would be taken for the answer to this request, or to the next one.
            raise ValueError("a second answer to one request")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            return
        if not status:
            raise ValueError("status 000")
        self.status, self.headers, self._pairs = status, tuple(self._pairs), []
        self._keep = self._parser.should_keep_alive()
        if self._method == "HEAD":
            # The parser does not know that no body follows; a connection in that state is not used again.
            self.complete, self._keep = True, False

    def on_message_complete(self) -> None:
        if not self.status:  # a 1xx interlude is over
            self._pairs, self._reason = [], b""
            return
        self.trailers, self._pairs = tuple(self._pairs), []
        self.complete = True

    # Inner matters

    def _ends_with_connection(self) -> bool:
        return get(self.headers, b"content-length") is None and get(self.headers, b"transfer-encoding") is None

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise self._error

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: errors.UpstreamError) -> None:
        if self._error is None:
            self._error = error
        self._keep = False

    def _look_at_clock(self) -> None:
        self._alarm = None
        patience, now = self._patience, self._loop.time()
        if patience is None:
            return  # nothing is awaited; the next request winds it up again
        if self._waiter is None:
            # A client that does not read keeps us from reading; that is not the backend's silence.
            self._heard = now
        if now - self._sent >= patience.total:
            self.expired = True
            self._interrupt()
            return
        if not self.status and now - self._sent >= patience.first_byte:
            said = f"The backend did not begin its answer within {patience.first_byte:g} seconds."
            self._fail(errors.FirstByteTimeout(said))
        elif self.status and now - self._heard >= patience.idle:
            self._fail(errors.IdleTimeout(f"The backend sent nothing for {patience.idle:g} seconds."))
        else:
            self._alarm = self._loop.call_at(self._due(patience), self._look_at_clock)
            return
        self._wake()

    def _due(self, patience: Patience) -> float:
        next_ = self._heard + patience.idle if self.status else self._sent + patience.first_byte
        # The head may come at any time, and with it the other limit.
        return min(next_, self._sent + patience.total, self._loop.time() + patience.shortest)

    def _unwatch(self) -> None:
        self._patience = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
