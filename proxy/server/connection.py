"""A client's connection: an asyncio protocol over llhttp's parser. Requests are answered one at a time, in order.

Each request is answered by a task of its own, which is cancelled when its client goes. What a client sends faster than
it is answered waits in the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import httptools

from proxy.protocol.headers import Headers, block
from proxy.server.request import Request, check_head, framing, head_size

HEAD_SECONDS = 60.0  # for a request's head to arrive whole
KEEP_ALIVE_SECONDS = 3600.0  # for a connection on which nothing happens
_LINGER_SECONDS = 10.0  # for the rest of a body that nobody wants
_MAX_HEAD = 128 * 1024  # bytes; clients such as Codex send headers of many kilobytes
_TOO_MUCH_HEAD = f"its head is larger than {_MAX_HEAD} bytes"
_MAX_WAITING = 16  # requests; reading goes on below that, or nobody would notice that their client leaves
_MAX_FRAMING = 16  # bytes, for each of a body, that chunks may take beside that
_TOO_MUCH_FRAMING = "too little of it is body"
_HIGH_WATER = 256 * 1024  # bytes of a body that nobody has asked for yet


class Answer(Protocol):
    """What a handler leaves behind: everything has been written by then."""

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow on the connection."""


Handler = Callable[[Request], Awaitable[Answer]]


