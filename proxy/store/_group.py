"""Group commit: what arrives while one transaction commits goes into the next one together.

A lone save waits for nobody. Entries of different kinds never share a group, and their groups need not wait for each
other. The transaction runs in a task of its own, so a caller that goes away takes nothing from
the others of its group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from proxy.errors import StoreError, StoreUnavailable

T = TypeVar("T")
Outcome = StoreError | None
Queue = deque[tuple[T, asyncio.Future[None]]]
WriteGroup = Callable[[Sequence[T]], Awaitable[Sequence[Outcome]]]


def _alike(_entry: object) -> Hashable:
    return None


class Grouper(Generic[T]):
    """Collects entries into groups, and writes one group of a kind at a time, `lanes` groups at most."""

    def __init__(
        self, write: WriteGroup[T], limit: int, *, kind: Callable[[T], Hashable] = _alike, lanes: int = 1
    ) -> None:
        self._write = write
        self._limit = limit
        self._kind = kind
        self._lanes = asyncio.Semaphore(lanes)
        self._queues: dict[Hashable, Queue[T]] = {}
        self._drains: set[asyncio.Task[None]] = set()
        self._closed = False

    async def add(self, entry: T) -> None:
        """Returns when the entry's group has committed; raises what befell the entry."""
        if self._closed:
            raise StoreUnavailable("The state store is closed.")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kind = self._kind(entry)
        queue = self._queues.get(kind)
        if queue is None:
            queue = self._begin(kind)
        queue.append((entry, written))
        await written

    async def close(self) -> None:
        """Takes no more, and returns when everything taken is written."""
        self._closed = True
        while self._drains:
            await asyncio.wait(self._drains)

    def _begin(self, kind: Hashable) -> Queue[T]:
        queue = self._queues[kind] = deque()
        drain = asyncio.get_running_loop().create_task(self._run(kind, queue), name="store-group-commit")
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)
        return queue

    async def _run(self, kind: Hashable, queue: Queue[T]) -> None:
        try:
            while queue:
                async with self._lanes:
                    await self._settle(self._next_group(queue))
        finally:
            del self._queues[kind]
            _abandon(queue)

    def _next_group(self, queue: Queue[T]) -> list[tuple[T, asyncio.Future[None]]]:
        group: list[tuple[T, asyncio.Future[None]]] = []
        while queue and len(group) < self._limit:
            entry, written = queue.popleft()
            if not written.done():  # done: the caller went away before anything was written for it
                group.append((entry, written))
        return group

    async def _settle(self, group: Sequence[tuple[T, asyncio.Future[None]]]) -> None:
        if not group:
            return
        outcomes: Sequence[Outcome] = ()
        try:
            outcomes = await self._write([entry for entry, _ in group])
        finally:
            # An unexpected error still answers everybody of the group before it shows itself in the task.
            missing = StoreError()
            for index, (_, written) in enumerate(group):
                _answer(written, outcomes[index] if outcomes else missing)


def _abandon(queue: Queue[T]) -> None:
    for _, written in queue:
        _answer(written, StoreUnavailable("The state store stopped."))


def _answer(written: asyncio.Future[None], outcome: Outcome) -> None:
    if written.done():
        return
    if outcome is None:
        written.set_result(None)
    else:
        written.set_exception(outcome)
