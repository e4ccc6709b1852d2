"""One turn at a time in a conversation, over all workers and replicas.

Within a process, turns of one conversation queue in order. Between processes, the database's lease decides; it is
renewed
while the turn runs and runs out by itself if its holder dies.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from proxy import errors
from proxy.store import Lease, Owner, Store

log = logging.getLogger("rejoinder.leases")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks at a lease that another process holds


class _Line:
    """Those who hold or await one conversation in this process."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Leases:
    """Hands out leases; `start` runs a coroutine that outlives its caller."""

    def __init__(
        self,
        store: Store,
        start: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        *,
        ttl: float,
        wait: float,
        queue: int,
    ) -> None:
        self._store = store
        self._start = start
        self._ttl = ttl
        self._wait = wait
        self._queue = queue
        self._lines: dict[tuple[Owner, str], _Line] = {}

    @asynccontextmanager
    async def hold(self, owner: Owner, conversation: str) -> AsyncIterator[Lease]:
        """The conversation's lease for the duration; given back at the end, a lost or used one is left alone.

        Raises `ConversationNotFound`, and `ConversationLocked` when the queue is full or the wait too long.
        """
        line = self._lines.setdefault((owner, conversation), _Line())
        if line.count > self._queue:
            raise _locked(f"More than {self._queue} requests wait for this conversation.")
        line.count += 1
        lease = Lease(conversation, secrets.token_hex(16))
        try:
            async with asyncio.timeout(self._wait) as patience:
                await self._take(line, owner, lease)
            renewal = asyncio.get_running_loop().create_task(self._renew(owner, lease))
            try:
                yield lease
            finally:
                renewal.cancel()
                line.lock.release()
                self._start(self._give_back(owner, lease))
        except TimeoutError:
            if not patience.expired():
                raise
            raise _locked(f"The conversation was busy for {self._wait:g} seconds. Retry later.") from None
        finally:
            line.count -= 1
            if not line.count:
                self._lines.pop((owner, conversation), None)

    async def _take(self, line: _Line, owner: Owner, lease: Lease) -> None:
        await line.lock.acquire()
        try:
            await self._acquire(owner, lease)
        except BaseException:
            line.lock.release()
            # The answer to an interrupted request for the lease may have been yes.
            self._start(self._give_back(owner, lease))
            raise

    async def _acquire(self, owner: Owner, lease: Lease) -> None:
        pause = _FIRST_PAUSE
        while not await self._store.acquire(owner, lease, self._ttl):
            if await self._store.conversation(owner, lease.conversation) is None:
                raise errors.ConversationNotFound(
                    f"Conversation with id '{lease.conversation}' not found.", param="conversation"
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _renew(self, owner: Owner, lease: Lease) -> None:
        while True:
            await asyncio.sleep(self._ttl / 3)
            try:
                if not await self._store.renew(owner, lease, self._ttl):
                    return  # the save will find out, and refuse
            except errors.StoreError as error:
                log.warning("the lease of conversation %s could not be renewed: %s", lease.conversation, error.message)

    async def _give_back(self, owner: Owner, lease: Lease) -> None:
        try:
            await self._store.release(owner, lease)
        except errors.StoreError as error:
            log.warning("the lease of conversation %s will run out by itself: %s", lease.conversation, error.message)


def _locked(message: str) -> errors.ConversationLocked:
    return errors.ConversationLocked(message, headers=((b"Retry-After", b"1"),))
