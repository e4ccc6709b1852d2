"""What only Postgres does: a group in one round trip, a history in one statement, and what may be sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from proxy.errors import StoreConflict, StoreError, StoreUnavailable
from proxy.store import Approval, History, Lease, TurnRecord
from proxy.store._plan import Entry
from proxy.store._sql import SqlStore
from proxy.store._turn_sql import shape
from tests.store.pooler import pooler
from tests.store.records import (
    ALICE,
    append,
    chain,
    commits,
    connect,
    conversation,
    conversation_ids,
    failed,
    ids,
    item,
    rows,
    saved,
    statements,
    turn,
)

Meanwhile = Callable[[asyncpg.Connection], Awaitable[Any]]


@pytest_asyncio.fixture
async def store(postgres_url: str) -> AsyncIterator[SqlStore]:
    """A store in Postgres."""
    opened = await connect(postgres_url)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def other(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Another session of the same database."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def while_locked(other: asyncpg.Connection, lock: str) -> AsyncIterator[None]:
    """Holds a lock until the body ends, and then commits what was done under it."""
    async with other.transaction():
        await other.execute(lock)
        yield


async def waits(other: asyncpg.Connection, number: int = 1, but: int = 0) -> list[int]:
    """The sessions that wait for a lock, as soon as they are so many."""
    async with asyncio.timeout(10):
        while True:
            found = await other.fetch("SELECT DISTINCT pid FROM pg_locks WHERE NOT granted AND pid <> $1", but)
            if len(found) == number:
                return [row[0] for row in found]
            await asyncio.sleep(0.01)


async def history_of(store: SqlStore, response_id: str) -> History:
    history = await store.history(ALICE, response_id)
    assert history is not None
    return history


async def test_a_chain_takes_one_round_trip_to_read_and_one_to_write(store: SqlStore) -> None:
    await store.save(turn("resp_0"))
    with commits(store) as written, statements(store) as read:
        await store.save(turn("resp_1", await history_of(store, "resp_0")))
    assert (len(written), len(read)) == (1, 1)


async def test_the_values_of_every_shape(store: SqlStore) -> None:
    history = None
    for count in (0, 1, 2, 3, 8, 16, 17, 100):
        for events in (None, b"frames"):
            record = turn(f"resp_{count}_{events}", history, input=tuple(item(upstream=b"u") for _ in range(count)))
            assert record.response is not None
            record = replace(record, session_token="t", response=replace(record.response, events=events))
            await store.save(record)
            read = await history_of(store, f"resp_{count}_{events}")
            assert read.items == (history.items if history else ()) + record.input + record.output
            assert read.session_token == "t"
            assert await store.events(ALICE, f"resp_{count}_{events}") == events
            history = read
    assert (await rows(store))["threads"] == 1


async def test_what_takes_more_than_a_statement_has_no_shape() -> None:
    record = turn("resp_1")
    with_lease = replace(record, lease=Lease("conv_1", "token"))
    assert shape(Entry(record, None)) is not None
    assert shape(Entry(failed(with_lease), None)) is not None
    for other in (with_lease, replace(record, approvals=(Approval("a", "t"),)), replace(record, response=None)):
        assert shape(Entry(other, None)) is None


async def test_one_refused_among_continuing_turns_and_new_ones(store: SqlStore) -> None:
    await chain(store, 3)
    await store.save(turn("next_1"))
    histories = [await history_of(store, f"resp_{number}") for number in range(3)]
    records = [turn(f"next_{number}", history) for number, history in enumerate(histories)]
    records += [turn(f"new_{number}") for number in (0, 1, 1)]
    outcomes = await asyncio.gather(*(store.save(record) for record in records), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreConflict, *[type(None)] * 3, StoreConflict]
    for record, history in zip(records, histories, strict=False):
        if record.response is not None and record.response.id != "next_1":
            expected = (*history.items, *record.input, *record.output)
            assert (await history_of(store, record.response.id)).items == expected


@pytest.mark.parametrize("text", ["nul \0", "half a pair \ud800"])
async def test_a_text_that_postgres_does_not_take_fails_alone(store: SqlStore, text: str) -> None:
    records = [
        turn("resp_0"),
        turn("resp_1", session=text),
        turn("resp_2", output=(item(call_id=text),)),
        turn("resp_3"),
    ]
    outcomes = await asyncio.gather(*(store.save(record) for record in records), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, StoreError, type(None)]
    assert (await rows(store))["responses"] == 2


async def test_an_error_in_the_middle_of_a_large_group_undoes_it(store: SqlStore) -> None:
    """The driver sends more than 128 KiB in parts, and finds the text it cannot encode after the first went out."""
    records = [turn(f"resp_{number}", input=(item("x" * 100_000),)) for number in range(12)]
    records[9] = replace(records[9], session="\ud800")
    outcomes = await asyncio.gather(*(store.save(record) for record in records), return_exceptions=True)
    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == [9]
    assert (await rows(store))["responses"] == 11


async def extended(other: asyncpg.Connection) -> None:
    await other.execute("UPDATE threads SET tip = tip + 2")


async def cut(other: asyncpg.Connection) -> None:
    await other.execute("DELETE FROM items WHERE pos >= 2; UPDATE threads SET tip = 2, sealed = true")


async def sealed(other: asyncpg.Connection) -> None:
    await other.execute("UPDATE threads SET sealed = true")


async def deleted(other: asyncpg.Connection) -> None:
    await other.execute("DELETE FROM threads; DELETE FROM items; DELETE FROM responses")


async def unchanged(other: asyncpg.Connection) -> None:
    await other.execute("UPDATE threads SET session_token = 'theirs'")


@pytest.mark.parametrize(
    ("meanwhile", "where"),
    [(extended, "fork"), (sealed, "fork"), (cut, "copy"), (deleted, "copy"), (unchanged, "same")],
)
async def test_a_turn_that_waited_goes_by_what_the_other_left(
    store: SqlStore, other: asyncpg.Connection, meanwhile: Meanwhile, where: str
) -> None:
    await chain(store, 2)
    history = await history_of(store, "resp_1")
    async with other.transaction():
        await meanwhile(other)
        save = asyncio.ensure_future(store.save(record := turn("next", history)))
        await waits(other)
    await save
    found = await history_of(store, "next")
    assert found.items == (*history.items, *record.input, *record.output)
    parent = await other.fetchval("SELECT parent FROM threads WHERE id = $1", found.anchor.thread)
    assert (found.anchor.thread == history.anchor.thread) == (where == "same")
    assert (parent == history.anchor.thread) == (where == "fork")
    if where == "same":
        assert found.session_token == "theirs"


async def test_turns_of_two_writers_that_want_the_same_threads_both_commit(postgres_url: str) -> None:
    stores = [await connect(postgres_url) for _ in range(2)]
    for number in range(20):
        await stores[0].save(turn(f"resp_{number}"))
    histories = [await history_of(stores[0], f"resp_{number}") for number in range(20)]
    orders = (range(20), reversed(range(20)))
    saves = [
        stores[writer].save(turn(f"next_{writer}_{number}", histories[number]))
        for writer, order in enumerate(orders)
        for number in order
    ]
    await asyncio.gather(*saves)
    assert (await rows(stores[0]))["threads"] == 40
    for each in stores:
        await each.close()


async def test_a_deadlocks_victim_is_written_again(store: SqlStore, other: asyncpg.Connection) -> None:
    records = []
    for number in range(2):
        await store.save(turn(f"resp_{number}"))
        records.append(turn(f"next_{number}", await history_of(store, f"resp_{number}")))
    older, younger = (record.history.anchor.thread for record in records if record.history)
    with commits(store) as seen:
        async with while_locked(other, f"SELECT FROM threads WHERE id = {older} FOR UPDATE"):
            saves = asyncio.gather(*(store.save(record) for record in records))
            await waits(other)
            await other.execute(f"SELECT FROM threads WHERE id = {younger} FOR UPDATE")
        await saves
    assert len(seen) == 1
    assert (await rows(store))["responses"] == 4


async def test_a_statement_that_was_interrupted_is_not_sent_again(store: SqlStore, other: asyncpg.Connection) -> None:
    await chain(store, 2)
    records = [turn("next_1"), turn("next_2", await history_of(store, "resp_1"))]
    async with while_locked(other, "LOCK TABLE responses IN ACCESS EXCLUSIVE MODE"):
        saves = asyncio.gather(*(store.save(record) for record in records), return_exceptions=True)
        for pid in await waits(other, len(records)):
            await other.execute("SELECT pg_terminate_backend($1)", pid)
        # Were one sent again, it would wait for the lock, and the outcome would not come.
        outcomes = await asyncio.wait_for(saves, 5)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
    assert (await rows(store))["responses"] == 2
    for record in records:
        await store.save(record)


async def test_a_read_whose_connection_is_lost_is_sent_again(store: SqlStore, other: asyncpg.Connection) -> None:
    await chain(store, 2)
    async with while_locked(other, "LOCK TABLE items IN ACCESS EXCLUSIVE MODE"):
        reading = asyncio.ensure_future(store.history(ALICE, "resp_1"))
        (pid,) = await waits(other)
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        await waits(other, but=pid)
    history = await reading
    assert history is not None
    assert len(history.items) == 4


async def test_a_statement_over_its_time_is_stopped_at_the_server(postgres_url: str, other: asyncpg.Connection) -> None:
    store = await connect(postgres_url, statement_timeout=0.3, pool_size=1)
    async with while_locked(other, "LOCK TABLE responses IN ACCESS EXCLUSIVE MODE"):
        with pytest.raises(StoreUnavailable, match="in time"):
            await store.save(turn("late"))
        await waits(other, 0)
    assert await rows(store) == {}
    await store.save(turn("late"))
    await store.close()


def own(record: TurnRecord) -> list[str]:
    return [one.id for one in record.input + record.output]


async def test_a_history_of_forks_deleted_parents_and_removed_items(store: SqlStore) -> None:
    first = (item(), item())
    await conversation(store, items=first)
    spoken = turn("spoken")
    await append(store, "conv_1", spoken)
    told = await history_of(store, "spoken")
    branch = await saved(store, turn("branch", told))
    twig = await saved(store, failed(turn("twig", await history_of(store, "branch"))))
    leaf = await saved(store, turn("leaf", await history_of(store, "branch")))
    await store.delete_conversation_item(ALICE, "conv_1", first[0].id)
    await store.delete_conversation_item(ALICE, "conv_1", spoken.output[0].id)
    assert await store.delete_response(ALICE, "branch")
    before = [first[1].id, spoken.input[0].id]
    with statements(store) as seen:
        assert await conversation_ids(store) == before
        assert await ids(store, "twig") == [*before, *own(branch), *own(twig)]
        assert await ids(store, "leaf") == [*before, *own(branch), *own(leaf)]
        assert await store.history(ALICE, "branch") is None
    assert len(seen) == 4
    assert (await history_of(store, "twig")).status == "failed"


async def test_a_history_without_items(store: SqlStore) -> None:
    await store.save(turn("empty", input=(), output=()))
    history = await history_of(store, "empty")
    assert (history.items, history.session) == ((), "session")


async def test_a_history_looks_everything_up_by_key(store: SqlStore, other: asyncpg.Connection) -> None:
    await other.execute(
        "INSERT INTO threads (owner, id, fork, tip, session) SELECT 'alice', n, 0, 9, '' FROM generate_series(1, 900) n"
    )
    await other.execute(
        "INSERT INTO items (owner, thread, pos, id, type, body) SELECT 'alice', n, p, n || '_' || p, '', '' "
        "FROM generate_series(1, 900) n, generate_series(0, 8) p"
    )
    await chain(store, 3)
    await store.save(turn("fork", await history_of(store, "resp_1")))
    with statements(store) as seen:
        await store.history(ALICE, "fork")
    for analyze in ("SELECT 1", "ANALYZE"):
        await other.execute(analyze)
        for mode in ("force_generic_plan", "force_custom_plan"):
            await other.execute(f"SET plan_cache_mode = {mode}")
            plan = [row[0] for row in await other.fetch(f"EXPLAIN {seen[0]}", "alice", "fork")]
            for table in ("items", "threads"):
                scans = [line for line in plan if "Scan" in line and f" on {table}" in line]
                assert scans
                assert all("Index Scan" in line for line in scans), "\n".join(plan)


async def test_behind_a_pooler_of_transactions(postgres_url: str) -> None:
    async with pooler(postgres_url) as url:
        store = await connect(url, prepared_statements=False, pool_size=4)
        await chain(store, 4)
        await conversation(store)
        await append(store, "conv_1", turn("spoken"))
        records = [turn(f"many_{number}", input=tuple(item() for _ in range(number))) for number in range(20)]
        records += [turn(f"next_{number}", await history_of(store, "resp_2")) for number in range(3)]
        await asyncio.gather(*(store.save(record) for record in records))
        for record in records:
            assert record.response is not None
            assert (await ids(store, record.response.id) or [])[-1] == record.output[-1].id
        assert isinstance((await asyncio.gather(store.save(records[0]), return_exceptions=True))[0], StoreConflict)
        await store.close()


async def test_a_connection_whose_driver_lost_count_is_not_used_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it happens now and then when a server goes down while a statement is being prepared."""
    used: list[asyncpg.Connection] = []

    async def lost(connection: asyncpg.Connection, *_: Any, **__: Any) -> None:
        used.append(connection)
        raise asyncpg.InternalClientError("cannot switch to state 13; another operation (2) is in progress")

    with monkeypatch.context() as patched:
        patched.setattr(asyncpg.Connection, "executemany", lost)
        with pytest.raises(StoreUnavailable, match="connection to the state store was lost"):
            await store.save(turn("resp_1"))
    assert len(used) == 1
    await store.save(turn("resp_2"))
    assert used[0].is_closed()
