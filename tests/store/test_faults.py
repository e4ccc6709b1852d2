"""What a store does when its database is killed, locked, full, or too slow: an error in time, nothing half, then on."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from proxy.errors import ConfigError, StoreError, StoreUnavailable
from proxy.store import Lease
from proxy.store._sql import SqlStore
from proxy.store.postgresql import create as create_postgresql
from proxy.store.sqlite import create as create_sqlite
from tests.postgres import PostgresServer
from tests.store.records import ALICE, chain, connect, conversation, ids, item, rows, saved, turn

LIMITS = {"acquire_timeout": 0.5, "statement_timeout": 0.5, "busy_timeout": 0.3}


@pytest.fixture
def mortal_server() -> Iterator[PostgresServer]:
    """A server for the test alone, to be killed."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


async def fails(store: SqlStore, within: float) -> StoreError:
    """The error of a save that has to fail in time."""
    began = time.monotonic()
    with pytest.raises(StoreError) as caught:
        await store.save(turn("refused"))
    assert time.monotonic() - began < within
    return caught.value


async def test_a_server_that_dies_and_comes_back(mortal_server: PostgresServer) -> None:
    store = await connect(mortal_server.url())
    await chain(store, 2)
    attempted: dict[str, BaseException | None] = {}

    async def press(worker: int) -> None:
        for number in range(10_000):
            name = f"w{worker}_{number}"
            try:
                await store.save(turn(name))
                attempted[name] = None
            except StoreError as error:
                attempted[name] = error
                return

    workers = [asyncio.ensure_future(press(worker)) for worker in range(8)]
    while len(attempted) < 50:  # noqa: ASYNC110  # any moment in the middle of it will do
        await asyncio.sleep(0.01)
    await asyncio.to_thread(mortal_server.kill)
    await asyncio.wait_for(asyncio.gather(*workers), 30)
    assert isinstance(await fails(store, within=5), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await store.ping()
    await asyncio.to_thread(mortal_server.start)
    assert len(await ids(store, "resp_1") or []) == 4
    await store.save(turn("resp_2", await store.history(ALICE, "resp_1")))
    whole = 3
    for name, error in attempted.items():
        found = await store.response(ALICE, name)
        assert error is not None or found is not None, "a save that returned is stored"
        assert found is None or (len(found.output), len(await ids(store, name) or [])) == (1, 2)
        whole += found is not None
    assert await rows(store) == {"threads": whole - 2, "items": 2 * whole, "responses": whole}
    await store.close()


async def test_an_idle_store_does_not_notice_a_restart(mortal_server: PostgresServer) -> None:
    store = await connect(mortal_server.url())
    await asyncio.gather(*(store.save(turn(f"resp_{number}")) for number in range(4)))
    await asyncio.gather(*(store.head(ALICE, "resp_0") for _ in range(8)))
    await asyncio.to_thread(mortal_server.kill)
    await asyncio.to_thread(mortal_server.start)
    await store.save(turn("resp_4"))
    heads = await asyncio.gather(*(store.head(ALICE, f"resp_{number}") for number in range(5)))
    assert None not in heads
    await store.close()


async def test_a_table_locked_by_another_session(postgres_url: str) -> None:
    store = await connect(postgres_url, **LIMITS)
    await store.save(turn("resp_1"))
    other = await asyncpg.connect(postgres_url)
    blocked = other.transaction()
    await blocked.start()
    await other.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
    assert isinstance(await fails(store, within=2), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await store.history(ALICE, "resp_1")
    await blocked.rollback()
    await other.close()
    await store.save(turn("resp_2"))
    assert (await rows(store))["responses"] == 2
    await store.close()


async def test_a_thread_locked_by_another_session(postgres_url: str) -> None:
    store = await connect(postgres_url, **LIMITS)
    await store.save(turn("resp_1"))
    history = await store.history(ALICE, "resp_1")
    other = await asyncpg.connect(postgres_url)
    blocked = other.transaction()
    await blocked.start()
    await other.execute("SELECT 1 FROM threads FOR UPDATE")
    for job in (store.save(turn("resp_2", history)), store.delete_response(ALICE, "resp_1")):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(job, 3)
    await blocked.rollback()
    await other.close()
    await store.save(turn("resp_2", history))
    assert len(await ids(store, "resp_2") or []) == 4
    await store.close()


async def test_a_pool_that_has_no_connection_left(store_url: str) -> None:
    store = await connect(store_url, pool_size=1, **LIMITS)
    async with AsyncExitStack() as held:
        await held.enter_async_context(store.database.reader.connect())
        if "sqlite" in store_url:  # the engines of Postgres share one pool
            await held.enter_async_context(store.database.writer.connect())
        assert isinstance(await fails(store, within=3), StoreUnavailable)
        with pytest.raises(StoreUnavailable):
            await store.head(ALICE, "resp_1")
    await store.save(turn("resp_1"))
    assert await store.head(ALICE, "resp_1") is not None
    await store.close()


async def test_more_readers_than_connections_take_turns(store_url: str) -> None:
    store = await connect(store_url, pool_size=2)
    await chain(store, 2)
    histories = await asyncio.gather(*(store.history(ALICE, "resp_1") for _ in range(50)))
    assert all(history is not None and len(history.items) == 4 for history in histories)
    await store.close()


async def test_a_reader_that_is_cancelled_gives_its_connection_back(store_url: str) -> None:
    store = await connect(store_url, pool_size=1, acquire_timeout=2.0)
    await chain(store, 2)
    for _ in range(10):
        task = asyncio.ensure_future(store.history(ALICE, "resp_1"))
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(await ids(store, "resp_1") or []) == 4
    await store.save(turn("resp_2"))
    await store.close()


async def test_a_server_that_hangs(mortal_server: PostgresServer) -> None:
    store = await connect(mortal_server.url(), **LIMITS)
    await store.save(turn("resp_1"))
    mortal_server.pause()
    try:
        assert isinstance(await fails(store, within=8), StoreUnavailable)
    finally:
        mortal_server.resume()
    await store.save(turn("resp_2"))
    await store.close()


async def test_a_server_that_is_not_there() -> None:
    store = create_postgresql("postgresql://somebody:geheim@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable) as caught:
        await store.open()
    assert "geheim" not in caught.value.message
    await store.close()


HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_file_locked_by_another_process(sqlite_url: str, tmp_path: Path) -> None:
    store = await connect(sqlite_url, **LIMITS)
    await store.save(turn("resp_1"))
    arguments = [sys.executable, "-c", HOLD, str(tmp_path / "store.db")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:  # noqa: ASYNC220
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        error = await fails(store, within=3)
        assert isinstance(error, StoreUnavailable)
        assert "locked" in error.message
        assert await store.head(ALICE, "resp_1") is not None  # a write-ahead log does not stop readers
        holder.stdin.close()
    await store.save(turn("resp_2"))
    await store.close()


async def test_a_disk_that_is_full(sqlite_url: str) -> None:
    store = await connect(sqlite_url)
    await conversation(store)
    record = await saved(store, turn("resp_1"))
    before = await rows(store)
    async with store.database.writer.connect() as connection:
        pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar()
        await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    big = tuple(item("x" * 5000) for _ in range(50))
    with pytest.raises(StoreError, match="full"):
        await store.save(turn("resp_2", await store.history(ALICE, "resp_1"), input=big))
    with pytest.raises(StoreError, match="full"):
        await store.add_conversation_items(ALICE, "conv_1", big)
    assert await rows(store) == before
    assert await ids(store, "resp_1") == [one.id for one in record.input + record.output]
    async with store.database.writer.connect() as connection:
        await connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    await store.save(turn("resp_2", await store.history(ALICE, "resp_1"), input=big))
    assert len(await ids(store, "resp_2") or []) == 53
    await store.close()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    store = create_sqlite(f"sqlite:///{tmp_path / 'store.db'}")
    with pytest.raises(StoreError):
        await store.open()
    await store.close()


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    store = create_sqlite(f"sqlite:///{tmp_path / 'none' / 'store.db'}")
    with pytest.raises(StoreError):
        await store.open()
    await store.close()


async def test_a_writer_killed_in_the_middle_leaves_nothing(sqlite_url: str, tmp_path: Path) -> None:
    store = await connect(sqlite_url)
    await store.save(turn("resp_1"))
    before = await rows(store)
    torn = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    torn.execute("BEGIN IMMEDIATE")
    torn.execute("DELETE FROM items")
    torn.close()  # without a commit, as the end of its process would
    assert await rows(store) == before
    await store.close()


async def test_a_lease_survives_its_holder_only_for_its_time(store_url: str) -> None:
    one, two = await connect(store_url), await connect(store_url)
    await conversation(one)
    assert await one.acquire(ALICE, Lease("conv_1", "dead"), 0.2)
    deadline = time.monotonic() + 10
    while not await two.acquire(ALICE, Lease("conv_1", "next"), 60):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await one.close()
    await two.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@h:port/db",
        "postgresql://u:geheim@h/db?sslmode=perhaps",
        "mysql://u:geheim@h/db",
    ],
)
def test_a_url_of_postgres_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_postgresql(url)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite://host/file.db", "sqlite", "redis:///x"])
def test_a_url_of_sqlite_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ConfigError):
        create_sqlite(url)
