"""Group commit: what arrives while one transaction commits goes into the next one together.

A lone save waits for nobody. The transaction runs in a task of its own, so a caller that goes away takes nothing from
the others of its group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from proxy.errors import StoreError, StoreUnavailable

T = TypeVar("T")
Outcome = StoreError | None
WriteGroup = Callable[[Sequence[T]], Awaitable[Sequence[Outcome]]]


class Grouper(Generic[T]):
    """Collects entries into groups, and writes one group at a time."""

    def __init__(self, write: WriteGroup[T], limit: int) -> None:
        self._write = write
        self._limit = limit
        self._waiting: deque[tuple[T, asyncio.Future[None]]] = deque()
        self._drain: asyncio.Task[None] | None = None
        self._closed = False

    async def add(self, entry: T) -> None:
        """Returns when the entry's group has committed; raises what befell the entry."""
        if self._closed:
            raise StoreUnavailable("The state store is closed.")
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._waiting.append((entry, written))
        if self._drain is None:
            self._drain = loop.create_task(self._run(), name="store-group-commit")
        await written

    async def close(self) -> None:
        """Takes no more, and returns when everything taken is written."""
        self._closed = True
        while self._drain is not None:
            await asyncio.wait((self._drain,))

    async def _run(self) -> None:
        try:
            while group := self._next_group():
                await self._settle(group)
        finally:
            self._drain = None
            self._abandon()

    def _next_group(self) -> list[tuple[T, asyncio.Future[None]]]:
        group: list[tuple[T, asyncio.Future[None]]] = []
        while self._waiting and len(group) < self._limit:
            entry, written = self._waiting.popleft()
            if not written.done():  # done: the caller went away before anything was written for it
                group.append((entry, written))
        return group

    async def _settle(self, group: Sequence[tuple[T, asyncio.Future[None]]]) -> None:
        outcomes: Sequence[Outcome] = ()
        try:
            outcomes = await self._write([entry for entry, _ in group])
        finally:
            # An unexpected error still answers everybody of the group before it shows itself in the task.
            missing = StoreError()
            for index, (_, written) in enumerate(group):
                _answer(written, outcomes[index] if outcomes else missing)

    def _abandon(self) -> None:
        for _, written in self._waiting:
            _answer(written, StoreUnavailable("The state store stopped."))
        self._waiting.clear()


def _answer(written: asyncio.Future[None], outcome: Outcome) -> None:
    if written.done():
        return
    if outcome is None:
        written.set_result(None)
    else:
        written.set_exception(outcome)
