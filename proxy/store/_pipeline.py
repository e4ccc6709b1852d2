"""The writing of groups in Postgres: one round trip for all turns of one shape.

The turns of a group are so many runs of one prepared statement, sent together and committed together. What that
statement cannot write, the `Writer` does under its locks: a turn in a conversation, one with approvals, and one whose
history was deleted while it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from proxy.store._direct import Direct, Gone
from proxy.store._group import Outcome
from proxy.store._plan import Entry
from proxy.store._save import Writer, judged
from proxy.store._turn_sql import Shape, shape, statement, values


class Pipeline:
    """Saves groups of turns; those of one group have one shape."""

    def __init__(self, direct: Direct, writer: Writer) -> None:
        self._direct = direct
        self._writer = writer

    async def save(self, group: Sequence[Entry]) -> Sequence[Outcome]:
        """Writes the group in one transaction; where a row is refused, each turn in its own."""
        form = shape(group[0])
        if form is None:
            return await self._writer.save(group)
        return await judged(partial(self._write, form), group)

    async def _write(self, form: Shape, group: Sequence[Entry]) -> Sequence[Outcome]:
        # Threads are locked in the order of `Writer` and `_delete`: children, which are younger, before their parents.
        ordered = sorted(group, key=_lock_order) if form.continued else group
        try:
            await self._direct.write(statement(form), [values(entry, form) for entry in ordered])
        except Gone:
            if len(group) > 1:
                raise
            return await self._writer.save(group)
        return [None] * len(group)


def _lock_order(entry: Entry) -> tuple[str, int]:
    anchor = entry.anchor
    return (anchor[0], -anchor[1]) if anchor else ("", 0)
