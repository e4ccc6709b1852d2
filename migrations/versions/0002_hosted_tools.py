"""Hosted tools: what the backend is sent in an item's place, and approvals that wait for a person."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TEXT

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("items", sa.Column("upstream", sa.LargeBinary()))
    op.create_table(
        "approvals",
        sa.Column("owner", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("response_id", KEY, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("used", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("owner", "id"),
    )
    op.create_index("approvals_by_response", "approvals", ["owner", "response_id"])
