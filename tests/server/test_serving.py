"""A server on a real socket: it accepts, it answers, and it ends without cutting off what is in flight."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from proxy.server.request import Request
from proxy.server.serving import Server

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Done:
    keep_alive: bool = True


@dataclass
class Handler:
    """Answers as soon as the script lets it."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    answer: bytes = OK
    cancelled: int = 0
    stubborn: asyncio.Event | None = None  # it does not end before that, whoever cancels it

    async def __call__(self, request: Request) -> Done:
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.stubborn is not None:
                await self.stubborn.wait()
            raise
        assert request.connection.transport is not None
        request.connection.transport.write(self.answer)
        return Done(request.keep_alive)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[tuple[Server, Dial]]:
    server, port = Server(handler, lambda fault: fault.encode()), _port()
    await server.listen(f"{host}:{port}", tls=None, shared=False)
    writers: list[asyncio.StreamWriter] = []

    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host.strip("[]"), port)
        writers.append(writer)
        return reader, writer

    try:
        yield server, dial
    finally:
        for writer in writers:
            writer.transport.abort()
        await server.close(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert server._open == set()


async def until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never comes about")


async def seconds(what: Awaitable[object]) -> float:
    began = asyncio.get_running_loop().time()
    await what
    return asyncio.get_running_loop().time() - began


async def test_it_answers_and_takes_no_more_after_its_end():
    handler = Handler()
    handler.gate.set()
    async with serving(handler) as (server, dial):
        reader, writer = await dial()
        for _ in range(3):
            writer.write(GET)
            assert await reader.readexactly(len(OK)) == OK
        assert await seconds(server.close(10)) < 1
        assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await dial()


async def test_what_is_idle_or_has_half_a_head_does_not_keep_it():
    async with serving(Handler()) as (server, dial):
        readers = []
        for sent in (b"", b"GET / HT"):
            reader, writer = await dial()
            writer.write(sent)
            readers.append(reader)
        await asyncio.sleep(0.01)
        assert await seconds(server.close(10)) < 1
        assert [await reader.read() for reader in readers] == [b"", b""]


async def test_a_request_in_flight_is_answered():
    handler = Handler()
    async with serving(handler) as (server, dial):
        reader, writer = await dial()
        writer.write(GET + GET)
        await handler.begun.wait()
        closing = asyncio.ensure_future(server.close(10))
        await asyncio.sleep(0.01)
        assert not closing.done()
        handler.gate.set()
        assert await reader.read() == OK
        await closing
        assert handler.cancelled == 0


async def test_an_answer_that_is_written_already_reaches_a_slow_client_whole():
    handler = Handler(answer=b"x" * 8_000_000)
    handler.gate.set()
    async with serving(handler) as (server, dial):
        reader, writer = await dial()
        writer.write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await handler.begun.wait()
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(server.close(10))
        await asyncio.sleep(0.05)
        assert len(await reader.read(-1)) == 8_000_000
        await asyncio.wait_for(closing, 5)


async def test_a_client_that_takes_nothing_keeps_it_no_longer_than_the_grace():
    handler = Handler(answer=b"x" * 8_000_000)
    handler.gate.set()
    async with serving(handler) as (server, dial):
        _, writer = await dial()
        writer.write(GET)
        await handler.begun.wait()
        await asyncio.sleep(0.01)
        assert 0.05 <= await seconds(server.close(0.05)) < 2


async def test_after_the_grace_a_request_is_ended_once():
    handler = Handler()
    async with serving(handler) as (server, dial):
        reader, writer = await dial()
        writer.write(GET)
        await handler.begun.wait()
        assert await seconds(server.close(0.05)) < 1
        assert await reader.read() == b""
        assert handler.cancelled == 1


async def test_a_task_that_does_not_end_keeps_it_no_longer_than_a_second():
    handler = Handler(stubborn=asyncio.Event())
    async with serving(handler) as (server, dial):
        _, writer = await dial()
        writer.write(GET)
        await handler.begun.wait()
        assert await seconds(server.close(0.01)) < 1.5
        handler.stubborn.set()


async def test_an_address_that_is_taken_is_an_error():
    async with serving(Handler()) as (server, _):
        assert server._socket is not None
        port = server._socket.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            await Server(Handler(), str.encode).listen(f"127.0.0.1:{port}", tls=None, shared=False)


async def test_a_client_that_leaves_in_the_middle_ends_its_task():
    handler = Handler()
    async with serving(handler) as (server, dial):
        for _ in range(20):
            handler.begun.clear()
            _, writer = await dial()
            writer.write(GET)
            await handler.begun.wait()
            writer.transport.abort()
        await until(lambda: not server._open)
        assert handler.cancelled == 20
        gc.collect()


async def test_many_idle_connections_are_held_and_closed():
    async with serving(Handler()) as (server, dial):
        readers = [(await dial())[0] for _ in range(300)]
        await until(lambda: len(server._open) == 300)
        assert await seconds(server.close(10)) < 2
        assert {await reader.read() for reader in readers} == {b""}
