"""Writes an answer to a client: the bytes as they came, straight to the transport, under backpressure.

The head is written as the backend spelled it: headers keep their case, order and odd bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from proxy import errors
from proxy.config.shape import Heartbeat
from proxy.facades import error_body, openai
from proxy.protocol import headers as http
from proxy.protocol import sse
from proxy.protocol.events import Answer, Chunk, Event, Frames, Head, Message, Trailers, encode
from proxy.protocol.lookup import Reply as Looked
from proxy.server.request import Request
from proxy.telemetry import FIRST_EVENT, OPEN_STREAMS

_JSON = (b"Content-Type", b"application/json")
_LENGTH = frozenset({b"content-length"})
_BODILESS = frozenset({204, 304})


class Reply:
    """One answer. `send` is the outermost `send` of the chain."""

    def __init__(self, request: Request, request_id: str, began: float, heartbeat: Heartbeat) -> None:
        self._http = request
        self._client = request.connection
        self.request_id = request_id
        self._began: float | None = began  # until the first event has been sent
        self._options = heartbeat
        self._chunked_out = False
        self._close = not request.keep_alive or not request.http_1_1
        self._trailers: http.Headers = ()
        self._latest = b""
        self._events = False
        self._finished = False
        self._heartbeat: _Beats | None = None
        self.path = request.path
        self.kind = "unknown"  # what the request was, for the metrics
        self.begun = False
        self.code = 0  # the status, once it is sent
        self.sent = 0  # bytes of body

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow on the connection."""
        return not self._close

    # What the chain and the listener call

    async def send(self, message: Message) -> None:
        """Passes one message on; waits while the client does not read."""
        match message:
            case Frames() | Event():
                self._put_frames(message.raw)
            case Chunk():
                self._put(message.raw)
            case Head():
                self._begin(message)
            case Answer():
                self._whole(message.status, message.reason, message.headers, message.body)
            case Trailers():
                self._trailers = message.headers
        if self._client.writing_paused:
            await self._client.drain()

    __call__ = send

    def deltas(self, raw: bytes) -> Coroutine[Any, Any, None] | None:
        """The `send` of deltas: makes a coroutine only while the client does not read."""
        self._put_frames(raw)
        return self._client.drain() if self._client.writing_paused else None

    def looked_up(self, looked: Looked) -> None:
        """Sends what the store answered."""
        self._whole(looked.status, b"", looked.headers, looked.body)

    def fail(self, error: errors.ProxyError) -> None:
        """Says what went wrong: by status, or, too late for that, by a last event; other bodies are cut short."""
        if not self.begun:
            headers = (_JSON, (b"X-Request-Id", self.request_id.encode()), *error.headers)
            self._whole(error.status, b"", headers, error_body(error))
        elif self._events:
            self._put(openai.late_error(error, self._last_number() + 1).raw)
        else:
            self.abort()

    def finish(self) -> None:
        """Ends the body."""
        if self._finished:
            return
        self._finished = True
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._events:
            OPEN_STREAMS.dec()
        transport = self._client.transport
        if self._chunked_out and transport is not None and not transport.is_closing():
            transport.write(b"0\r\n" + http.block(self._trailers) + b"\r\n")

    def abort(self) -> None:
        """Cuts the connection, so that an unfinished body cannot pass for a whole one."""
        self._close = True
        self._chunked_out = False
        if self._client.transport is not None:
            self._client.transport.abort()

    def keepalive(self) -> None:
        """Writes one keepalive event, unless the client does not read anyway."""
        if self._finished or self._client.writing_paused:
            return
        number = max(self._last_number(), 0)
        self._put(encode("keepalive", b'{"type":"keepalive","sequence_number":%d}' % number).raw)

    # Inner matters

    def _last_number(self) -> int:
        """The newest sequence number that was sent; -1 before the first."""
        numbers = (frame.sequence_number for frame in reversed(sse.frames(self._latest)))
        return next((number for number in numbers if number is not None), -1)

    def _begin(self, head: Head) -> None:
        headers = http.without(head.headers, _LENGTH) if head.events else head.headers
        bodiless = self._http.method == "HEAD" or head.status in _BODILESS
        sized = http.read(headers).length is not None
        self._chunked_out = not (bodiless or sized) and self._http.http_1_1
        if self._chunked_out:
            headers += ((b"Transfer-Encoding", b"chunked"),)
        self._close = self._close or not (bodiless or sized or self._chunked_out)
        self._events = head.events
        if head.events:
            OPEN_STREAMS.inc()
        self._put_head(head.status, head.reason, headers)
        if head.events:
            seconds = self._options.composed_seconds if head.composed else self._options.verbatim_seconds
            if seconds:  # from now on, a silence of that length is filled
                self._heartbeat = _Beats(self, seconds, asyncio.get_running_loop())

    def _whole(self, status: int, reason: bytes, headers: http.Headers, body: bytes) -> None:
        length = b"%d" % len(body)
        named = http.read(headers).length
        if named is None:
            headers += ((b"Content-Length", length),)
        elif named != length:
            headers = tuple((n, length if n.lower() in _LENGTH else v) for n, v in headers)
        self._put_head(status, reason, headers, b"" if self._http.method == "HEAD" else body)

    def _put_head(self, status: int, reason: bytes, headers: http.Headers, body: bytes = b"") -> None:
        self.begun, self.code = True, status
        if self._http.asks and not self._http.complete:
            self._close = True  # who was not told to send the body may send it, or not
        if self._close:
            headers += ((b"Connection", b"close"),)
        self.sent += len(body)
        self._transport().write(_head(status, reason, headers) + body)

    def _put_frames(self, raw: bytes) -> None:
        if b'"sequence_number"' in raw:
            self._latest = raw
        self._put(raw)
        if self._heartbeat is not None:
            self._heartbeat.heard()
        if self._began is not None:
            FIRST_EVENT.observe(time.perf_counter() - self._began)
            self._began = None

    def _put(self, data: bytes) -> None:
        size = len(data)
        if not size:
            return  # an empty chunk would end the body
        self.sent += size
        self._transport().write(b"%x\r\n%b\r\n" % (size, data) if self._chunked_out else data)

    def _transport(self) -> asyncio.Transport:
        transport = self._client.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        return transport


class _Beats:
    """A timer that is looked at again only when it fires."""

    def __init__(self, reply: Reply, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._reply = reply
        self._seconds = seconds
        self._loop = loop
        self._heard = loop.time()
        self._timer = loop.call_later(seconds, self._look)

    def heard(self) -> None:
        self._heard = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        silent = self._loop.time() - self._heard
        if silent >= self._seconds:
            try:
                self._reply.keepalive()
            except ConnectionResetError:
                return
            self._heard, silent = self._loop.time(), 0.0
        self._timer = self._loop.call_later(self._seconds - silent, self._look)


@lru_cache(maxsize=256)
def _head(status: int, reason: bytes, headers: http.Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason or _reason(status), http.block(headers))


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
