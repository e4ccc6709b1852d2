"""The first schema: threads of items, the responses that own ranges of them, conversations."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TEXT

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    threads()
    items()
    responses()
    conversations()


def threads() -> None:
    op.create_table(
        "threads",
        sa.Column("owner", KEY, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.BigInteger()),
        sa.Column("fork", sa.BigInteger(), nullable=False),
        sa.Column("tip", sa.BigInteger(), nullable=False),
        sa.Column("sealed", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("conversation", KEY),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("session_token", sa.Text()),
        sa.PrimaryKeyConstraint("owner", "id"),
    )
    partial_index("threads_by_parent", "threads", "parent")


def items() -> None:
    op.create_table(
        "items",
        sa.Column("owner", KEY, nullable=False),
        sa.Column("thread", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("pos", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("call_id", KEY),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("owner", "thread", "pos"),
    )
    op.create_index("items_by_id", "items", ["owner", "id"])
    partial_index("items_by_call", "items", "call_id")


def responses() -> None:
    op.create_table(
        "responses",
        sa.Column("owner", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("thread", sa.BigInteger(), nullable=False),
        sa.Column("input_start", sa.BigInteger(), nullable=False),
        sa.Column("output_start", sa.BigInteger(), nullable=False),
        sa.Column("end_pos", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "id"),
    )
    op.create_index("responses_by_thread", "responses", ["owner", "thread"])
    op.create_index("responses_by_expiry", "responses", ["expires_at"])
    op.create_table(
        "response_events",
        sa.Column("owner", KEY, nullable=False),
        sa.Column("response_id", KEY, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "response_id"),
    )
    op.create_table(
        "cancels",
        sa.Column("owner", KEY, nullable=False),
        sa.Column("response_id", KEY, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "response_id"),
    )
    op.create_index("cancels_by_time", "cancels", ["at"])


def conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("owner", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("metadata", sa.LargeBinary(), nullable=False),
        sa.Column("thread", sa.BigInteger(), nullable=False),
        sa.Column("lease_token", sa.Text()),
        sa.Column("lease_expires", sa.Double()),
        sa.PrimaryKeyConstraint("owner", "id"),
    )


def partial_index(name: str, table: str, column: str) -> None:
    where = sa.column(column).is_not(None)
    op.create_index(name, table, ["owner", column], postgresql_where=where, sqlite_where=where)