class Connection(asyncio.Protocol):
    """What a server makes for each client."""

    def __init__(self, answer: Handler, refuse: Callable[[str], bytes], open_: set[Connection]) -> None:
        self._answer = answer
        self._refuse = refuse  # makes the last words to a client whose bytes are not HTTP
        self._open = open_
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[Request] = deque()  # the first is being answered
        self._incoming: Request | None = None  # whose end has not come yet
        self._pairs: list[tuple[bytes, bytes]] = []
        self._framing: Headers = ()  # of a body that follows an offer of another protocol
        self._heading = False  # a head has begun, and not ended
        self._extra = 0  # bytes of the message that are no body, in reads after the one in which it began
        self._read = 0  # bytes of the newest read
        self._task: asyncio.Task[None] | None = None
        self._broken: str | None = None  # nothing more can be understood
        self._closing = False
        self._reading_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._answered = 0
        self._flushing = False  # the task waits for the client to read the end of its answer
        self._unsent = 0  # bytes, at the last look at the clock
        self._quiet_since = self._loop.time()
        self.writing_paused = False
        self.transport: asyncio.Transport | None = None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Who answers a request at the moment."""
        return self._task

    @property
    def unsent(self) -> int:
        """Bytes that were written and not taken yet."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    async def drain(self) -> None:
        """Waits until the client has read enough for more to be written. Raises `ConnectionResetError` if it leaves."""
        while self.writing_paused:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if self.transport is None:
            raise ConnectionResetError("the client has gone")

    def close_soon(self) -> None:
        """Takes no more requests; what is being answered is answered."""
        self._closing = True
        if self._task is None and self.transport is not None:
            self.transport.close()

    def cancel(self) -> None:
        """Ends the task of the request that is being answered."""
        if self._task is not None:
            self._task.cancel()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        self._watch = self._loop.call_later(HEAD_SECONDS, self._look_at_clock)

    def data_received(self, data: bytes) -> None:
        if self._broken is not None or (self._closing and self._task is None):
            return
        self._read = len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._break(str(error.__context__ or error))
        if self._incoming is not None and self._broken is None:
            self._weigh(self._incoming)

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._watch.cancel()
        self._open.discard(self)
        self.transport = None
        self.resume_writing()
        self._requests.clear()
        self.cancel()

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._framing:
            return
        self._incoming = Request(self)
        self._pairs, self._extra, self._heading = [], -self._read, True

    def on_url(self, part: bytes) -> None:
        if self._incoming is not None and self._heading:
            self._incoming.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._pairs.append((name, value.rstrip(b" \t")))  # the parser leaves what ends a line

    def on_headers_complete(self) -> None:
        request, parser = self._incoming, self._parser
        if request is None or self._framing:
            return
        request.method = parser.get_method().decode("latin-1")
        request.headers = tuple(self._pairs)
        request.http_1_1 = parser.get_http_version() == "1.1"
        cut = self._extra >= 0
        if (cut or self._read > _MAX_HEAD) and head_size(request) > _MAX_HEAD:
            raise ValueError(_TOO_MUCH_HEAD)
        self._extra = -self._read
        request.locate()
        request.asks = check_head(request.target, request.headers, request.http_1_1)
        request.keep_alive = parser.should_keep_alive() and not self._closing
        if parser.should_upgrade():
            self._framing = framing(request)
        self._heading = False
        self._requests.append(request)
        if self._task is None:
            self._begin()

    def on_body(self, part: bytes) -> None:
        request = self._incoming
        if request is not None:
            self._extra -= len(part)
            request.came(part)
            if request.limit is None and request.size > _HIGH_WATER:
                self._pause_reading()

    def on_message_complete(self) -> None:
        if self._framing:
            return
        request, self._incoming = self._incoming, None
        if request is not None:
            request.end()
        if len(self._requests) > _MAX_WAITING:
            self._pause_reading()

    # Inner matters

    def _parse(self, data: bytes) -> None:
        """Feeds the parser. Another protocol that is offered is declined by answering in this one."""
        rest: bytes | memoryview = data
        while rest:
            try:
                return self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
            self._parser = httptools.HttpRequestParser(self)
            if self._framing:  # to the parser, all that follows is of the other protocol, the body too
                self._parser.feed_data(b"POST / HTTP/1.1\r\n" + block(self._framing) + b"\r\n")
                self._framing = ()
        return None

    def _weigh(self, request: Request) -> None:
        """Bounds what is held of a message, or read for it, beside its body: its head, chunk extensions, trailers."""
        self._extra += self._read
        if self._heading and not self._extra:  # it began in this read
            self._quiet_since = self._loop.time()
        if self._extra > _MAX_HEAD + _MAX_FRAMING * request.size:
            self._break(_TOO_MUCH_HEAD if self._heading else _TOO_MUCH_FRAMING)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._serve(self._requests[0]))

    async def _serve(self, request: Request) -> None:
        """Answers one request, and makes the connection ready for the next one, or closes it."""
        keep = False
        try:
            answer = await self._answer(request)
            if answer.keep_alive:
                keep = request.complete or await self._rest_of(request)
                if self.writing_paused:  # or a client that reads nothing could ask for ever more
                    self._flushing = True
                    await self.drain()
        except ConnectionResetError:
            pass  # the client left while it was answered: nobody's fault, nothing to say
        finally:
            self._flushing = False
            self._task = None
            self._next(keep)

    async def _rest_of(self, request: Request) -> bool:
        if request.asks:
            return False
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await request.discard()
        except TimeoutError:
            return False
        return request.complete

    def _next(self, keep: bool) -> None:
        if self._requests:
            self._requests.popleft()
        self._answered += 1
        self._quiet_since = self._loop.time()
        if self.transport is None:
            return
        if keep and not self._closing and self._requests:
            self.resume_reading()
            self._begin()
            return
        if self._broken is not None:
            self._say_broken(keep)
        elif keep and not self._closing:
            self.resume_reading()
        else:
            self.transport.close()

    def _break(self, error: str) -> None:
        self._broken = error
        if self._incoming is not None and not self._heading:
            self._incoming.end(error)
        elif self._task is None:
            self._say_broken(True)

    def _say_broken(self, clear: bool) -> None:
        if self.transport is not None:
            if clear and self._broken is not None:
                self.transport.write(self._refuse(self._broken))
            self.transport.close()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Takes more of what the client sends."""
        if self._reading_paused and self.transport is not None and len(self._requests) <= _MAX_WAITING:
            self._reading_paused = False
            self.transport.resume_reading()

    def _look_at_clock(self) -> None:
        """Closes what brings no head, or is not used; one look a minute is exact enough."""
        if self.transport is None:
            return
        quiet = self._loop.time() - self._quiet_since
        patience = HEAD_SECONDS if self._heading or not self._answered else KEEP_ALIVE_SECONDS
        unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if unsent and unsent == self._unsent and (self._task is None or self._flushing):
            self.transport.abort()  # what remains of an answer is not read
        elif self._task is None and quiet >= patience:
            self.transport.close()
        self._watch = self._loop.call_later(HEAD_SECONDS, self._look_at_clock)
