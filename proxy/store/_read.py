"""The reading of responses, histories and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Select, and_, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store import Anchor, Call, History, Item, Owner, Page, PageQuery, ResponseHead, StoredResponse, UnknownCursor
from proxy.store import _tables as t
from proxy.store._save import batches

# The tool calls that a client answers; other types carry a call_id too.
_CLIENT_CALLS = ("function_call", "custom_tool_call")

OWNER: BindParameter[str] = bindparam("by_owner")
ID: BindParameter[str] = bindparam("by_id")
THREAD: BindParameter[int] = bindparam("by_thread")
_END = bindparam("end", type_=BigInteger())
ITEM = (
    t.items.c.id,
    t.items.c.type,
    t.items.c.body,
    t.items.c.call_id,
    t.items.c.upstream,
)  # the order of Item's fields

_THIS_RESPONSE = and_(t.responses.c.owner == OWNER, t.responses.c.id == ID)
_HEAD_COLUMNS = (t.responses.c.id, t.responses.c.status, t.responses.c.created_at, t.responses.c.envelope)
_HEAD = select(*_HEAD_COLUMNS).where(_THIS_RESPONSE)
_HEAD_AND_RANGE = select(*_HEAD_COLUMNS, t.responses.c.thread, t.responses.c.output_start, t.responses.c.end_pos).where(
    _THIS_RESPONSE
)
_INPUT_RANGE = select(t.responses.c.thread, t.responses.c.input_start, t.responses.c.output_start).where(_THIS_RESPONSE)
_EVENTS = select(t.response_events.c.body).where(
    t.response_events.c.owner == OWNER, t.response_events.c.response_id == ID
)

_IN_THREAD = and_(t.items.c.owner == OWNER, t.items.c.thread == THREAD)
_IN_RANGE = and_(_IN_THREAD, t.items.c.pos >= bindparam("low"), t.items.c.pos < bindparam("high"))
_IN_CONVERSATION = and_(_IN_THREAD, t.items.c.removed.is_(False))
_RANGE = select(*ITEM).where(_IN_RANGE).order_by(t.items.c.pos)

_ANCHOR = (
    select(t.threads.c.id, t.responses.c.end_pos, t.threads.c.session, t.threads.c.session_token, t.responses.c.status)
    .join_from(
        t.responses, t.threads, and_(t.threads.c.owner == t.responses.c.owner, t.threads.c.id == t.responses.c.thread)
    )
    .where(_THIS_RESPONSE)
)


def _history() -> Select[Any]:
    """The items of a thread below a position, preceded by those of its parents below each fork."""
    first = (
        select(t.threads.c.id.label("thread"), _END.label("high"), t.threads.c.fork, t.threads.c.parent)
        .where(t.threads.c.owner == OWNER, t.threads.c.id == THREAD)
        .cte("line", recursive=True)
    )
    above = select(t.threads.c.id, first.c.fork, t.threads.c.fork, t.threads.c.parent).where(
        t.threads.c.owner == OWNER, t.threads.c.id == first.c.parent
    )
    line = first.union_all(above)
    within = and_(t.items.c.owner == OWNER, t.items.c.thread == line.c.thread, t.items.c.pos < line.c.high)
    return select(*ITEM).join_from(line, t.items, within).where(t.items.c.removed.is_(False)).order_by(t.items.c.pos)


def _newest() -> Select[Any]:
    """The newest item of each id. Keys are ranked first, so that a body is read once however often it recurs."""
    newest_first = func.row_number().over(
        partition_by=t.items.c.id, order_by=(t.items.c.thread.desc(), t.items.c.pos.desc())
    )
    known = select(t.items.c.thread, t.items.c.pos, newest_first.label("rank")).where(
        t.items.c.owner == OWNER, t.items.c.id.in_(bindparam("ids", expanding=True))
    )
    key = known.subquery("known")
    same = and_(t.items.c.owner == OWNER, t.items.c.thread == key.c.thread, t.items.c.pos == key.c.pos)
    return select(*ITEM).join_from(key, t.items, same).where(key.c.rank == 1)


_HISTORY = _history()
_NEWEST = _newest()
_CALLS = (
    select(t.items.c.call_id, t.responses.c.id)
    .distinct()
    .join_from(
        t.items,
        t.responses,
        and_(
            t.responses.c.owner == t.items.c.owner,
            t.responses.c.thread == t.items.c.thread,
            t.responses.c.output_start <= t.items.c.pos,
            t.responses.c.end_pos > t.items.c.pos,
        ),
    )
    .where(
        t.items.c.owner == OWNER,
        t.items.c.call_id.in_(bindparam("ids", expanding=True)),
        t.items.c.type.in_(_CLIENT_CALLS),
        t.responses.c.status == "completed",
    )
)


class Pages:
    """The paging of one list of items; its four statements differ only in direction and cursor."""

    def __init__(self, member: ColumnElement[bool]) -> None:
        pos = t.items.c.pos
        cursor: BindParameter[int] = bindparam("cursor")
        limit: BindParameter[int] = bindparam("limit")
        self._cursor = select(pos).where(member, t.items.c.id == bindparam("after")).order_by(pos).limit(1)
        page = select(*ITEM).where(member).limit(limit)
        self._first = {"asc": page.order_by(pos), "desc": page.order_by(pos.desc())}
        self._next = {
            "asc": page.where(pos > cursor).order_by(pos),
            "desc": page.where(pos < cursor).order_by(pos.desc()),
        }

    async def read(self, connection: AsyncConnection, query: PageQuery, scope: Mapping[str, Any]) -> Page:
        """The page of the list that `scope` names."""
        values = {**scope, "limit": query.limit + 1}
        statements = self._first
        if query.after is not None:
            statements = self._next
            values["cursor"] = await connection.scalar(self._cursor, {**scope, "after": query.after})
            if values["cursor"] is None:
                raise UnknownCursor(query.after)
        rows = (await connection.execute(statements[query.order], values)).all()
        return Page(tuple(Item(*row) for row in rows[: query.limit]), len(rows) > query.limit)


_INPUT_PAGES = Pages(_IN_RANGE)
CONVERSATION_PAGES = Pages(_IN_CONVERSATION)


async def head(connection: AsyncConnection, owner: Owner, response_id: str) -> ResponseHead | None:
    """The response without its items."""
    row = (await connection.execute(_HEAD, {"by_owner": owner, "by_id": response_id})).first()
    return ResponseHead(*row) if row else None


async def response(connection: AsyncConnection, owner: Owner, response_id: str) -> StoredResponse | None:
    """The response and its output."""
    row = (await connection.execute(_HEAD_AND_RANGE, {"by_owner": owner, "by_id": response_id})).first()
    if row is None:
        return None
    scope = {"by_owner": owner, "by_thread": row[4], "low": row[5], "high": row[6]}
    output = await connection.execute(_RANGE, scope)
    return StoredResponse(ResponseHead(*row[:4]), tuple(Item(*item) for item in output))


async def events(connection: AsyncConnection, owner: Owner, response_id: str) -> bytes | None:
    """The event log as it is stored."""
    body: bytes | None = await connection.scalar(_EVENTS, {"by_owner": owner, "by_id": response_id})
    return body


async def input_items(connection: AsyncConnection, owner: Owner, response_id: str, page: PageQuery) -> Page | None:
    """A page of the response's own input."""
    row = (await connection.execute(_INPUT_RANGE, {"by_owner": owner, "by_id": response_id})).first()
    if row is None:
        return None
    scope = {"by_owner": owner, "by_thread": row[0], "low": row[1], "high": row[2]}
    return await _INPUT_PAGES.read(connection, page, scope)


