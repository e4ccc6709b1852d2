"""Approvals that wait for a person: each is used once, all of a turn or none."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, bindparam, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store import Approval, ApprovalRefused, Owner
from proxy.store import _tables as t
from proxy.store._save import batches

_KEYS = tuple_(t.approvals.c.owner, t.approvals.c.id).in_(bindparam("keys", expanding=True))
_LOCK = (
    select(t.approvals.c.id, t.approvals.c.target, t.approvals.c.used)
    .where(_KEYS)
    .order_by(t.approvals.c.id)
    .with_for_update()
)
_USE = update(t.approvals).where(and_(_KEYS, t.approvals.c.used.is_(False))).values(used=True)


async def use(connection: AsyncConnection, owner: Owner, approvals: Sequence[Approval]) -> None:
    """Marks them used. Raises `ApprovalRefused` for the first that cannot be; then none is."""
    # In one order, whatever the batches: two that want the same must not wait for each other.
    keys = sorted({(owner, approval.id) for approval in approvals})
    held: dict[str, tuple[str, bool]] = {}
    for batch in batches(keys):
        held |= {row[0]: (row[1], row[2]) for row in await connection.execute(_LOCK, {"keys": batch})}
    for approval in approvals:
        target, used = held.get(approval.id, (None, False))
        if target is None:
            raise ApprovalRefused(approval.id, f"approval '{approval.id}' was not found")
        if used:
            raise ApprovalRefused(approval.id, f"approval '{approval.id}' has already been used")
        if approval.target and target != approval.target:  # a refusal names no target
            raise ApprovalRefused(approval.id, f"approval '{approval.id}' was asked for another target")
    for batch in batches(keys):
        await connection.execute(_USE, {"keys": batch})
