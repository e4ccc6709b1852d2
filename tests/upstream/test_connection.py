"""The HTTP/1.1 client side, played over a transport that a script holds; and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from proxy import errors
from proxy.protocol.events import Frames, Head
from proxy.protocol.turn import Body, Operation, Turn
from proxy.upstream.client import Client, Limits
from proxy.upstream.connection import Connection, Patience
from proxy.upstream.pool import Endpoint, Pool
from tests.playbook import delta, post

LONG = Patience(first_byte=60, idle=60, total=60)
HEAD = b"HTTP/1.1 200 OK\r\nX-A: 1\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Wire(asyncio.Transport):
    """A transport whose other end is the script."""

    def __init__(self, patience: Patience = LONG, method: str = "GET") -> None:
        super().__init__()
        self.written = b""
        self.paused = False
        self.closed = False
        self.interrupted = 0
        self.connection = Connection(asyncio.get_running_loop())
        self.connection.connection_made(self)
        self.send(patience, method)

    def send(self, patience: Patience = LONG, method: str = "GET") -> None:
        self.connection.send(method, b"request ", patience, self._interrupt)

    def _interrupt(self) -> None:
        self.interrupted += 1

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def feed(self, data: bytes) -> None:
        assert not self.paused
        self.connection.data_received(data)

    def end(self, error: Exception | None = None) -> None:
        self.closed = True
        self.connection.connection_lost(error)


async def told(connection: Connection) -> tuple[int, bytes]:
    """The whole answer."""
    await connection.head()
    body = b""
    while data := await connection.read():
        body += data
    return connection.status, body


class Sink:
    """Takes what comes; says that it wants no more after `stop`."""

    def __init__(self, stop: bytes = b"stop") -> None:
        self.heard: list[bytes] = []
        self._stop = stop

    def __call__(self, data: bytes) -> bool:
        self.heard.append(data)
        return self._stop not in data


# Answers


ANSWERS = {
    "length": (HEAD + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
    "chunked": (CHUNKED + chunk(b"he") + chunk(b"llo") + b"0\r\nX-Sum: 1\r\n\r\n", b"hello", True),
    "interlude": (b"HTTP/1.1 103 Hint\r\nX-B: 1\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok", b"ok", True),
    "empty": (HEAD + b"Content-Length: 0\r\n\r\n", b"", True),
    "close": (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_may_be_cut_anywhere(name: str):
    raw, body, again = ANSWERS[name]
    for at in range(1, len(raw) + 1):
        wire = Wire()
        waiting = asyncio.ensure_future(told(wire.connection))
        for piece in (raw[:at], raw[at:]):
            await asyncio.sleep(0)
            if piece:
                wire.feed(piece)
        assert await waiting == (200, body), at
        connection = wire.connection
        assert connection.headers[0] == (b"X-A", b"1")
        assert connection.reason == b"OK"
        assert connection.trailers == (((b"X-Sum", b"1"),) if name == "chunked" else ())
        assert connection.reusable is again
        connection.close()


async def test_without_a_length_the_end_of_the_connection_ends_a_body_unless_it_is_an_error():
    for error, ends in ((None, True), (ConnectionResetError(), False)):
        wire = Wire()
        wire.feed(HEAD + b"\r\nhello")
        wire.end(error)
        waiting = told(wire.connection)
        if ends:
            assert await waiting == (200, b"hello")
        else:
            with pytest.raises(errors.StreamCut):
                await waiting
        assert not wire.connection.reusable


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", errors.UpstreamDropped),
        (HEAD, errors.UpstreamDropped),
        (b"HTTP/1.1 100 Continue\r\n\r\n", errors.UpstreamDropped),
        (CHUNKED + b"5\r\nhel", errors.StreamCut),
        (HEAD + b"Content-Length: 5\r\n\r\nhell", errors.StreamCut),
        (b"SSH-2.0\r\n", errors.UpstreamProtocol),
        (CHUNKED + b"ZZ\r\n", errors.UpstreamProtocol),
        (b"HTTP/1.1 000 No\r\n\r\n", errors.UpstreamProtocol),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", errors.UpstreamProtocol),
    ],
)
async def test_what_is_cut_or_is_not_http_is_an_error(raw: bytes, error: type[Exception]):
    for early in (True, False):
        wire = Wire()
        waiting = asyncio.ensure_future(told(wire.connection))
        if not early:
            await asyncio.sleep(0)
        if raw:
            wire.feed(raw)
        wire.end()
        with pytest.raises(error):
            await waiting
        assert not wire.connection.reusable


async def test_what_came_before_a_cut_is_handed_out_first():
    wire = Wire()
    wire.feed(CHUNKED + chunk(b"hello") + b"ZZ\r\n")
    await wire.connection.head()
    assert await wire.connection.read() == b"hello"
    with pytest.raises(errors.UpstreamProtocol):
        await wire.connection.read()


async def test_a_second_answer_is_nobodys_and_spoils_the_connection():
    wire = Wire()
    wire.feed(ANSWERS["length"][0] * 2)
    assert await told(wire.connection) == (200, b"hello")
    assert not wire.connection.reusable
    late = Wire()
    late.feed(ANSWERS["length"][0])
    assert await told(late.connection) == (200, b"hello")
    late.connection.rest()
    late.feed(ANSWERS["length"][0])
    assert not late.connection.fresh(60)


async def test_an_answer_to_head_has_no_body_and_is_the_last():
    wire = Wire(method="HEAD")
    wire.feed(HEAD + b"Content-Length: 5\r\n\r\n")
    assert await told(wire.connection) == (200, b"")
    assert not wire.connection.reusable


async def test_all_of_a_body_that_has_come_can_be_had_at_once():
    wire = Wire()
    raw = CHUNKED + chunk(b"he") + chunk(b"llo")
    wire.feed(raw)
    await wire.connection.head()
    assert wire.connection.whole() == b""
    wire.feed(b"0\r\n\r\n")
    assert wire.connection.whole() == b"hello"
    assert await wire.connection.read() == b""


async def test_a_closed_connection_sends_nothing():
    wire = Wire()
    wire.closed = True
    with pytest.raises(errors.UpstreamDropped):
        wire.send()


# Backpressure, and the pump


async def test_what_nobody_reads_waits_in_the_socket():
    wire = Wire()
    wire.feed(CHUNKED)
    while not wire.paused:
        wire.feed(chunk(b"x" * 65536))
    await wire.connection.head()
    assert len(await wire.connection.read()) <= 6 * 65536
    assert not wire.paused
    wire.connection.close()


async def test_a_pump_hands_on_in_the_call_that_reads():
    wire, sink = Wire(), Sink()
    wire.feed(CHUNKED + chunk(b"a"))
    await wire.connection.head()
    pumping = asyncio.ensure_future(wire.connection.pump(sink))
    await asyncio.sleep(0)
    for data in (b"b", b"c"):
        wire.feed(chunk(data))
        assert sink.heard[-1] == data, "no step of a task lies between"
    wire.feed(chunk(b"d") + chunk(b"stop"))
    wire.feed(chunk(b"late"))
    assert sink.heard == [b"a", b"b", b"c", b"dstop"]
    assert await pumping is True
    wire.feed(chunk(b"e") + b"0\r\n\r\n")
    assert await wire.connection.pump(sink) is False
    assert sink.heard[4:] == [b"latee"]
    assert wire.connection.reusable


async def test_a_pump_that_was_cancelled_takes_no_more():
    wire, sink = Wire(), Sink()
    wire.feed(CHUNKED)
    pumping = asyncio.ensure_future(wire.connection.pump(sink))
    await asyncio.sleep(0)
    pumping.cancel()
    await asyncio.wait([pumping])
    wire.feed(chunk(b"a"))
    assert sink.heard == []
    assert await wire.connection.read() == b"a"


@pytest.mark.parametrize("last", [b"a", b"stop"])
async def test_the_end_of_a_body_ends_a_pump(last: bytes):
    wire, sink = Wire(), Sink()
    wire.feed(CHUNKED)
    pumping = asyncio.ensure_future(wire.connection.pump(sink))
    await asyncio.sleep(0)
    wire.feed(chunk(last) + b"0\r\n\r\n")
    assert await pumping is (last == b"stop")
    assert sink.heard == [last]
    assert await wire.connection.pump(sink) is False


async def test_a_cut_ends_a_pump_after_what_came_before():
    for raw, error in ((b"", errors.StreamCut), (b"ZZ\r\n", errors.UpstreamProtocol)):
        wire, sink = Wire(), Sink()
        wire.feed(CHUNKED)
        pumping = asyncio.ensure_future(wire.connection.pump(sink))
        await asyncio.sleep(0)
        wire.feed(chunk(b"a") + raw)
        wire.end()
        with pytest.raises(error):
            await pumping
        assert sink.heard == [b"a"]


# The clock


async def failed(wire: Wire, act: Callable[[], Any]) -> tuple[type[BaseException], float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(errors.UpstreamError) as caught:
        await asyncio.wait_for(act(), 5)
    return caught.type, loop.time() - began


async def test_a_head_that_does_not_come():
    wire = Wire(Patience(first_byte=0.03, idle=60, total=60))
    wire.feed(b"HTTP/1.1 103 Hint\r\n\r\n")
    kind, after = await failed(wire, wire.connection.head)
    assert kind is errors.FirstByteTimeout
    assert 0.03 <= after < 0.2
    assert wire.connection._alarm is None


async def test_silence_counts_from_the_last_byte():
    wire = Wire(Patience(first_byte=60, idle=0.06, total=60))
    wire.feed(CHUNKED)
    loop = asyncio.get_running_loop()
    for _ in range(4):
        loop.call_later(0.03 * (_ + 1), wire.feed, chunk(b"a"))
    sink = Sink()
    kind, after = await failed(wire, lambda: wire.connection.pump(sink))
    assert kind is errors.IdleTimeout
    assert sink.heard == [b"a"] * 4
    assert after >= 0.17
    assert wire.connection._alarm is None


async def test_while_nobody_reads_silence_is_ours():
    wire = Wire(Patience(first_byte=60, idle=0.02, total=60))
    wire.feed(CHUNKED + chunk(b"a"))
    await wire.connection.head()
    await asyncio.sleep(0.08)
    assert await wire.connection.read() == b"a"
    kind, _ = await failed(wire, wire.connection.read)
    assert kind is errors.IdleTimeout


@pytest.mark.parametrize("raw", [b"", CHUNKED + chunk(b"a"), CHUNKED + b"0\r\n\r\n"], ids=["none", "some", "all"])
async def test_the_total_interrupts_once_wherever_its_task_is(raw: bytes):
    wire = Wire(Patience(first_byte=60, idle=60, total=0.02))
    if raw:
        wire.feed(raw)
    await asyncio.sleep(0.08)
    assert (wire.interrupted, wire.connection.expired) == (1, True)
    assert wire.connection._alarm is None


async def test_an_answer_that_is_over_is_watched_no_more_and_the_next_one_is():
    patience = Patience(first_byte=0.06, idle=0.06, total=0.1)
    wire = Wire(patience)
    wire.feed(ANSWERS["length"][0])
    assert await told(wire.connection) == (200, b"hello")
    wire.connection.rest()
    armed = wire.connection._alarm
    assert armed is not None
    await asyncio.sleep(0.03)
    wire.send(patience)  # the alarm of the first is armed still
    assert wire.connection._alarm is armed
    kind, after = await failed(wire, wire.connection.head)
    assert kind is errors.FirstByteTimeout
    assert 0.06 <= after < 0.2
    assert wire.interrupted == 0


async def test_the_alarm_of_an_answer_that_stays_with_its_task_is_not_late_for_the_next_one():
    patience = Patience(first_byte=0.03, idle=60, total=60)
    wire = Wire(patience)
    wire.feed(ANSWERS["length"][0])
    await asyncio.sleep(0.05)
    wire.connection.rest()
    wire.send(patience)
    kind, after = await failed(wire, wire.connection.head)
    assert kind is errors.FirstByteTimeout
    assert after < 0.2


async def test_an_idle_connection_has_no_alarm_left_after_a_while():
    wire = Wire(Patience(first_byte=0.02, idle=60, total=60))
    wire.feed(ANSWERS["length"][0])
    await told(wire.connection)
    wire.connection.rest()
    await asyncio.sleep(0.05)
    assert wire.connection._alarm is None
    wire.send()
    assert wire.connection._alarm is not None
    wire.connection.close()
    assert wire.connection._alarm is None


# A client whose time is up


class Backend:
    """A server that a script answers for."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.asked.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()
            self.gone.set()


