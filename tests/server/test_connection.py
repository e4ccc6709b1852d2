"""The HTTP/1.1 server side, played over a transport that a script holds: what comes in, and what is written."""

from __future__ import annotations

import asyncio
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