async def history(connection: AsyncConnection, owner: Owner, response_id: str) -> History | None:
    """Everything up to the end of the response."""
    row = (await connection.execute(_ANCHOR, {"by_owner": owner, "by_id": response_id})).first()
    return await history_at(connection, owner, row) if row else None


async def history_at(connection: AsyncConnection, owner: Owner, row: Sequence[Any]) -> History:
    """The history below a place that is given as thread, position, session, session token, status."""
    thread, end, session, token, status = row
    rows = await connection.execute(_HISTORY, {"by_owner": owner, "by_thread": thread, "end": end})
    return History(Anchor(thread, end), tuple(Item(*item) for item in rows), session, token, status)


async def items(connection: AsyncConnection, owner: Owner, item_ids: Sequence[str]) -> Mapping[str, Item]:
    """The newest item of each id."""
    found = {}
    for ids in batches(item_ids):
        rows = await connection.execute(_NEWEST, {"by_owner": owner, "ids": ids})
        found.update({row[0]: Item(*row) for row in rows})
    return found


async def calls(connection: AsyncConnection, owner: Owner, call_ids: Sequence[str]) -> Sequence[Call]:
    """Who made these calls."""
    found = []
    for ids in batches(call_ids):
        rows = await connection.execute(_CALLS, {"by_owner": owner, "ids": ids})
        found += [Call(*row) for row in rows]
    return found
