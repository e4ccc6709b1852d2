"""Which endpoint gets a request, and which connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy import errors
from proxy.demo.process import free_port
from proxy.upstream.connection import Connection, Patience
from proxy.upstream.pool import Endpoint, Pool

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

PATIENCE = Patience(first_byte=60, idle=60, total=60)


@pytest.fixture
async def servers() -> AsyncIterator[list[str]]:
    """The URLs of two servers that answer every request alike."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    started = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
    yield [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in started]
    for server in started:
        server.close()


def pool(*urls: str, **options: Any) -> Pool:
    limits = {"limit": 10, "connect": 5, "idle": 5, "wait": 0.05, **options}
    return Pool([Endpoint.of(url) for url in urls], **limits)


async def used(pool: Pool, *, fresh: bool = False) -> tuple[str, Connection]:
    """One exchange from beginning to end: its endpoint, and its connection."""
    endpoint, connection = await pool.acquire(fresh=fresh)
    connection.send("GET", b"GET / HTTP/1.1\r\n\r\n", PATIENCE, asyncio.current_task().cancel)
    await connection.head()
    assert await connection.read() == b"ok"
    assert await connection.read() == b""
    pool.release(endpoint, connection)
    return endpoint.url, connection


async def test_endpoints_are_used_in_turn(servers: list[str]):
    both = pool(*servers)
    assert [(await used(both))[0] for _ in range(4)] == [*servers, *servers]
    both.close()


async def test_an_endpoint_that_is_not_well_is_left_out(servers: list[str]):
    both = pool(*servers)
    both.endpoints[0].healthy = False
    assert {(await used(both))[0] for _ in range(4)} == {servers[1]}
    both.endpoints[1].healthy = False
    assert {(await used(both))[0] for _ in range(4)} == set(servers), "where none is well, all are tried"
    both.close()


async def test_an_endpoint_that_refuses_is_passed_over(servers: list[str]):
    half = pool(f"http://127.0.0.1:{free_port()}", servers[0])
    assert {(await used(half))[0] for _ in range(4)} == {servers[0]}
    half.close()


async def test_when_nobody_listens_it_is_said():
    nobody = pool(f"http://127.0.0.1:{free_port()}")
    for _ in range(20):  # a failure costs no slot
        with pytest.raises(errors.UpstreamUnreachable):
            await nobody.acquire()
    assert nobody.open == 0


async def test_a_connection_is_used_again_the_newest_first(servers: list[str]):
    one = pool(servers[0])
    first = await one.acquire()
    second = await one.acquire()
    for endpoint, connection in (first, second):
        connection.send("GET", b"GET / HTTP/1.1\r\n\r\n", PATIENCE, asyncio.current_task().cancel)
        await connection.head()
        await connection.read()
        await connection.read()
        one.release(endpoint, connection)
    _, again = await used(one)
    assert again is second[1]
    assert again.used == 2
    one.close()


async def test_a_fresh_connection_can_be_asked_for(servers: list[str]):
    one = pool(servers[0])
    _, first = await used(one)
    _, other = await used(one, fresh=True)
    assert other is not first
    one.close()


async def test_an_answer_that_is_not_over_leaves_no_connection(servers: list[str]):
    one = pool(servers[0])
    endpoint, connection = await one.acquire()
    connection.send("GET", b"GET / HTTP/1.1\r\n\r\n", PATIENCE, asyncio.current_task().cancel)
    one.release(endpoint, connection)
    assert not connection.fresh(60)
    assert not endpoint.idle


async def test_a_connection_that_was_idle_too_long_is_dropped(servers: list[str]):
    one = pool(servers[0], idle=0.02)
    _, first = await used(one)
    await asyncio.sleep(0.05)
    _, second = await used(one)
    assert second is not first
    assert not first.fresh(60)
    one.close()


async def test_who_finds_no_connection_free_waits_then_is_told_to_come_back(servers: list[str]):
    one = pool(servers[0], limit=1)
    endpoint, connection = await one.acquire()
    with pytest.raises(errors.Overloaded) as caught:
        await one.acquire()
    assert (caught.value.status, caught.value.headers) == (503, ((b"Retry-After", b"1"),))
    one.release(endpoint, connection)
    assert (await used(one))[0] == servers[0]
    one.close()


async def test_who_waits_gets_the_connection_that_is_given_back(servers: list[str]):
    one = pool(servers[0], limit=1, wait=10)
    endpoint, connection = await one.acquire()
    waiting = asyncio.ensure_future(used(one))
    await asyncio.sleep(0)
    one.release(endpoint, connection)
    assert (await waiting)[0] == servers[0]
    one.close()


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "authority", "tls"),
    [
        ("http://a", "a", 80, "", b"a", False),
        ("http://a:8000/", "a", 8000, "", b"a:8000", False),
        ("http://a:8000/v1", "a", 8000, "", b"a:8000", False),
        ("http://a/models/x/v1/", "a", 80, "/models/x", b"a", False),
        ("https://a", "a", 443, "", b"a", True),
        ("http://[::1]:8000", "::1", 8000, "", b"[::1]:8000", False),
        ("http://user:secret@a:1", "a", 1, "", b"a:1", False),
    ],
)
def test_an_endpoints_url(url: str, host: str, port: int, prefix: str, authority: bytes, tls: bool):
    endpoint = Endpoint.of(url)
    assert (endpoint.host, endpoint.port, endpoint.prefix, endpoint.authority) == (host, port, prefix, authority)
    assert (endpoint.tls is not None) is tls
