"""The HTTP/1.1 server side, played over a transport that a script holds: what comes in, and what is written."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy import errors
from proxy.server import inbound
from proxy.server.connection import Connection
from proxy.server.request import Request

HOST = b"Host: x\r\n"
KB = 1024


@dataclass
class Done:
    """What a handler leaves."""

    keep_alive: bool = True


class Wire(asyncio.Transport):
    """A transport whose other end is the script. What it feeds while reading is paused waits, as in a socket."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = b""
        self.unsent = 0
        self.paused = False
        self.closed = False
        self.aborted = False
        self.lost = False
        self._waiting = b""
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.closed, "written after the end"
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        waiting, self._waiting = self._waiting, b""
        if waiting:
            asyncio.get_running_loop().call_soon(self.feed, waiting)

    def close(self) -> None:
        self.closed = True
        if not self.unsent:
            self.lose()

    def abort(self) -> None:
        self.closed = self.aborted = True
        self.lose()

    # What the script does

    def feed(self, data: bytes) -> None:
        if self.paused:
            self._waiting += data
        elif not self.closed:
            self.protocol.data_received(data)

    def lose(self) -> None:
        """The client goes, or the last byte is out after a close."""
        if not self.lost:
            self.lost = self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


@dataclass
class Server:
    """A handler that notes what it was asked, and answers with the request's own words; a script may put in another."""

    answer: Callable[[Request], Awaitable[Done]] | None = None
    limit: int = 1024 * KB
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    open: set[Connection] = field(default_factory=set)

    def wire(self) -> Wire:
        return Wire(Connection(self.handle, lambda fault: f"[{fault}]".encode(), self.open))

    async def handle(self, request: Request) -> Done:
        self.requests.append(request)
        if self.answer is not None:
            return await self.answer(request)
        try:
            body = await inbound.body(request, self.limit, 60)
        except errors.ProxyError as error:
            write(request, b"%d " % error.status)
            return Done(request.keep_alive)
        self.asked.append((request.method, request.target, request.headers, body, request.keep_alive))
        write(request, request.path.encode() + b" ")
        return Done(request.keep_alive)


def write(request: Request, data: bytes) -> None:
    assert request.connection.transport is not None
    request.connection.transport.write(data)


