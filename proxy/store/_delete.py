"""The deleting of responses, and of the items that nothing reaches any more."""

from __future__ import annotations

from sqlalchemy import and_, bindparam, delete, func, select, tuple_, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store import Owner
from proxy.store import _tables as t
from proxy.store._clock import Now, SweeperLock
from proxy.store._read import ID, OWNER, THREAD

# A cancel request that no worker has found after this many seconds concerns a response that nobody runs.
_CANCEL_KEPT = 3600.0

_THIS_RESPONSE = and_(t.responses.c.owner == OWNER, t.responses.c.id == ID)
_THREAD_OF = select(t.responses.c.thread).where(_THIS_RESPONSE)
_RANGE_OF = select(t.responses.c.input_start, t.responses.c.end_pos).where(_THIS_RESPONSE)
_DROP_RESPONSE = delete(t.responses).where(_THIS_RESPONSE)
_DROP_EVENTS = delete(t.response_events).where(
    t.response_events.c.owner == OWNER, t.response_events.c.response_id == ID
)
_DROP_APPROVALS = delete(t.approvals).where(t.approvals.c.owner == OWNER, t.approvals.c.response_id == ID)
_DROP_REMOVED = delete(t.items).where(
    t.items.c.owner == OWNER,
    t.items.c.thread == THREAD,
    t.items.c.pos >= bindparam("low"),
    t.items.c.pos < bindparam("high"),
    t.items.c.removed.is_(True),
)

_THIS_THREAD = and_(t.threads.c.owner == OWNER, t.threads.c.id == THREAD)
LOCK_THREAD = (
    select(t.threads.c.parent, t.threads.c.tip, t.threads.c.conversation).where(_THIS_THREAD).with_for_update()
)
_ENDS = union_all(
    select(func.max(t.responses.c.end_pos).label("pos")).where(
        t.responses.c.owner == OWNER, t.responses.c.thread == THREAD
    ),
    select(func.max(t.threads.c.fork)).where(t.threads.c.owner == OWNER, t.threads.c.parent == THREAD),
).subquery("ends")
_NEEDED = select(func.max(_ENDS.c.pos))
_DROP_TAIL = delete(t.items).where(
    t.items.c.owner == OWNER, t.items.c.thread == THREAD, t.items.c.pos >= bindparam("low")
)
_SEAL = update(t.threads).where(_THIS_THREAD).values(tip=bindparam("new_tip"), sealed=True)
_DROP_THREAD = delete(t.threads).where(_THIS_THREAD)

_EXPIRED = (
    select(t.responses.c.owner, t.responses.c.id, t.responses.c.thread)
    .where(t.responses.c.expires_at <= Now())
    .order_by(t.responses.c.expires_at)
    .limit(bindparam("limit"))
)
_LOCK_THREADS = (
    select(t.threads.c.id)
    .where(tuple_(t.threads.c.owner, t.threads.c.id).in_(bindparam("keys", expanding=True)))
    .order_by(t.threads.c.owner, t.threads.c.id.desc())
    .with_for_update()
)
_DROP_CANCELS = delete(t.cancels).where(t.cancels.c.at < Now() - _CANCEL_KEPT)


async def delete_response(connection: AsyncConnection, owner: Owner, response_id: str) -> bool:
    """Removes a response, its log, and what only it needed."""
    thread = await connection.scalar(_THREAD_OF, {"by_owner": owner, "by_id": response_id})
    if thread is None:
        return False
    await connection.execute(LOCK_THREAD, {"by_owner": owner, "by_thread": thread})
    if not await _drop(connection, owner, response_id, thread):
        return False
    await trim(connection, owner, thread)
    return True


async def _drop(connection: AsyncConnection, owner: Owner, response_id: str, thread: int) -> bool:
    """Removes the row and the log; the thread is locked. False: somebody else was faster."""
    this = {"by_owner": owner, "by_id": response_id}
    span = (await connection.execute(_RANGE_OF, this)).first()
    if span is None:
        return False
    await connection.execute(_DROP_RESPONSE, this)
    await connection.execute(_DROP_EVENTS, this)
    await connection.execute(_DROP_APPROVALS, this)
    await connection.execute(_DROP_REMOVED, {"by_owner": owner, "by_thread": thread, "low": span[0], "high": span[1]})
    return True


async def trim(connection: AsyncConnection, owner: Owner, thread: int) -> None:
    """Cuts a thread back to what is still reached; a thread that goes altogether may free its parent's tail."""
    step: int | None = thread
    while step is not None:
        step = await _trim_one(connection, owner, step)


async def _trim_one(connection: AsyncConnection, owner: Owner, thread: int) -> int | None:
    """Returns the parent where the thread was the last to need it."""
    this = {"by_owner": owner, "by_thread": thread}
    row = (await connection.execute(LOCK_THREAD, this)).first()
    if row is None or row.conversation is not None:  # a conversation reaches all of its thread
        return None
    needed: int | None = await connection.scalar(_NEEDED, this)
    if needed is None:
        await connection.execute(_DROP_TAIL, {**this, "low": 0})
        await connection.execute(_DROP_THREAD, this)
        parent: int | None = row.parent
        return parent
    if needed < row.tip:
        await connection.execute(_DROP_TAIL, {**this, "low": needed})
        await connection.execute(_SEAL, {**this, "new_tip": needed})
    return None


async def sweep(connection: AsyncConnection, limit: int) -> int:
    """Removes expired responses, while no other worker does."""
    if not await connection.scalar(select(SweeperLock())):
        return 0
    await connection.execute(_DROP_CANCELS)
    expired = (await connection.execute(_EXPIRED, {"limit": limit})).all()
    if not expired:
        return 0
    threads = {(owner, thread) for owner, _, thread in expired}
    await connection.execute(_LOCK_THREADS, {"keys": sorted(threads)})
    gone = [await _drop(connection, owner, response_id, thread) for owner, response_id, thread in expired]
    for owner, thread in sorted(threads, key=lambda key: key[1], reverse=True):  # children before their parents
        await trim(connection, owner, thread)
    return sum(gone)
