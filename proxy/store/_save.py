"""The writing of a group of turns: lock what they continue, plan, and insert everything at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import BindParameter, Dialect, Executable, bindparam, func, insert, null, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.errors import StoreConflict, StoreError, StoreUnavailable
from proxy.store import _tables as t
from proxy.store._database import Database, Rejected
from proxy.store._group import Outcome, WriteGroup
from proxy.store._plan import ConversationState, Entry, Plan, Row, State, ThreadState

T = TypeVar("T")

_BATCH = 4096  # keys of up to three columns in one statement; asyncpg binds 32767 values, SQLite as many

_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)

# Locks go from conversations to threads, and from children to parents, as in `_delete`: two writers that need the same
# rows then wait for each other in one order. A thread's id is younger, so larger, than its parent's.
_LOCK_CONVERSATIONS = (
    select(t.conversations.c.owner, t.conversations.c.id, t.conversations.c.thread, t.conversations.c.lease_token)
    .where(tuple_(t.conversations.c.owner, t.conversations.c.id).in_(_KEYS))
    .order_by(t.conversations.c.owner, t.conversations.c.id)
    .with_for_update()
)
_LOCK_THREADS = (
    select(t.threads.c.owner, t.threads.c.id, t.threads.c.tip, t.threads.c.sealed, t.threads.c.conversation)
    .where(tuple_(t.threads.c.owner, t.threads.c.id).in_(_KEYS))
    .order_by(t.threads.c.owner, t.threads.c.id.desc())
    .with_for_update()
)
_TAKEN = select(t.items.c.owner, t.items.c.thread, t.items.c.id).where(
    tuple_(t.items.c.owner, t.items.c.thread, t.items.c.id).in_(_KEYS)
)
_NEW_TOKEN = bindparam("new_token", type_=t.threads.c.session_token.type)
_MOVE_TIP = (
    update(t.threads)
    .where(t.threads.c.owner == bindparam("key_owner"), t.threads.c.id == bindparam("key_id"))
    .values(
        tip=bindparam("new_tip"),
        session_token=func.coalesce(_NEW_TOKEN, t.threads.c.session_token),
    )
)
_END_LEASE = (
    update(t.conversations)
    .where(
        t.conversations.c.owner == bindparam("key_owner"),
        t.conversations.c.id == bindparam("key_id"),
        t.conversations.c.lease_token == bindparam("key_token"),
    )
    .values(lease_token=null(), lease_expires=null())
)


def batches(keys: Sequence[T]) -> Iterator[list[T]]:
    """The keys in lists so short that one statement can carry each: no database takes parameters without end."""
    for start in range(0, len(keys), _BATCH):
        yield padded(list(keys[start : start + _BATCH]))


def padded(keys: list[T]) -> list[T]:
    """The keys, the last repeated up to a power of two: few lengths, so few statements to prepare."""
    full = 1 << (len(keys) - 1).bit_length()
    return keys + keys[-1:] * (full - len(keys))


class Many:
    """A statement compiled once, run with many rows of positional parameters."""

    def __init__(self, dialect: Dialect, statement: Executable, order: Sequence[str] = ()) -> None:
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self._sql = str(compiled)
        if order and list(order) != compiled.positiontup:
            raise AssertionError(f"parameters come as {compiled.positiontup}")

    async def run(self, connection: AsyncConnection, rows: list[Row]) -> None:
        if rows:
            await connection.exec_driver_sql(self._sql, rows)


class Writer:
    """Saves groups of turns."""

    def __init__(self, database: Database) -> None:
        dialect = database.writer.dialect
        self._database = database
        self._threads = Many(dialect, insert(t.threads))
        self._items = Many(dialect, insert(t.items))
        self._responses = Many(dialect, insert(t.responses))
        self._events = Many(dialect, insert(t.response_events))
        self._approvals = Many(dialect, insert(t.approvals))
        self._tips = Many(dialect, _MOVE_TIP, ("new_tip", "new_token", "key_owner", "key_id"))
        self._leases = Many(dialect, _END_LEASE, ("key_owner", "key_id", "key_token"))

    async def save(self, group: Sequence[Entry]) -> Sequence[Outcome]:
        """Writes the group in one transaction; where a row is refused, each turn in its own."""
        return await judged(lambda entries: self._database.write(self._write, entries), group)

    async def _write(self, connection: AsyncConnection, group: Sequence[Entry]) -> Sequence[Outcome]:
        plan = Plan(await _lock(connection, group))
        outcomes: list[Outcome] = [plan.add(entry) for entry in group]
        await self._threads.run(connection, plan.threads)
        await self._tips.run(connection, plan.tips)
        await self._items.run(connection, plan.items)
        await self._responses.run(connection, plan.responses)
        await self._events.run(connection, plan.events)
        await self._approvals.run(connection, plan.approvals)
        await self._leases.run(connection, plan.leases)
        return outcomes


async def judged(write: WriteGroup[Entry], group: Sequence[Entry]) -> Sequence[Outcome]:
    """What befell each turn of a group that is written whole or not at all; where it was not, each is tried alone."""
    try:
        return await write(group)
    except StoreUnavailable as unavailable:
        return [type(unavailable)(unavailable.message) for _ in group]
    except StoreError as error:
        if len(group) == 1:
            return [StoreConflict() if isinstance(error, Rejected) else error]
    return [(await judged(write, [entry]))[0] for entry in group]


async def _lock(connection: AsyncConnection, group: Sequence[Entry]) -> State:
    state = State()
    conversations = sorted({entry.appends for entry in group if entry.appends})
    if conversations:
        for row in await connection.execute(_LOCK_CONVERSATIONS, {"keys": padded(conversations)}):
            state.conversations[row[0], row[1]] = ConversationState(row[2], row[3])
    threads = {entry.anchor for entry in group if entry.anchor}
    threads |= {(owner, held.thread) for (owner, _), held in state.conversations.items()}
    if threads:
        for owner, thread, *rest in await connection.execute(_LOCK_THREADS, {"keys": padded(sorted(threads))}):
            tip, sealed, conversation = rest
            state.threads[owner, thread] = ThreadState(tip, open=not sealed and conversation is None)
    await _find_taken(connection, group, state)
    return state


async def _find_taken(connection: AsyncConnection, group: Sequence[Entry], state: State) -> None:
    keys = set()
    for entry in group:
        held = state.conversations.get(entry.appends) if entry.appends else None
        if held:
            items = entry.record.input + entry.record.output
            keys |= {(entry.record.owner, held.thread, item.id) for item in items}
    for batch in batches(sorted(keys)):
        for owner, thread, item_id in await connection.execute(_TAKEN, {"keys": batch}):
            state.taken.setdefault((owner, thread), set()).add(item_id)
