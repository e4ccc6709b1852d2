"""A history in one round trip of Postgres: a single statement sees a single snapshot, so it needs no transaction.

The join is lateral, and fenced off by its OFFSET, so that each thread of the line is always looked up by its key: the
cost of a history is that of its own rows, whatever the planner thinks of the tables.
"""

from __future__ import annotations

from proxy.store import Anchor, History, Item, Owner
from proxy.store._direct import Direct

_RESPONSE = """
SELECT t.id AS thread, r.end_pos AS high, t.fork, t.parent, t.session, t.session_token, r.status
FROM responses AS r JOIN threads AS t ON t.owner = r.owner AND t.id = r.thread
WHERE r.owner = $1::text AND r.id = $2::text"""
_CONVERSATION = """
SELECT t.id AS thread, t.tip AS high, t.fork, t.parent, t.session, t.session_token, 'completed' AS status
FROM conversations AS c JOIN threads AS t ON t.owner = c.owner AND t.id = c.thread
WHERE c.owner = $1::text AND c.id = $2::text"""

# The first row is the place itself, its session, status and token where an item has its id, type and call.
_HISTORY = """
WITH RECURSIVE place AS ({place}),
line AS (
    SELECT thread, high, fork, parent FROM place
    UNION ALL
    SELECT t.id, line.fork, t.fork, t.parent FROM line JOIN threads AS t ON t.owner = $1::text AND t.id = line.parent
)
SELECT session, status, NULL::bytea, session_token, NULL::bytea, thread, high, -1 AS pos FROM place
UNION ALL
SELECT i.id, i.type, i.body, i.call_id, i.upstream, NULL, NULL, i.pos
FROM line CROSS JOIN LATERAL (
    SELECT id, type, body, call_id, upstream, pos FROM items
    WHERE owner = $1::text AND thread = line.thread AND pos < line.high AND NOT removed OFFSET 0
) AS i
ORDER BY pos"""

OF_RESPONSE = _HISTORY.format(place=_RESPONSE)
OF_CONVERSATION = _HISTORY.format(place=_CONVERSATION)


async def history(direct: Direct, statement: str, owner: Owner, name: str) -> History | None:
    """The history of a response or of a conversation, as the statement says."""
    rows = await direct.read(statement, owner, name)
    if not rows:
        return None
    session, status, _, token, _, thread, high, _ = rows[0]
    return History(Anchor(thread, high), tuple(Item(*row[:5]) for row in rows[1:]), session, token, status)