TURN = Turn("GET", b"/", "/", (), Operation.CREATE, Body(b""), post({}).owner)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answer", [b"", STREAM, STREAM + chunk(delta(1)), STREAM + chunk(delta(1)) + b"0\r\n\r\n"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_total_ends_a_turn_wherever_it_waits_and_gives_its_place_back(answer: bytes, cancelled: bool):
    backend = Backend()
    server = await asyncio.start_server(backend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = Pool([Endpoint.of(f"http://127.0.0.1:{port}")], limit=1, connect=5, idle=5, wait=1)
    limits = Limits(Patience(first_byte=60, idle=60, total=0.05), 1000, 1000)
    client = Client(pool, limits, authorization=None, forward_credentials=False)

    async def stuck(message: Any) -> None:
        if isinstance(message, Frames):
            await asyncio.Event().wait()
        else:
            assert isinstance(message, Head)

    turn = asyncio.ensure_future(client(TURN, stuck))
    await backend.asked.wait()
    if answer:
        backend.writers[0].write(answer)
    if cancelled:
        connection = None
        loop = asyncio.get_running_loop()

        def at_once() -> None:
            """The client goes in the very moment in which the time is up."""
            assert connection is not None
            connection._sent -= 1
            connection._look_at_clock()
            turn.cancel()

        await asyncio.sleep(0.02)
        connection = _in_flight(turn)
        loop.call_soon(at_once)
        await asyncio.wait([turn])
        assert turn.cancelled()
    else:
        with pytest.raises(errors.TotalTimeout):
            await asyncio.wait_for(turn, 5)
        assert turn.cancelling() == 0
    assert pool.open == 0
    pool.close()
    assert await asyncio.wait_for(backend.gone.wait(), 5), "the backend is told"
    server.close()


def _in_flight(task: asyncio.Future[Any]) -> Connection:
    coroutine: Any = task.get_coro()  # type: ignore[attr-defined]
    while coroutine is not None:
        found = [each for each in coroutine.cr_frame.f_locals.values() if isinstance(each, Connection)]
        if found:
            return found[0]
        coroutine = coroutine.cr_await
    raise AssertionError("no connection is in flight")
