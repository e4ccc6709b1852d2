"""Stops a response in flight, whichever worker or replica runs it."""

from __future__ import annotations

import asyncio
import logging

from proxy import errors
from proxy.protocol.listing import response_body
from proxy.protocol.lookup import storable_id
from proxy.protocol.records import Owner, StoredResponse
from proxy.services import Services

log = logging.getLogger("rejoinder.cancel")

LOOK_SECONDS = 0.5  # between two looks for cancel requests from other workers
_PATIENCE = 3.0  # seconds for another worker to answer one


class Cancel:
    """`POST /v1/responses/{id}/cancel`."""

    def __init__(self, services: Services, *, shared: bool) -> None:
        self._services = services
        self._shared = shared  # other processes serve the same store

    async def __call__(self, owner: Owner, response_id: str) -> bytes | None:
        """The cancelled response; None when the backend should be asked. Raises `Cancelled` when it is over."""
        if not storable_id(response_id):
            return None
        stored = await self._services.store.response(owner, response_id)
        if stored is not None:
            return _over(stored)
        run = self._services.runs.find(owner, response_id)
        if run is not None:
            run.cancel()
            await run.over.wait()
        elif self._shared:
            await self._ask_others(owner, response_id)
        stored = await self._services.store.response(owner, response_id)
        return response_body(stored) if stored is not None else None

    async def _ask_others(self, owner: Owner, response_id: str) -> None:
        await self._services.store.request_cancel(owner, response_id)
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE
        while loop.time() < end:
            if await self._services.store.head(owner, response_id) is not None:
                return
            await asyncio.sleep(LOOK_SECONDS / 4)

    async def watch(self) -> None:
        """Carries out what other workers were asked to cancel, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not len(self._services.runs):
                continue
            try:
                wanted = await self._services.store.cancel_requests(_PATIENCE * 2)
            except errors.StoreError as error:
                log.warning("cancel requests could not be read: %s", error.message)
                continue
            for owner, response_id in wanted:
                run = self._services.runs.find(owner, response_id)
                if run is not None:
                    run.cancel()


def _over(stored: StoredResponse) -> bytes:
    if stored.head.status == "cancelled":
        return response_body(stored)
    raise errors.Cancelled(f"Cannot cancel a response with status '{stored.head.status}'.")
