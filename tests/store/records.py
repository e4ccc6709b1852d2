"""Turns, items and counts, in the fewest words for the tests of the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import count
from typing import Any
from unittest.mock import patch

from msgspec import structs
from sqlalchemy import event, func, select

from proxy.store import Conversation, History, Item, Lease, NewResponse, Owner, TurnRecord
from proxy.store import _tables as t
from proxy.store._direct import Direct
from proxy.store._sql import SqlStore
from proxy.store.options import StoreOptions

ALICE = Owner("alice")
BOB = Owner("bob")
NEVER = None

OpenStore = Callable[..., Awaitable[SqlStore]]
_serial = count()


async def connect(url: str, **options: Any) -> SqlStore:
    """An open store of the URL's kind."""
    store: SqlStore = import_module(f"proxy.store.{url.partition(':')[0]}").create(url, StoreOptions(**options))
    await store.open()
    return store


def item(text: str = "", **fields: Any) -> Item:
    """An item with an id nobody else has."""
    number = next(_serial)
    return structs.replace(Item(f"msg_{number}", "message", f'{{"text":"{text or number}"}}'.encode()), **fields)


def call(call_id: str, **fields: Any) -> Item:
    """A call that the client answers."""
    return item(type="function_call", call_id=call_id, **fields)


def turn(response_id: str, history: History | None = None, **fields: Any) -> TurnRecord:
    """A completed turn of one input and one output item."""
    record = TurnRecord(
        owner=ALICE,
        completed=True,
        input=(item(),),
        output=(item(),),
        response=NewResponse(response_id, "completed", 1.0, NEVER, b'{"output":[]}'),
        history=history,
        lease=None,
        session="session",
    )
    return replace(record, **fields)


def failed(record: TurnRecord) -> TurnRecord:
    """The same turn, cut."""
    assert record.response is not None
    return replace(record, completed=False, response=replace(record.response, status="failed"))


async def saved(store: SqlStore, record: TurnRecord) -> TurnRecord:
    """Saves a turn and gives it back."""
    await store.save(record)
    return record


async def chain(store: SqlStore, length: int, prefix: str = "resp", owner: Owner = ALICE) -> list[TurnRecord]:
    """Turns that each continue the one before."""
    turns: list[TurnRecord] = []
    history: History | None = None
    for number in range(length):
        turns.append(await saved(store, turn(f"{prefix}_{number}", history, owner=owner)))
        history = await store.history(owner, f"{prefix}_{number}")
    return turns


async def conversation(store: SqlStore, name: str = "conv_1", items: Sequence[Item] = ()) -> History:
    """A conversation of Alice's, as it is at first."""
    await store.create_conversation(ALICE, Conversation(name, 1.0, b"{}"), items)
    history = await store.conversation_history(ALICE, name)
    assert history is not None
    return history


async def append(store: SqlStore, name: str, record: TurnRecord, token: str = "token") -> None:
    """Runs a turn in a conversation, under its lease."""
    lease = Lease(name, token)
    assert await store.acquire(record.owner, lease, 60)
    history = await store.conversation_history(record.owner, name)
    await store.save(replace(record, history=history, lease=lease))


async def ids(store: SqlStore, response_id: str, owner: Owner = ALICE) -> list[str] | None:
    """The ids of a response's history."""
    history = await store.history(owner, response_id)
    return [one.id for one in history.items] if history else None


async def conversation_ids(store: SqlStore, name: str = "conv_1") -> list[str] | None:
    """The ids of a conversation's items."""
    history = await store.conversation_history(ALICE, name)
    return [one.id for one in history.items] if history else None


async def rows(store: SqlStore, owner: Owner | None = None) -> dict[str, int]:
    """How many rows each table holds; those that hold none are left out."""
    found = {}
    async with store.database.reader.connect() as connection:
        for table in t.metadata.sorted_tables:
            counted = select(func.count()).select_from(table)
            found[table.name] = await connection.scalar(counted.where(table.c.owner == owner) if owner else counted)
    return {name: number for name, number in found.items() if number}


@contextmanager
def statements(store: SqlStore) -> Iterator[list[str]]:
    """The statements that reads run meanwhile, less the BEGIN that SQLite wants spelled out."""
    seen: list[str] = []
    read = Direct.read

    async def noted(direct: Direct, statement: str, *args: Any) -> Any:
        seen.append(statement)
        return await read(direct, statement, *args)

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith("BEGIN"):
            seen.append(statement)

    engine = store.database.reader.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        with patch.object(Direct, "read", noted):
            yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def commits(store: SqlStore) -> Iterator[list[str]]:
    """One entry for each transaction that commits meanwhile."""
    seen: list[str] = []
    write = Direct.write

    def note(_connection: Any) -> None:
        seen.append("commit")

    async def noted(direct: Direct, *args: Any) -> None:
        await write(direct, *args)
        seen.append("commit")

    engine = store.database.writer.sync_engine
    event.listen(engine, "commit", note)
    try:
        with patch.object(Direct, "write", noted):
            yield seen
    finally:
        event.remove(engine, "commit", note)
