"""Which endpoint gets a request, and which connection."""

from __future__ import annotations

import asyncio
import random
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


# Places


class Kept(Connection):
    """A connection that is always as good as new."""

    reusable = True

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())

    def fresh(self, seconds: float) -> bool:
        return True


def places(count: int, *, wait: float = 10) -> Pool:
    """A pool with that many places, and a connection at hand for each."""
    one = pool("http://127.0.0.1:9", limit=count, wait=wait)
    one.endpoints[0].idle.extend(Kept() for _ in range(count))
    return one


async def steps() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_places_are_given_in_the_order_of_asking():
    one = places(2)
    held = [await one.acquire(), one.at_hand()]
    assert one.at_hand() is None
    order: list[int] = []

    async def ask(number: int) -> None:
        got = await one.acquire()
        order.append(number)
        await asyncio.sleep(0)
        one.release(*got)

    asking = [asyncio.ensure_future(ask(number)) for number in range(5)]
    await steps()
    for each in held:
        one.release(*each)
        assert one.at_hand() is None, "nobody goes past those who wait"
    await asyncio.gather(*asking)
    assert order == [0, 1, 2, 3, 4]
    assert one.open == 0
    assert one.at_hand() is not None


async def test_a_place_that_is_given_to_one_who_has_just_gone_is_the_next_ones():
    for before in (True, False):
        one = places(1)
        held = await one.acquire()
        first, second = (asyncio.ensure_future(one.acquire()) for _ in range(2))
        await steps()
        if before:
            first.cancel()
            one.release(*held)
        else:
            one.release(*held)
            first.cancel()
        got = await asyncio.wait_for(second, 5)
        assert first.cancelled()
        assert one.open == 1
        one.release(*got)
        assert one.open == 0


async def test_a_place_that_comes_as_the_time_is_up_is_not_lost():
    one = places(1, wait=0.01)
    for late in range(20):
        held = await one.acquire()
        waiting = asyncio.ensure_future(one.acquire())
        await steps()
        asyncio.get_running_loop().call_later(0.008 + late * 0.0003, one.release, *held)
        try:
            one.release(*await waiting)
        except errors.Overloaded:
            await asyncio.sleep(0.01)
        assert one.open == 0


async def test_who_gave_up_waiting_leaves_nothing_behind():
    one = places(1, wait=0.01)
    held = await one.acquire()
    told = await asyncio.gather(*(one.acquire() for _ in range(50)), return_exceptions=True)
    assert {type(each) for each in told} == {errors.Overloaded}
    assert not one._waiting
    one.release(*held)
    assert one.open == 0


async def test_a_crowd_that_comes_and_goes_leaves_every_place_free():
    one = places(3, wait=0.004)
    rng = random.Random(7)

    async def use() -> None:
        got = one.at_hand() or await one.acquire()
        try:
            assert one.open <= 3
            await asyncio.sleep(rng.random() * 0.003)
        finally:
            one.release(*got)

    crowd = []
    for _ in range(300):
        crowd.append(asyncio.ensure_future(use()))
        if rng.random() < 0.3:
            rng.choice(crowd).cancel()
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    ends = await asyncio.gather(*crowd, return_exceptions=True)
    assert {type(each) for each in ends} <= {type(None), asyncio.CancelledError, errors.Overloaded}
    assert (one.open, len(one._waiting), len(one.endpoints[0].idle)) == (0, 0, 3)


async def test_what_cannot_be_reached_gives_its_place_to_the_next_one():
    nobody = pool(f"http://127.0.0.1:{free_port()}", limit=1, wait=10)
    told = await asyncio.gather(*(nobody.acquire() for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in told} == {errors.UpstreamUnreachable}
    assert nobody.open == 0


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
