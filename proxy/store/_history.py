"""A history in one round trip of Postgres: a single statement sees a single snapshot, so it needs no transaction.

The joins are lateral, and fenced off by their OFFSET, so that threads and items are always looked up by key: the cost
of a history is that of its own rows, whatever the planner thinks of the tables. The rows come nearly in order, and are
sorted here: the server would copy every body for that.
"""

from __future__ import annotations

from operator import itemgetter

from proxy.store import Anchor, History, Item, Owner
from proxy.store._direct import Direct

_RESPONSE = """
SELECT t.id AS thread, r.end_pos AS high, t.fork, t.parent, t.session, t.session_token, r.status
FROM responses AS r CROSS JOIN LATERAL (
    SELECT * FROM threads WHERE owner = $1::text AND id = r.thread OFFSET 0
) AS t WHERE r.owner = $1::text AND r.id = $2::text"""
_CONVERSATION = """
SELECT t.id AS thread, t.tip AS high, t.fork, t.parent, t.session, t.session_token, 'completed' AS status
FROM conversations AS c CROSS JOIN LATERAL (
    SELECT * FROM threads WHERE owner = $1::text AND id = c.thread OFFSET 0
) AS t WHERE c.owner = $1::text AND c.id = $2::text"""

# The row at -1 is the place itself, its session, status and token where an item has its id, type and call.
_HISTORY = """
WITH RECURSIVE place AS ({place}),
line AS (
    SELECT thread, high, fork, parent FROM place
    UNION ALL
    SELECT t.id, line.fork, t.fork, t.parent FROM line CROSS JOIN LATERAL (
        SELECT id, fork, parent FROM threads WHERE owner = $1::text AND id = line.parent OFFSET 0
    ) AS t
)
SELECT session, status, NULL::bytea, session_token, NULL::bytea, thread, high, -1::bigint FROM place
UNION ALL
SELECT i.id, i.type, i.body, i.call_id, i.upstream, NULL, NULL, i.pos
FROM line CROSS JOIN LATERAL (
    SELECT id, type, body, call_id, upstream, pos FROM items
    WHERE owner = $1::text AND thread = line.thread AND pos < line.high AND NOT removed OFFSET 0
) AS i"""
_POSITION = itemgetter(7)

OF_RESPONSE = _HISTORY.format(place=_RESPONSE)
OF_CONVERSATION = _HISTORY.format(place=_CONVERSATION)


async def history(direct: Direct, statement: str, owner: Owner, name: str) -> History | None:
    """The history of a response or of a conversation, as the statement says."""
    rows = await direct.read(statement, owner, name)
    if not rows:
        return None
    place, *items = sorted(rows, key=_POSITION)
    session, status, _, token, _, thread, high, _ = place
    return History(Anchor(thread, high), tuple([Item(*row[:5]) for row in items]), session, token, status)
