"""Conversations: their items, and the lease that lets one turn at a time append to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.errors import StoreConflict
from proxy.store import Conversation, DuplicateItem, History, Item, Lease, Owner, Page, PageQuery
from proxy.store import _tables as t
from proxy.store._clock import Now
from proxy.store._delete import LOCK_THREAD, trim
from proxy.store._plan import item_row, new_thread_id
from proxy.store._read import CONVERSATION_PAGES, ID, ITEM, OWNER, THREAD, history_at
from proxy.store._save import padded

_ITEM_COLUMNS = [column.name for column in t.items.columns]

_THIS = and_(t.conversations.c.owner == OWNER, t.conversations.c.id == ID)
_GET = select(t.conversations.c.id, t.conversations.c.created_at, t.conversations.c.metadata).where(_THIS)
_THREAD_OF = select(t.conversations.c.thread).where(_THIS)
_LOCK = _THREAD_OF.with_for_update()
_ADD = insert(t.conversations)
_ADD_THREAD = insert(t.threads)
_ADD_ITEMS = insert(t.items)
_DROP = delete(t.conversations).where(_THIS)

_MEMBER = and_(t.items.c.owner == OWNER, t.items.c.thread == THREAD)
_PRESENT = and_(_MEMBER, t.items.c.removed.is_(False))
_OWNED = exists().where(  # by a stored response
    t.responses.c.owner == t.items.c.owner,
    t.responses.c.thread == t.items.c.thread,
    t.responses.c.input_start <= t.items.c.pos,
    t.responses.c.end_pos > t.items.c.pos,
)
_ITEM = select(*ITEM).where(_PRESENT, t.items.c.id == ID).limit(1)
_ITEM_PLACE = select(t.items.c.pos, _OWNED.label("owned")).where(_PRESENT, t.items.c.id == ID).limit(1)
_HIDE_ITEM = update(t.items).where(_MEMBER, t.items.c.pos == bindparam("at")).values(removed=True)
_DROP_ITEM = delete(t.items).where(_MEMBER, t.items.c.pos == bindparam("at"))
_DROP_UNOWNED = delete(t.items).where(_MEMBER, ~_OWNED)
_FIRST_PRESENT = select(t.items.c.id).where(_PRESENT, t.items.c.id.in_(bindparam("ids", expanding=True))).limit(1)

_THIS_THREAD = and_(t.threads.c.owner == OWNER, t.threads.c.id == THREAD)
_LEAVE_THREAD = update(t.threads).where(_THIS_THREAD).values(conversation=None, sealed=True)
_MOVE_TIP = update(t.threads).where(_THIS_THREAD).values(tip=bindparam("new_tip"))
_ANCHOR = (
    select(t.threads.c.id, t.threads.c.tip, t.threads.c.session, t.threads.c.session_token)
    .join_from(
        t.conversations,
        t.threads,
        and_(t.threads.c.owner == t.conversations.c.owner, t.threads.c.id == t.conversations.c.thread),
    )
    .where(_THIS)
)

_TOKEN: BindParameter[str] = bindparam("by_token")
_MINE = t.conversations.c.lease_token == _TOKEN
_FREE = or_(t.conversations.c.lease_token.is_(None), t.conversations.c.lease_expires < Now(), _MINE)


def _update(where: ColumnElement[bool], **values: Any) -> Update:
    return update(t.conversations).where(_THIS, where).values(**values)


_UPDATE = update(t.conversations).where(_THIS).values(metadata=bindparam("new_metadata"))
_UNTIL = Now() + bindparam("ttl", type_=t.conversations.c.lease_expires.type)
_ACQUIRE = _update(_FREE, lease_token=_TOKEN, lease_expires=_UNTIL)
_RENEW = _update(_MINE, lease_expires=_UNTIL)
_RELEASE = _update(_MINE, lease_token=None, lease_expires=None)


def _item_rows(owner: Owner, thread: int, start: int, items: Sequence[Item]) -> list[dict[str, Any]]:
    rows = (item_row(owner, (thread, pos), item, item.id) for pos, item in enumerate(items, start))
    return [dict(zip(_ITEM_COLUMNS, row, strict=True)) for row in rows]


def _refuse_repeats(items: Sequence[Item]) -> None:
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DuplicateItem(item.id)
        seen.add(item.id)


async def create(connection: AsyncConnection, owner: Owner, new: Conversation, items: Sequence[Item]) -> None:
    """Adds a conversation, whose thread is a root of its own; its id is also its session."""
    _refuse_repeats(items)
    if await _thread(connection, _THREAD_OF, owner, new.id) is not None:
        raise StoreConflict("The id of the conversation is already stored.")
    thread = new_thread_id()
    row = {"owner": owner, "id": thread, "fork": 0, "tip": len(items), "conversation": new.id, "session": new.id}
    await connection.execute(_ADD_THREAD, row)
    await connection.execute(
        _ADD,
        {"owner": owner, "id": new.id, "created_at": new.created_at, "metadata": new.metadata, "thread": thread},
    )
    if items:
        await connection.execute(_ADD_ITEMS, _item_rows(owner, thread, 0, items))


async def get(connection: AsyncConnection, owner: Owner, conversation_id: str) -> Conversation | None:
    """The conversation."""
    row = (await connection.execute(_GET, {"by_owner": owner, "by_id": conversation_id})).first()
    return Conversation(*row) if row else None


async def replace_metadata(
    connection: AsyncConnection, owner: Owner, conversation_id: str, metadata: bytes
) -> Conversation | None:
    """Sets the metadata; returns the conversation as it is then."""
    await connection.execute(_UPDATE, {"by_owner": owner, "by_id": conversation_id, "new_metadata": metadata})
    return await get(connection, owner, conversation_id)


async def remove(connection: AsyncConnection, owner: Owner, conversation_id: str) -> bool:
    """Deletes a conversation; its thread stays as far as stored responses need it."""
    thread = await _thread(connection, _LOCK, owner, conversation_id)
    if thread is None:
        return False
    this = {"by_owner": owner, "by_thread": thread}
    await connection.execute(LOCK_THREAD, this)
    await connection.execute(_DROP_UNOWNED, this)
    await connection.execute(_LEAVE_THREAD, this)
    await connection.execute(_DROP, {"by_owner": owner, "by_id": conversation_id})
    await trim(connection, owner, thread)
    return True


async def history(connection: AsyncConnection, owner: Owner, conversation_id: str) -> History | None:
    """Everything in the conversation."""
    row = (await connection.execute(_ANCHOR, {"by_owner": owner, "by_id": conversation_id})).first()
    return await history_at(connection, owner, (*row, "completed")) if row else None


async def page(connection: AsyncConnection, owner: Owner, conversation_id: str, query: PageQuery) -> Page | None:
    """A page of the conversation's items."""
    thread = await _thread(connection, _THREAD_OF, owner, conversation_id)
    if thread is None:
        return None
    return await CONVERSATION_PAGES.read(connection, query, {"by_owner": owner, "by_thread": thread})


