"""What a client hears: the framing of each kind of answer, errors at each moment, and silence filled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from proxy import errors
from proxy.config.shape import Heartbeat
from proxy.protocol.events import Answer, Chunk, Frames, Head, Trailers
from proxy.protocol.lookup import Reply as Looked
from proxy.server.connection import Connection
from proxy.server.reply import Reply
from proxy.server.request import Request
from proxy.telemetry import OPEN_STREAMS
from tests.playbook import JSON, SSE, delta, event

QUIET = Heartbeat(composed_seconds=None, verbatim_seconds=None)
FIRST = event("response.created", 0)
LAST = event("response.completed", 9)


class Client(asyncio.Transport):
    """The client's end of one request, and the reply to it."""

    def __init__(self, request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", heartbeat: Heartbeat = QUIET) -> None:
        super().__init__()
        self.written = b""
        self.aborted = self.closed = False
        self.connection = Connection(self._unused, str.encode, set())
        self.connection.connection_made(self)
        made: list[Request] = []
        self.connection._begin = lambda: made.append(self.connection._requests[0])  # type: ignore[method-assign]
        self.connection.data_received(request)
        self.reply = Reply(made[0], "req_1", 0.0, heartbeat)
        self.connection._watch.cancel()

    async def _unused(self, request: Request) -> Any:
        raise NotImplementedError

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def go(self) -> None:
        self.closed = True
        self.connection.connection_lost(None)

    @property
    def head(self) -> list[bytes]:
        return self.written.partition(b"\r\n\r\n")[0].split(b"\r\n")

    @property
    def body(self) -> bytes:
        return self.written.partition(b"\r\n\r\n")[2]


def chunks(data: bytes) -> list[bytes]:
    """The chunks of a chunked body, which must have ended; what follows the last one is the last element."""
    found = []
    while True:
        size, _, data = data.partition(b"\r\n")
        if not int(size, 16):
            return [*found, data]
        found.append(data[: int(size, 16)])
        assert data[int(size, 16) :][:2] == b"\r\n"
        data = data[int(size, 16) + 2 :]


@pytest.fixture(autouse=True)
def _streams() -> Any:
    """No stream is counted as open in the end."""
    before = OPEN_STREAMS._value.get()
    yield
    assert OPEN_STREAMS._value.get() == before


async def test_a_whole_answer_gets_its_length():
    client = Client()
    await client.reply.send(Answer(200, b"Fine", ((b"X-A", b"1"), *JSON), b"{}"))
    client.reply.finish()
    client.reply.finish()
    assert client.head == [b"HTTP/1.1 200 Fine", b"X-A: 1", b"content-type: application/json", b"Content-Length: 2"]
    assert client.body == b"{}"
    assert (client.reply.keep_alive, client.reply.code, client.reply.sent) == (True, 200, 2)


async def test_a_length_that_is_right_stays_and_one_that_is_not_is_mended_where_it_stands():
    for named, wanted in ((b"2", b"2"), (b"7", b"2"), (b"02", b"2")):
        client = Client()
        await client.reply.send(Answer(200, b"OK", ((b"content-LENGTH", named), *JSON), b"{}"))
        assert client.head[1] == b"content-LENGTH: " + wanted


async def test_a_reason_that_is_missing_is_found():
    for status, line in ((404, b"HTTP/1.1 404 Not Found"), (299, b"HTTP/1.1 299 ")):
        client = Client()
        client.reply.looked_up(Looked(status, JSON, b"{}"))
        assert client.head[0] == line


async def test_a_stream_is_chunked_as_it_comes_and_its_length_forgotten():
    client = Client()
    await client.reply.send(Head(200, b"OK", (*SSE, (b"Content-Length", b"999")), events=True))
    await client.reply.send(FIRST)
    await client.reply.send(Frames(delta(1) + delta(2)))
    await client.reply.send(Frames(b""))
    await client.reply.send(Trailers(((b"X-Sum", b"1"),)))
    client.reply.finish()
    assert client.head[1:] == [b"content-type: text/event-stream; charset=utf-8", b"Transfer-Encoding: chunked"]
    assert chunks(client.body) == [FIRST.raw, delta(1) + delta(2), b"X-Sum: 1\r\n\r\n"]
    assert client.reply.sent == len(FIRST.raw + delta(1) + delta(2))


async def test_a_body_with_a_length_is_not_chunked():
    client = Client()
    await client.reply.send(Head(200, b"OK", ((b"Content-Length", b"5"),)))
    await client.reply.send(Chunk(b"he"))
    await client.reply.send(Chunk(b"llo"))
    client.reply.finish()
    assert client.head[1:] == [b"Content-Length: 5"]
    assert client.body == b"hello"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_the_end_of_the_connection_ends_a_body_only_for_http_1_0(version: bytes):
    client = Client(b"GET / HTTP/%b\r\nHost: x\r\nConnection: keep-alive\r\n\r\n" % version)
    await client.reply.send(Head(200, b"OK", ()))
    await client.reply.send(Chunk(b"hello"))
    client.reply.finish()
    old = version == b"1.0"
    assert client.head[1:] == ([b"Connection: close"] if old else [b"Transfer-Encoding: chunked"])
    assert (client.body == b"hello") is old
    assert client.reply.keep_alive is not old


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
async def test_an_answer_without_a_body_has_no_framing(method: bytes, status: int):
    client = Client(method + b" / HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.reply.send(Head(status, b"", ()))
    client.reply.finish()
    assert (len(client.head), client.body, client.reply.keep_alive) == (1, b"", True)


async def test_head_gets_the_length_alone():
    client = Client(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    client.reply.looked_up(Looked(200, JSON, b"{}"))
    assert (client.head[-1], client.body) == (b"Content-Length: 2", b"")


async def test_who_wants_no_more_is_told_that_it_gets_no_more():
    client = Client(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    client.reply.looked_up(Looked(200, JSON, b"{}"))
    assert client.head[-1] == b"Connection: close"
    assert not client.reply.keep_alive


@pytest.mark.parametrize("sent", [0, 2])
async def test_who_asked_before_its_body_and_got_an_answer_instead_is_told_too(sent: int):
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    client = Client(head + b"{}"[:sent])
    client.reply.fail(errors.BodyTooLarge())
    assert (b"Connection: close" in client.head) is (sent == 0)


# Errors


async def test_before_the_head_an_error_is_a_status():
    client = Client()
    client.reply.fail(errors.Overloaded(headers=((b"Retry-After", b"1"),)))
    client.reply.finish()
    assert client.head[0] == b"HTTP/1.1 503 Service Unavailable"
    assert {b"X-Request-Id: req_1", b"Retry-After: 1"} <= set(client.head)
    assert client.reply.keep_alive


async def test_within_a_stream_it_is_the_last_event_with_the_next_number():
    client = Client()
    await client.reply.send(Head(200, b"OK", SSE, events=True))
    await client.reply.send(Frames(delta(6) + delta(7)))
    await client.reply.send(Frames(b": a comment\n\n"))
    client.reply.fail(errors.StreamCut())
    client.reply.finish()
    *_, last, end = chunks(client.body)
    assert last.startswith(b"event: error\n")
    assert b'"sequence_number":8' in last
    assert end == b"\r\n"


@pytest.mark.parametrize("headers", [(), ((b"Content-Length", b"9"),)])
async def test_within_another_body_it_cuts_the_connection(headers: Any):
    client = Client()
    await client.reply.send(Head(200, b"OK", headers))
    await client.reply.send(Chunk(b"hello"))
    client.reply.fail(errors.StreamCut())
    client.reply.finish()
    assert client.aborted
    assert not client.reply.keep_alive
    assert b"0\r\n\r\n" not in client.written


# Clients that do not read, or go


async def test_deltas_are_written_at_once_and_waited_for_only_while_the_client_does_not_read():
    client = Client()
    await client.reply.send(Head(200, b"OK", SSE, events=True))
    assert client.reply.deltas(delta(1)) is None
    client.connection.pause_writing()
    rest = client.reply.deltas(delta(2))
    assert rest is not None
    waiting = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    client.connection.resume_writing()
    await waiting
    client.reply.finish()


async def test_a_send_waits_while_the_client_does_not_read():
    client = Client()
    await client.reply.send(Head(200, b"OK", SSE, events=True))
    client.connection.pause_writing()
    sending = asyncio.ensure_future(client.reply.send(Frames(delta(1))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not sending.done()
    client.connection.resume_writing()
    await sending
    client.reply.finish()


def _acts() -> list[Callable[[Reply], Any]]:
    return [
        lambda reply: reply.send(Head(200, b"OK", SSE, events=True)),
        lambda reply: reply.send(Answer(200, b"OK", JSON, b"{}")),
    ]


@pytest.mark.parametrize("act", _acts())
@pytest.mark.parametrize("closing", [True, False])
async def test_to_a_client_that_has_gone_nothing_is_written(act: Callable[[Reply], Any], closing: bool):
    client = Client()
    if closing:
        client.closed = True
    else:
        client.go()
    with pytest.raises(ConnectionResetError):
        await act(client.reply)
    client.reply.abort()
    client.reply.finish()
    assert client.written == b""


async def test_a_client_that_goes_while_it_is_waited_for_is_told_apart():
    client = Client()
    await client.reply.send(Head(200, b"OK", SSE, events=True))
    client.connection.pause_writing()
    sending = asyncio.ensure_future(client.reply.send(Frames(delta(1))))
    await asyncio.sleep(0)
    client.go()
    with pytest.raises(ConnectionResetError):
        await sending
    client.reply.finish()


# Silence


async def heard(client: Client, seconds: float) -> list[bytes]:
    before = len(client.written)
    await asyncio.sleep(seconds)
    return client.written[before:].split(b"event: keepalive")[1:]


@pytest.mark.parametrize("composed", [True, False])
async def test_silence_is_filled_after_its_time(composed: bool):
    client = Client(heartbeat=Heartbeat(composed_seconds=0.04, verbatim_seconds=None))
    await client.reply.send(Head(200, b"OK", SSE, events=True, composed=composed))
    await client.reply.send(Frames(delta(5)))
    found = await heard(client, 0.11)
    assert len(found) in ((1, 2) if composed else (0,))
    assert all(b'"sequence_number":5' in each for each in found)
    client.reply.finish()
    assert await heard(client, 0.06) == []


async def test_what_is_said_puts_it_off():
    client = Client(heartbeat=Heartbeat(composed_seconds=0.2, verbatim_seconds=0.2))
    await client.reply.send(Head(200, b"OK", SSE, events=True))
    for number in range(15):
        await client.reply.send(Frames(delta(number)))
        await asyncio.sleep(0.02)
    client.reply.finish()
    assert b"keepalive" not in client.written


async def test_nothing_is_said_to_who_does_not_read_or_has_gone():
    client = Client(heartbeat=Heartbeat(composed_seconds=0.01, verbatim_seconds=0.01))
    await client.reply.send(Head(200, b"OK", SSE, events=True))
    client.connection.writing_paused = True
    assert await heard(client, 0.05) == []
    client.connection.writing_paused = False
    client.closed = True
    assert await heard(client, 0.05) == []
    assert client.reply._heartbeat is not None
    client.reply.finish()
