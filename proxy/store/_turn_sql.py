"""One turn as one statement of Postgres, which writes its rows in whatever thread they belong to.

Where the turn continues another one, the statement locks that one's thread and decides by the locked row: it extends
the thread, or forks from it, or, where the thread lost what the turn continues, fails with a division by zero. READ
COMMITTED is enough: a row locked by a statement is the newest one, whatever the statement's snapshot says, and only
what `held` says of it is used.

The values of a statement come in the order of `values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from proxy.store import Item, TurnRecord
from proxy.store._plan import Entry, new_thread_id, unique_ids

_MOST_SLOTS = 16  # a turn of more items brings them as arrays, which cost more but have no fixed length

_COMMON = 12  # values that every statement takes
_ITEM_TYPES = ("text", "text", "text", "bytea", "bytea")

_RESPOND = """
INSERT INTO responses (
    owner, id, thread, input_start, output_start, end_pos, status, created_at, expires_at, envelope
) SELECT $1::text, $8::text, place.thread, $3::bigint, $4::bigint, $5::bigint,
    $9::text, $10::float8, $11::float8, $12::bytea FROM place"""
_KEEP_EVENTS = """
INSERT INTO response_events (owner, response_id, body) SELECT $1::text, $8::text, ${body}::bytea FROM place"""
_ADD_ITEMS = """
INSERT INTO items (owner, thread, pos, id, type, call_id, body, upstream)
SELECT $1::text, place.thread, $3::bigint + v.n, v.id, v.type, v.call_id, v.body, v.upstream
FROM place, {source} WHERE v.id IS NOT NULL"""

_ARRAYS = """
(
    SELECT u.*, u.nth - 1 AS n
    FROM unnest({arrays}) WITH ORDINALITY AS u (id, type, call_id, body, upstream, nth)
) AS v"""
_TURN = """WITH {parts}
SELECT 1 / count(*) FROM place"""

_NEW = """
place AS (SELECT $2::bigint AS thread),
begun AS (
    INSERT INTO threads (owner, id, fork, tip, session, session_token)
    VALUES ($1::text, $2::bigint, $3::bigint, $5::bigint, $6::text, $7::text)
)"""
# $13: the thread that is continued, $14: whether the turn may extend it, $15: the token that a fork inherits.
_CONTINUED = """
held AS (
    SELECT tip = $3::bigint AND $14::boolean AND NOT sealed AND conversation IS NULL AS extends
    FROM threads WHERE owner = $1::text AND id = $13::bigint AND tip >= $3::bigint FOR UPDATE
),
place AS (SELECT CASE WHEN extends THEN $13::bigint ELSE $2::bigint END AS thread FROM held),
moved AS (
    UPDATE threads SET tip = $5::bigint, session_token = coalesce($7::text, session_token)
    WHERE owner = $1::text AND id = $13::bigint AND (SELECT extends FROM held)
),
begun AS (
    INSERT INTO threads (owner, id, parent, fork, tip, session, session_token)
    SELECT $1::text, $2::bigint, $13::bigint, $3::bigint, $5::bigint, $6::text, coalesce($7::text, $15::text)
    FROM held WHERE NOT extends
)"""


class Shape(NamedTuple):
    """What distinguishes the statements of turns."""

    continued: bool
    events: bool
    slots: int  # 0: the items come as arrays


def shape(entry: Entry) -> Shape | None:
    """The shape of a turn's statement; None where it takes more than one."""
    record = entry.record
    if record.response is None or entry.appends is not None or record.approvals:
        return None
    count = len(record.input) + len(record.output)
    slots = 0 if count > _MOST_SLOTS else max(2, 1 << (count - 1).bit_length())
    return Shape(record.history is not None, entry.events is not None, slots)


@lru_cache(maxsize=64)
def statement(form: Shape) -> str:
    """The statement of the shape."""
    place = _CONTINUED if form.continued else _NEW
    first = _COMMON + 1 + 3 * form.continued
    parts = [place, f"response AS ({_RESPOND})"]
    if form.events:
        parts.append(f"kept AS ({_KEEP_EVENTS.format(body=first)})")
    source = _source(form.slots, first + form.events)
    parts.append(f"lines AS ({_ADD_ITEMS.format(source=source)})")
    return _TURN.format(parts=", ".join(parts))


def _source(slots: int, first: int) -> str:
    """The items as a table `v`, whose `n` counts from 0."""
    width = len(_ITEM_TYPES)
    if not slots:
        arrays = ", ".join(f"${first + column}::{kind}[]" for column, kind in enumerate(_ITEM_TYPES))
        return _ARRAYS.format(arrays=arrays)
    rows = []
    for slot in range(slots):
        places = enumerate(_ITEM_TYPES, first + slot * width)
        rows.append(f"({slot}, {', '.join(f'${number}::{kind}' for number, kind in places)})")
    return f"(VALUES {', '.join(rows)}) AS v (n, id, type, call_id, body, upstream)"


def values(entry: Entry, form: Shape) -> list[Any]:
    """The values of a turn's statement."""
    record = entry.record
    new, history = record.response, record.history
    if new is None:
        raise AssertionError("a turn without a response has no statement")
    start = history.anchor.position if history else 0
    output_start = start + len(record.input)
    end = output_start + len(record.output)
    session = history.session if history else record.session
    place = (record.owner, new_thread_id(), start, output_start, end, session, record.session_token)
    row = [*place, new.id, new.status, new.created_at, new.expires_at, new.envelope]
    if history is not None:
        row += (history.anchor.thread, record.completed, history.session_token)
    if entry.events is not None:
        row.append(entry.events)
    row += _items(record, form.slots)
    return row


def _items(record: TurnRecord, slots: int) -> list[Any]:
    items = record.input + record.output
    ids = unique_ids(items, set())
    if not slots:
        return _columns(ids, items)
    flat: list[Any] = []
    for item, item_id in zip(items, ids, strict=True):
        flat += (item_id, item.type, item.call_id, item.body, item.upstream)
    flat += [None] * (slots * len(_ITEM_TYPES) - len(flat))
    return flat


def _columns(ids: Sequence[str], items: Sequence[Item]) -> list[Any]:
    return [
        ids,
        [item.type for item in items],
        [item.call_id for item in items],
        [item.body for item in items],
        [item.upstream for item in items],
    ]