async def settled() -> None:
    """Until nothing goes on any more but what waits for the script."""
    for _ in range(30):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    """Until the loop has brought it about."""
    for _ in range(100_000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never comes about")


def get(path: bytes = b"/a", headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + headers + b"\r\n"


def post(path: bytes, body: bytes, headers: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n%b" % (path, HOST, headers, len(body), body)


def chunked(path: bytes, *parts: bytes, headers: bytes = b"", trailers: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\n%b%bTransfer-Encoding: chunked\r\n\r\n" % (path, HOST, headers)
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailers + b"\r\n"


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
FORGED = get(b"/forged")


# Framing


PIPELINE = [
    (get(b"/1?q=1"), b"/1?q=1", b""),
    (post(b"/2", b"hello"), b"/2", b"hello"),
    (chunked(b"/3", b"he", b"llo"), b"/3", b"hello"),
    (b"\r\n" + chunked(b"/4", b"x" * 20, trailers=b"X-Sum: 1\r\nHost: y\r\n"), b"/4", b"x" * 20),
    (post(b"/5", b"asked", b"Expect: 100-continue\r\n"), b"/5", b"asked"),
    (get(b"/6", OFFER), b"/6", b""),
    (post(b"/7", FORGED, OFFER), b"/7", FORGED),
    (chunked(b"/8", FORGED, b"y", headers=OFFER, trailers=b"X-Sum: 2\r\n"), b"/8", FORGED + b"y"),
    (post(b"/9", b"", OFFER), b"/9", b""),
    (chunked(b"/10", headers=OFFER), b"/10", b""),
    (get(b"/11", b"Connection: close\r\n"), b"/11", b""),
]


async def test_pipelined_requests_give_the_same_answers_wherever_they_are_cut():
    stream = b"".join(request for request, _, _ in PIPELINE)
    for at in range(len(stream) + 1):
        server = Server()
        wire = server.wire()
        for piece in (stream[:at], stream[at:]):
            if piece:
                wire.feed(piece)
                await settled()
        assert [(target, body) for _, target, _, body, _ in server.asked] == [(t, b) for _, t, b in PIPELINE], at
        words = wire.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").split()
        assert words == [target.partition(b"?")[0] for _, target, _ in PIPELINE], at
        assert wire.closed
        assert not server.open


async def test_they_may_come_byte_by_byte():
    stream = b"".join(request for request, _, _ in PIPELINE)
    server = Server()
    wire = server.wire()
    for at in range(len(stream)):
        wire.feed(stream[at : at + 1])
        await asyncio.sleep(0)
    await settled()
    assert [(target, body) for _, target, _, body, _ in server.asked] == [(t, b) for _, t, b in PIPELINE]
    assert wire.written.count(b"100 Continue") == 1


async def test_headers_come_as_they_are_spelled_and_trailers_are_none():
    server = Server()
    server.wire().feed(chunked(b"/a", b"x", headers=b"X-Odd:  \xff\r\nx-odd:\r\n", trailers=b"Authorization: y\r\n"))
    await settled()
    ((method, _, headers, _, keep),) = server.asked
    assert (method, keep) == ("POST", True)
    assert headers == ((b"Host", b"x"), (b"X-Odd", b"\xff"), (b"x-odd", b""), (b"Transfer-Encoding", b"chunked"))


async def test_an_offer_of_another_protocol_hides_no_request_in_its_body():
    server = Server()
    wire = server.wire()
    wire.feed(post(b"/a", FORGED, OFFER) + get(b"/b"))
    await settled()
    assert wire.written == b"/a /b "


async def test_a_thousand_offers_in_one_read_are_declined_one_by_one():
    server = Server()
    wire = server.wire()
    wire.feed(get(b"/a", OFFER) * 1500 + get(b"/b", b"Connection: close\r\n"))
    await until(lambda: wire.closed)
    assert wire.written == b"/a " * 1500 + b"/b "


async def test_a_broken_body_after_an_offer_is_broken():
    server = Server()
    wire = server.wire()
    wire.feed(chunked(b"/a", headers=OFFER).replace(b"0\r\n\r\n", b"ZZ\r\n"))
    await settled()
    assert (wire.written, wire.closed) == (b"400 ", True)


@pytest.mark.parametrize("target", [b"x:1", b"/a"])
async def test_no_tunnel_is_made(target: bytes):
    server = Server()
    wire = server.wire()
    wire.feed(post(target, b"hello").replace(b"POST", b"CONNECT") + get())
    await settled()
    assert (wire.written[:1], wire.closed, server.asked) == (b"[", True, [])


# Bounds


async def test_whole_pipelined_requests_before_it_are_no_part_of_a_head():
    server = Server()
    wire = server.wire()
    wire.feed(post(b"/a", b"x" * 200 * KB) + get(b"/b")[:5])
    await settled()
    wire.feed(get(b"/b")[5:] + get(b"/c") * 8000 + b"GET /d")
    await until(lambda: len(server.asked) == 8002)
    wire.feed(get(b"/d", b"Connection: close\r\n")[6:])
    await settled()
    assert wire.written == b"/a /b " + b"/c " * 8000 + b"/d "


@pytest.mark.parametrize(
    "head",
    [
        get(headers=b"X-A: " + b"a" * 130 * KB + b"\r\n"),
        get(headers=b"X-A: %b\r\n" % (b"a" * 10 * KB) * 14),
        get(b"/" + b"a" * 130 * KB),
        get(headers=b"%b: 1\r\n" % (b"a" * 130 * KB)),
    ],
)
@pytest.mark.parametrize("size", [256 * KB, 64 * KB, 1000])
async def test_a_head_may_not_be_too_large_in_one_read_nor_in_many(head: bytes, size: int):
    server = Server()
    wire = server.wire()
    for at in range(0, len(head), size):
        wire.feed(head[at : at + size])
    await settled()
    assert wire.written == b"[its head is larger than 131072 bytes]"
    assert (wire.closed, server.asked) == (True, [])


@pytest.mark.parametrize("size", [256 * KB, 64 * KB, 1000])
async def test_a_large_head_within_the_limit_is_answered(size: int):
    head = get(b"/" + b"a" * 60 * KB, b"X-A: " + b"a" * 60 * KB + b"\r\n")
    server = Server()
    wire = server.wire()
    for at in range(0, len(head), size):
        wire.feed(head[at : at + size])
    await settled()
    assert len(server.asked) == 1
    assert not wire.closed


async def test_a_head_that_never_ends_is_cut_off_wherever_it_is():
    for before in (b"", get()):
        server = Server()
        wire = server.wire()
        wire.feed(before + b"GET /b HTTP/1.1\r\nX-A: ")
        sent = 0
        while not wire.closed:
            wire.feed(b"a" * 16 * KB)
            sent += 16
            await settled()
        assert sent <= 144
        assert wire.written.endswith(b"[its head is larger than 131072 bytes]")


@pytest.mark.parametrize("part", [b"X-A: 1\r\n" * 1000, b"a" * 8 * KB], ids=["many", "one"])
async def test_trailers_that_never_end_are_cut_off(part: bytes):
    server = Server()
    wire = server.wire()
    wire.feed(chunked(b"/a", b"hello")[:-2] + b"X-B: ")
    sent = 0
    while not wire.closed:
        wire.feed(part)
        sent += len(part)
        await settled()
    assert sent <= 144 * KB
    assert wire.written == b"400 "


async def test_so_is_a_chunk_extension():
    server = Server()
    wire = server.wire()
    wire.feed(chunked(b"/a", b"hello")[:-5] + b"5;a=")
    while not wire.closed:
        wire.feed(b"a" * 8 * KB)
        await settled()
    assert wire.written == b"400 "


async def test_chunks_of_one_byte_are_a_body_all_the_same():
    server = Server()
    wire = server.wire()
    stream = chunked(b"/a", *[b"x"] * 200 * KB)
    for at in range(0, len(stream), 8 * KB):
        wire.feed(stream[at : at + 8 * KB])
        await asyncio.sleep(0)
    await settled()
    assert [len(body) for *_, body, _ in server.asked] == [200 * KB]


# What one reader may take for this, and another for that


@pytest.mark.parametrize(
    "request_",
    [
        get(b"/v1/responses#x"),  # whoever reads this next sees /v1/responses
        get(b"/a?b#c"),
        get(b"http://y/a#x"),
        get(b"x:1"),
        get(b"ftp://x/a"),
        get(b"/a\x7f"),
        get(b"/\xff"),
        get(headers=b"X-A: \x7f\r\n"),
        get(headers=HOST),
        get(headers=b"X A: 1\r\n"),
        get(headers=b": 1\r\n"),
        get(headers=b" X-A: 1\r\n"),
        get(headers=b"Transfer-Encoding: \x0bchunked\r\n"),
        get(headers=b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
        get(headers=b"Transfer-Encoding: chunked,\r\n"),
        get(headers=b"Content-Length:\r\n"),
        get(headers=b"Content-Length: 0x3\r\n"),
        get(headers=b"Content-Length: 3 4\r\n"),
        chunked(b"/a", b"x").replace(b"1.1", b"1.0"),
        b"GET /a HTTP/1.2\r\n" + HOST + b"\r\n",
        b"GET\t/a HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\0" + get(),
    ],
)
async def test_a_head_that_two_readers_read_in_two_ways_is_refused(request_: bytes):
    server = Server()
    wire = server.wire()
    wire.feed(request_)
    wire.feed(FORGED)
    await settled()
    assert (wire.written[:1], wire.written[-1:], wire.written.count(b"[")) == (b"[", b"]", 1)
    assert (wire.closed, server.asked) == (True, [])


@pytest.mark.parametrize(
    "chunks",
    [
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"10000000000000005\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
        b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5\r\nhello\r\n0\r\nX A: 1\r\n\r\n",
        b"5\r\nhello\r\n0\r\nX-A: 1\n\r\n",
    ],
)
async def test_so_are_chunks(chunks: bytes):
    server = Server()
    wire = server.wire()
    wire.feed(chunked(b"/a")[:-5] + chunks)
    wire.feed(FORGED)
    await settled()
    assert (wire.written, wire.closed, server.asked) == (b"400 ", True, [])


@pytest.mark.parametrize(
    ("spelled", "target"),
    [
        (b"http://x/a?b=1", b"/a?b=1"),
        (b"HTTPS://u@x:1/a//b", b"/a//b"),
        (b"http://x", b"/"),
        (b"http://x?a", b"/?a"),
        (b"/http://x/a", b"/http://x/a"),
        (b"//x/a", b"//x/a"),
        (b"*", b"*"),
    ],
)
async def test_a_proxys_form_of_a_target_means_the_same(spelled: bytes, target: bytes):
    server = Server()
    server.wire().feed(get(spelled).replace(b"GET", b"OPTIONS"))
    await settled()
    assert [target for _, target, *_ in server.asked] == [target]


async def test_blanks_around_a_value_are_no_part_of_it():
    server = Server()
    server.wire().feed(get(headers=b"X-A: \t a b \t \r\nX-B: \r\n"))
    await settled()
    assert server.asked[0][2] == ((b"Host", b"x"), (b"X-A", b"a b"), (b"X-B", b""))


async def test_bytes_after_the_last_request_are_not_read():
    server = Server()
    wire = server.wire()
    wire.feed(get(b"/a", b"Connection: close\r\n") + FORGED)
    await settled()
    assert (wire.written, wire.closed) == (b"/a ", True)


async def test_what_cannot_be_read_is_said_after_the_answers_before_it():
    server = Server()
    wire = server.wire()
    wire.feed(get(b"/a") + get(b"/b") + b"\0\0")
    await settled()
    assert wire.written == b"/a /b [Invalid method encountered]"
    assert wire.closed


# Bodies


async def test_who_asks_first_is_told_once_and_only_where_the_body_is_wanted():
    head = post(b"/a", b"hello", b"Expect: 100-Continue\r\n")[:-5]
    server = Server()
    wire = server.wire()
    wire.feed(head)
    await settled()
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.feed(b"he")
    await settled()
    wire.feed(b"llo")
    await settled()
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n/a "
    assert not wire.closed


@pytest.mark.parametrize(
    "request_",
    [
        post(b"/a", b"hello", b"Expect: 100-continue\r\n").replace(b"1.1", b"1.0"),
        post(b"/a", b"hello", b"Expect: something\r\n"),
        post(b"/a", b"hello", b"Expect: 100-continue\r\n"),
    ],
)
async def test_who_speaks_http_1_0_or_has_begun_is_not_told(request_: bytes):
    server = Server()
    wire = server.wire()
    wire.feed(request_[:-2])
    wire.feed(request_[-2:])
    await settled()
    assert wire.written == b"/a "


async def test_who_asked_and_was_not_told_may_send_its_body_or_not_so_nothing_may_follow():
    server = Server(limit=4)
    wire = server.wire()
    wire.feed(post(b"/a", b"hello", b"Expect: 100-continue\r\n")[:-5])
    await settled()
    assert (wire.written, wire.closed) == (b"413 ", True)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("make", [post, chunked])
async def test_a_body_over_the_limit_is_refused_and_its_rest_thrown_away(make: Any, whole: bool):
    request = make(b"/a", b"x" * 3 * KB)
    server = Server(limit=2 * KB)
    wire = server.wire()
    wire.feed(request if whole else request[: -KB // 2])
    await settled()
    assert wire.written == b"413 "
    wire.feed(b"" if whole else request[-KB // 2 :])
    wire.feed(get(b"/b"))
    await settled()
    assert wire.written == b"413 /b "


async def test_a_body_at_the_limit_is_none_over_it():
    server = Server(limit=2 * KB)
    wire = server.wire()
    for request in (post(b"/a", b"x" * 2 * KB), chunked(b"/b", b"x" * KB, b"x" * KB)):
        wire.feed(request[:-9])
        await settled()
        wire.feed(request[-9:])
        await settled()
    assert wire.written == b"/a /b "


async def test_a_body_that_nobody_asks_for_waits_in_the_socket():
    gate = asyncio.Event()
    server = Server()

    async def late(request: Request) -> Done:
        await gate.wait()
        write(request, b"%d " % len(await request.body(2048 * KB)))
        return Done()

    server.answer = late
    wire = server.wire()
    request = post(b"/a", b"x" * 1024 * KB)
    for at in range(0, len(request), 64 * KB):
        wire.feed(request[at : at + 64 * KB])
        await asyncio.sleep(0)
    assert wire.paused
    assert server.requests[0].size < 400 * KB
    gate.set()
    await settled()
    assert wire.written == b"%d " % (1024 * KB)
    assert not wire.paused


async def refuse(request: Request) -> Done:
    write(request, b"404 ")
    return Done()


async def test_a_body_that_is_not_wanted_is_thrown_away_and_the_next_request_answered():
    server = Server(refuse)
    wire = server.wire()
    request = post(b"/a", b"x" * 1024 * KB)
    for at in range(0, len(request), 64 * KB):
        wire.feed(request[at : at + 64 * KB])
        await settled()
    assert server.requests[0]._parts == []
    wire.feed(get())
    await settled()
    assert wire.written == b"404 404 "


async def test_one_that_never_ends_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("proxy.server.connection._LINGER_SECONDS", 0.02)
    server = Server(refuse)
    wire = server.wire()
    wire.feed(chunked(b"/a", b"x")[:-5])
    while not wire.closed:
        wire.feed(b"1\r\nx\r\n" * 100)
        await asyncio.sleep(0.001)
    assert wire.written == b"404 "
    await settled()
    assert not server.open


async def test_a_body_that_breaks_off_ends_the_connection_after_its_answer():
    server = Server(refuse)
    wire = server.wire()
    wire.feed(chunked(b"/a", b"x")[:-5] + b"ZZ\r\n" + FORGED)
    await settled()
    assert (wire.written, wire.closed) == (b"404 ", True)


# Clients that go, and ends


@dataclass
class Held:
    """A handler that is held until the script lets it go, and that counts how often it was cancelled."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    body: bool = False

    async def __call__(self, request: Request) -> Done:
        try:
            if self.body:
                await request.body(KB)
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        write(request, b"done ")
        return Done(request.keep_alive)


@pytest.mark.parametrize("body", [True, False])
async def test_a_client_that_goes_ends_its_task_once(body: bool):
    held = Held(body=body)
    server = Server(held)
    wire = server.wire()
    wire.feed(post(b"/a", b"hello")[: -1 if body else None] + (b"" if body else get(b"/b")))
    await settled()
    connection = wire.protocol
    task = connection.task
    assert task is not None
    wire.lose()
    await settled()
    assert (held.cancelled, task.cancelled(), task.cancelling()) == (1, True, 1)
    assert (connection.task, connection.transport, server.open) == (None, None, set())
    assert len(server.requests) == 1, "the second is not begun"
    assert connection._watch.cancelled()


async def test_a_client_that_goes_before_its_task_has_begun():
    server = Server()
    wire = server.wire()
    wire.feed(get())
    wire.protocol.connection_lost(None)
    wire.lost = wire.closed = True
    await settled()
    assert (wire.written, server.requests, server.open) == (b"", [], set())


async def test_a_connection_that_is_gone_is_not_kept():
    server = Server()
    wire = server.wire()
    wire.feed(post(b"/a", b"hello") + post(b"/b", b"hello")[:-2])
    await settled()
    wire.lose()
    await settled()
    seen = weakref.ref(wire.protocol)
    server.requests.clear()
    del wire
    gc.collect()
    assert seen() is None


async def test_an_error_because_the_client_has_gone_is_nobodys(caplog: pytest.LogCaptureFixture):
    async def gone(request: Request) -> Done:
        raise ConnectionResetError("the client has gone")

    server = Server(gone)
    wire = server.wire()
    wire.feed(get())
    await settled()
    assert wire.closed
    gc.collect()
    assert caplog.records == []


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_who_does_not_want_to_keep_the_connection_gets_its_end(version: bytes):
    server = Server()
    wire = server.wire()
    wire.feed(b"GET /a HTTP/%b\r\n%bConnection: close\r\n\r\n" % (version, HOST))
    await settled()
    assert (wire.written, wire.closed, server.asked[0][-1]) == (b"/a ", True, False)


async def test_close_soon_closes_what_is_idle_or_has_half_a_head():
    for sent in (b"", b"GET /a HT", get(), get() + b"GET /b HT"):
        server = Server()
        wire = server.wire()
        wire.feed(sent)
        await settled()
        wire.protocol.close_soon()
        assert wire.closed
        await settled()
        assert not server.open


async def test_close_soon_lets_a_body_come_and_an_answer_go():
    server = Server()
    wire = server.wire()
    wire.feed(post(b"/a", b"hello")[:-2])
    await settled()
    wire.protocol.close_soon()
    wire.feed(b"lo" + get(b"/b"))
    await settled()
    assert (wire.written, wire.closed) == (b"/a ", True)


async def test_after_close_soon_a_queued_request_is_not_begun():
    held = Held()
    server = Server(held)
    wire = server.wire()
    wire.feed(get(b"/a") + get(b"/b"))
    await settled()
    wire.protocol.close_soon()
    held.gate.set()
    await settled()
    assert (wire.written, wire.closed, len(server.requests)) == (b"done ", True, 1)


# Backpressure


async def test_several_wait_until_the_client_reads():
    server = Server()
    wire = server.wire()
    connection = wire.protocol
    connection.pause_writing()
    waiting = [asyncio.ensure_future(connection.drain()) for _ in range(3)]
    await settled()
    waiting.pop().cancel()
    await settled()
    assert not any(each.done() for each in waiting)
    connection.resume_writing()
    await asyncio.gather(*waiting)
    await connection.drain()


async def test_all_who_wait_are_told_that_it_has_gone():
    server = Server()
    wire = server.wire()
    wire.protocol.pause_writing()
    waiting = [asyncio.ensure_future(wire.protocol.drain()) for _ in range(2)]
    await settled()
    wire.lose()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in told] == [ConnectionResetError] * 2


async def test_a_client_that_reads_no_answer_gets_no_second_one():
    async def large(request: Request) -> Done:
        write(request, b"x")
        request.connection.pause_writing()
        return Done()

    server = Server(large)
    wire = server.wire()
    wire.feed(get() * 10)
    await settled()
    assert wire.written == b"x"
    wire.protocol.resume_writing()
    await settled()
    assert wire.written == b"xx"
    wire.lose()
    await settled()
    assert (len(server.requests), server.open) == (2, set())


async def test_ten_thousand_requests_at_once_are_taken_a_few_at_a_time():
    held = Held()
    server = Server(held)
    wire = server.wire()
    for _ in range(100):
        wire.feed(get() * 100)
    await settled()
    assert wire.paused
    assert len(wire.protocol._requests) <= 100
    held.gate.set()
    await until(lambda: len(wire.written) == 10_000 * len(b"done "))
    assert not wire.paused


# The clock


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.connection.HEAD_SECONDS", 0.02)
    monkeypatch.setattr("proxy.server.connection.KEEP_ALIVE_SECONDS", 0.2)


async def closed(wire: Wire) -> float:
    """After how many seconds it is."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not wire.closed:
        await asyncio.sleep(0.002)
        assert loop.time() - began < 5
    return loop.time() - began


@pytest.mark.parametrize("sent", [b"", b"GET /a HT", get() + b"GET /b HT"])
async def test_a_head_that_never_ends_ends_the_connection(hurry: None, sent: bytes):
    wire = Server().wire()
    wire.feed(sent)
    assert await closed(wire) < 0.15


async def test_a_connection_that_is_not_used_any_more_is_closed_late(hurry: None):
    wire = Server().wire()
    wire.feed(get())
    assert await closed(wire) >= 0.2


async def test_a_head_may_begin_after_a_long_silence(monkeypatch: pytest.MonkeyPatch):
    server = Server()
    wire = server.wire()
    wire.feed(get(b"/a"))
    await settled()
    wire.protocol._quiet_since -= 1800  # it was idle for half an hour
    wire.feed(get(b"/b")[:9])
    wire.protocol._look_at_clock()
    wire.feed(get(b"/b")[9:])
    await settled()
    assert wire.written == b"/a /b "
    wire.lose()


@pytest.mark.parametrize("headers", [b"", b"Connection: close\r\n"])
async def test_a_client_that_does_not_take_the_end_of_an_answer_is_cut_off(hurry: None, headers: bytes):
    async def large(request: Request) -> Done:
        write(request, b"x")
        wire.unsent = 100
        request.connection.pause_writing()
        return Done(request.keep_alive)

    server = Server(large)
    wire = server.wire()
    wire.feed(get(headers=headers))
    await settled()
    assert not wire.aborted
    for _ in range(500):
        await asyncio.sleep(0.002)
        if wire.aborted:
            break
    await settled()
    assert not server.open


async def test_one_that_takes_it_slowly_is_not(hurry: None):
    server = Server()
    wire = server.wire()
    wire.feed(get(headers=b"Connection: close\r\n"))
    wire.unsent = 1000
    await settled()
    for _ in range(50):
        wire.unsent -= 1
        await asyncio.sleep(0.002)
    assert not wire.aborted
    wire.lose()
    await settled()
    assert not server.open