async def item(connection: AsyncConnection, owner: Owner, conversation_id: str, item_id: str) -> Item | None:
    """One item."""
    thread = await _thread(connection, _THREAD_OF, owner, conversation_id)
    if thread is None:
        return None
    row = (await connection.execute(_ITEM, {"by_owner": owner, "by_thread": thread, "by_id": item_id})).first()
    return Item(*row) if row else None


async def add_items(connection: AsyncConnection, owner: Owner, conversation_id: str, items: Sequence[Item]) -> bool:
    """Appends items at the tip."""
    _refuse_repeats(items)
    thread = await _thread(connection, _LOCK, owner, conversation_id)
    if thread is None:
        return False
    this = {"by_owner": owner, "by_thread": thread}
    tip = (await connection.execute(LOCK_THREAD, this)).one().tip
    if items:
        repeated = await connection.scalar(_FIRST_PRESENT, {**this, "ids": padded([item.id for item in items])})
        if repeated is not None:
            raise DuplicateItem(repeated)
        await connection.execute(_ADD_ITEMS, _item_rows(owner, thread, tip, items))
        await connection.execute(_MOVE_TIP, {**this, "new_tip": tip + len(items)})
    return True


async def remove_item(connection: AsyncConnection, owner: Owner, conversation_id: str, item_id: str) -> bool:
    """Deletes an item, or hides it where a stored response owns it. Its position is not used again."""
    thread = await _thread(connection, _LOCK, owner, conversation_id)
    if thread is None:
        return False
    this = {"by_owner": owner, "by_thread": thread}
    await connection.execute(LOCK_THREAD, this)
    place = (await connection.execute(_ITEM_PLACE, {**this, "by_id": item_id})).first()
    if place is None:
        return False
    await connection.execute(_HIDE_ITEM if place.owned else _DROP_ITEM, {**this, "at": place.pos})
    return True


async def acquire(connection: AsyncConnection, owner: Owner, lease: Lease, ttl: float) -> bool:
    """Takes the lease where it is free, expired, or ours already."""
    return await _lease(connection, _ACQUIRE, owner, lease, {"ttl": ttl})


async def renew(connection: AsyncConnection, owner: Owner, lease: Lease, ttl: float) -> bool:
    """Prolongs the lease. One that ran out is still held until somebody else takes it: the token is the fence."""
    return await _lease(connection, _RENEW, owner, lease, {"ttl": ttl})


async def release(connection: AsyncConnection, owner: Owner, lease: Lease) -> bool:
    """Ends the lease where it is still ours."""
    return await _lease(connection, _RELEASE, owner, lease, {})


async def _lease(
    connection: AsyncConnection, statement: Update, owner: Owner, lease: Lease, values: dict[str, float]
) -> bool:
    this = {"by_owner": owner, "by_id": lease.conversation, "by_token": lease.token, **values}
    result = await connection.execute(statement, this)
    return result.rowcount == 1


async def _thread(
    connection: AsyncConnection, statement: Select[tuple[int]], owner: Owner, conversation_id: str
) -> int | None:
    thread: int | None = await connection.scalar(statement, {"by_owner": owner, "by_id": conversation_id})
    return thread
