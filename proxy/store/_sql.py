"""The store over a SQL database: each method of the port, run as one operation on the database.

The path of a save: `SqlStore.save` compresses the event log and hands the turn to the `Grouper`; the `Writer` locks
what the group's turns continue from, lets the `Plan` decide, and inserts all rows in one transaction (in Postgres the
`Pipeline` writes most turns without it). A read is one transaction on one snapshot.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import zstandard
from sqlalchemy import bindparam, delete, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store import (
    Approval,
    Call,
    Conversation,
    History,
    Item,
    Lease,
    Owner,
    Page,
    PageQuery,
    ResponseHead,
    StoredResponse,
    TurnRecord,
    _approvals,
    _conversations,
    _delete,
    _read,
)
from proxy.store import _tables as t
from proxy.store._clock import Now
from proxy.store._database import Database, Rejected
from proxy.store._group import Grouper
from proxy.store._plan import Entry
from proxy.store.options import StoreOptions

# Of a log of events level 1 makes about as little as level 3, a little sooner and in less memory.
_COMPRESSION_LEVEL = 1
# A longer log is compressed in a thread: the event loop has other streams to serve. The way to a thread and back takes
# the loop longer than a shorter one.
_INLINE_BYTES = 128 * 1024

_WITHDRAW = delete(t.cancels).where(t.cancels.c.owner == bindparam("o"), t.cancels.c.response_id == bindparam("r"))
_REQUEST = insert(t.cancels).values(owner=bindparam("o"), response_id=bindparam("r"), at=Now())
_REQUESTS = select(t.cancels.c.owner, t.cancels.c.response_id).where(t.cancels.c.at >= Now() - bindparam("since"))


class SqlStore:
    """Implements `proxy.store.Store`; a backend hands it engines and how to prepare the schema."""

    def __init__(
        self,
        database: Database,
        prepare: Callable[[], Awaitable[None]],
        options: StoreOptions,
        grouper: Grouper[Entry],
    ) -> None:
        self.database = database
        self._prepare = prepare
        self._max_event_bytes = options.max_event_bytes
        self._grouper = grouper

    async def open(self) -> None:
        await self._prepare()
        await self.ping()

    async def close(self) -> None:
        await self._grouper.close()
        await self.database.close()

    async def ping(self) -> None:
        await self.database.read(_ping)

    async def save(self, record: TurnRecord) -> None:
        entry = Entry(record, await self._compressed(record))
        if not entry.empty:
            await self._grouper.add(entry)

    async def response(self, owner: Owner, response_id: str) -> StoredResponse | None:
        return await self.database.read(_read.response, owner, response_id)

    async def events(self, owner: Owner, response_id: str) -> bytes | None:
        body = await self.database.read(_read.events, owner, response_id)
        if body is None:
            return None
        return await _off_the_loop(_decompress, body)

    async def input_items(self, owner: Owner, response_id: str, page: PageQuery) -> Page | None:
        return await self.database.read(_read.input_items, owner, response_id, page)

    async def delete_response(self, owner: Owner, response_id: str) -> bool:
        return await self.database.write(_delete.delete_response, owner, response_id)

    async def head(self, owner: Owner, response_id: str) -> ResponseHead | None:
        return await self.database.read(_read.head, owner, response_id)

    async def history(self, owner: Owner, response_id: str) -> History | None:
        return await self.database.read(_read.history, owner, response_id)

    async def items(self, owner: Owner, item_ids: Sequence[str]) -> Mapping[str, Item]:
        return await self.database.read(_read.items, owner, item_ids)

    async def calls(self, owner: Owner, call_ids: Sequence[str]) -> Sequence[Call]:
        return await self.database.read(_read.calls, owner, call_ids)

    async def use_approvals(self, owner: Owner, approvals: Sequence[Approval]) -> None:
        await self.database.write(_approvals.use, owner, approvals)

    async def create_conversation(self, owner: Owner, conversation: Conversation, items: Sequence[Item]) -> None:
        await self.database.write(_conversations.create, owner, conversation, items)

    async def conversation(self, owner: Owner, conversation_id: str) -> Conversation | None:
        return await self.database.read(_conversations.get, owner, conversation_id)

    async def update_conversation(self, owner: Owner, conversation_id: str, metadata: bytes) -> Conversation | None:
        return await self.database.write(_conversations.replace_metadata, owner, conversation_id, metadata)

    async def delete_conversation(self, owner: Owner, conversation_id: str) -> bool:
        return await self.database.write(_conversations.remove, owner, conversation_id)

    async def conversation_history(self, owner: Owner, conversation_id: str) -> History | None:
        return await self.database.read(_conversations.history, owner, conversation_id)

    async def conversation_items(self, owner: Owner, conversation_id: str, page: PageQuery) -> Page | None:
        return await self.database.read(_conversations.page, owner, conversation_id, page)

    async def conversation_item(self, owner: Owner, conversation_id: str, item_id: str) -> Item | None:
        return await self.database.read(_conversations.item, owner, conversation_id, item_id)

    async def add_conversation_items(self, owner: Owner, conversation_id: str, items: Sequence[Item]) -> bool:
        return await self.database.write(_conversations.add_items, owner, conversation_id, items)

    async def delete_conversation_item(self, owner: Owner, conversation_id: str, item_id: str) -> bool:
        return await self.database.write(_conversations.remove_item, owner, conversation_id, item_id)

    async def acquire(self, owner: Owner, lease: Lease, ttl: float) -> bool:
        return await self.database.write(_conversations.acquire, owner, lease, ttl)

    async def renew(self, owner: Owner, lease: Lease, ttl: float) -> bool:
        return await self.database.write(_conversations.renew, owner, lease, ttl)

    async def release(self, owner: Owner, lease: Lease) -> None:
        await self.database.write(_conversations.release, owner, lease)

    async def request_cancel(self, owner: Owner, response_id: str) -> None:
        with suppress(Rejected):  # somebody left the same word at the same moment
            await self.database.write(_request_cancel, owner, response_id)

    async def cancel_requests(self, since: float) -> Sequence[tuple[Owner, str]]:
        return await self.database.read(_cancel_requests, since)

    async def sweep(self, limit: int) -> int:
        return await self.database.write(_delete.sweep, limit)

    async def _compressed(self, record: TurnRecord) -> bytes | None:
        events = record.response.events if record.response else None
        if events is None or len(events) > self._max_event_bytes:
            return None
        return await _off_the_loop(_compress, events)


async def _off_the_loop(convert: Callable[[bytes], bytes], body: bytes) -> bytes:
    if len(body) > _INLINE_BYTES:
        return await asyncio.to_thread(convert, body)
    return convert(body)


class _Compressors(threading.local):
    """A thread's own compressor: one is much dearer to make than to use, and serves one thread at a time."""

    def __init__(self) -> None:
        self.own = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)


_compressors = _Compressors()


def _compress(body: bytes) -> bytes:
    return _compressors.own.compress(body)


def _decompress(body: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(body)


async def _ping(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT 1"))


async def _request_cancel(connection: AsyncConnection, owner: Owner, response_id: str) -> None:
    this = {"o": owner, "r": response_id}
    await connection.execute(_WITHDRAW, this)
    await connection.execute(_REQUEST, this)


async def _cancel_requests(connection: AsyncConnection, since: float) -> Sequence[tuple[Owner, str]]:
    rows = await connection.execute(_REQUESTS, {"since": since})
    return [(Owner(owner), response_id) for owner, response_id in rows]
