"""The tables, as Alembic compares them with its migrations.

No foreign keys: every delete goes through `_delete`, which knows who still needs a row; a constraint would check each
insert of the hot path again.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, LargeBinary, MetaData, Table, Text, false
from sqlalchemy.dialects.postgresql import TEXT

metadata = MetaData()

# Ids are compared as bytes: the server's locale costs time in every index and means nothing for them.
Key = Text().with_variant(TEXT(collation="C"), "postgresql")

# Every column that holds what a client or a model said has this type. The hot paths of Postgres (`_turn_sql`,
# `_history`) bypass SQLAlchemy, so encryption at rest would begin where such a column is filled and read, not in a
# TypeDecorator.
Payload = LargeBinary

threads = Table(
    "threads",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("parent", BigInteger),
    Column("fork", BigInteger, nullable=False),  # the first position of this thread; below it the parent goes on
    Column("tip", BigInteger, nullable=False),  # one past the last position
    # A thread that lost its tail is never appended to again: a turn still running may hold an anchor in the lost tail,
    # and must not take somebody else's items at the same positions for its history.
    Column("sealed", Boolean, nullable=False, server_default=false()),
    Column("conversation", Key),
    Column("session", Text, nullable=False),
    Column("session_token", Text),
)
Index(
    "threads_by_parent",
    threads.c.owner,
    threads.c.parent,
    postgresql_where=threads.c.parent.is_not(None),
    sqlite_where=threads.c.parent.is_not(None),
)

items = Table(
    "items",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("thread", BigInteger, primary_key=True, autoincrement=False),
    Column("pos", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Key, nullable=False),
    Column("type", Text, nullable=False),
    Column("call_id", Key),
    Column("body", Payload, nullable=False),
    Column("removed", Boolean, nullable=False, server_default=false()),  # out of its conversation, still in a response
    Column("upstream", Payload),  # what the backend is sent in its place
)
Index("items_by_id", items.c.owner, items.c.id)
Index(
    "items_by_call",
    items.c.owner,
    items.c.call_id,
    postgresql_where=items.c.call_id.is_not(None),
    sqlite_where=items.c.call_id.is_not(None),
)

responses = Table(
    "responses",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("id", Key, primary_key=True),
    Column("thread", BigInteger, nullable=False),
    Column("input_start", BigInteger, nullable=False),
    Column("output_start", BigInteger, nullable=False),
    Column("end_pos", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("envelope", Payload, nullable=False),
)
Index("responses_by_thread", responses.c.owner, responses.c.thread)
Index("responses_by_expiry", responses.c.expires_at)

response_events = Table(
    "response_events",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("response_id", Key, primary_key=True),
    Column("body", Payload, nullable=False),  # compressed by zstd
)

approvals = Table(
    "approvals",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("id", Key, primary_key=True),
    Column("response_id", Key, nullable=False),
    Column("target", Text, nullable=False),
    Column("used", Boolean, nullable=False, server_default=false()),
)
Index("approvals_by_response", approvals.c.owner, approvals.c.response_id)

conversations = Table(
    "conversations",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("id", Key, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("metadata", Payload, nullable=False),
    Column("thread", BigInteger, nullable=False),
    Column("lease_token", Text),
    Column("lease_expires", Double),
)

cancels = Table(
    "cancels",
    metadata,
    Column("owner", Key, primary_key=True),
    Column("response_id", Key, primary_key=True),
    Column("at", Double, nullable=False),
)
Index("cancels_by_time", cancels.c.at)
