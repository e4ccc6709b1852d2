"""A script's way to ask the endpoints of the store: an answer is its JSON, a refusal the parts of its error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ProxyError
from proxy.protocol.lookup import Lookup, Reply
from proxy.protocol.records import Item, NewResponse, Owner, TurnRecord
from proxy.server.objects import Objects
from proxy.store import Store, sqlite

ANN = Owner("ann")
BOB = Owner("bob")
NOW = 1700000000.9


class Asking:
    """The endpoints over a store, seen by one owner."""

    def __init__(self, store: Store, objects: Objects, owner: Owner = ANN) -> None:
        self.store = store
        self.owner = owner
        self._objects = objects

    def by(self, owner: Owner) -> Asking:
        return Asking(self.store, self._objects, owner)

    async def raw(self, request: str, body: bytes = b"") -> Reply | None:
        """`request` reads as a request line does: `GET /v1/responses/resp_1?stream=true`."""
        method, _, target = request.partition(" ")
        path, _, query = target.partition("?")
        return await self._objects.answer(Lookup(method, path, query, body, self.owner))

    async def ok(self, request: str, body: object = None) -> Any:
        """The JSON of an answer that must be 200."""
        reply = await self.raw(request, b"" if body is None else json.dumps(body).encode())
        assert reply is not None
        assert (reply.status, reply.headers) == (200, ((b"content-type", b"application/json"),))
        return json.loads(reply.body)

    async def refused(self, request: str, body: object = None) -> tuple[int, str | None, str | None, str]:
        """Status, code, param and message of an answer that must be an error; a body of bytes is sent as it is."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        with pytest.raises(ProxyError) as refusal:
            await self.raw(request, sent)
        error = refusal.value
        assert error.type == "invalid_request_error"
        return error.status, error.code, error.param, error.message

    async def save(self, response_id: str, record: Stored | None = None) -> None:
        """Stores a turn as the chain would have."""
        await self.store.save((record or Stored()).turn(response_id, self.owner))


class Stored:
    """A turn to be stored."""

    def __init__(
        self,
        input: tuple[Item, ...] = (),
        output: tuple[Item, ...] = (),
        envelope: bytes | None = None,
        events: bytes | None = None,
    ) -> None:
        self._input, self._output, self._envelope, self._events = input, output, envelope, events

    def turn(self, response_id: str, owner: Owner) -> TurnRecord:
        envelope = self._envelope or b'{"id":"' + response_id.encode() + b'","object":"response","output":[]}'
        response = NewResponse(response_id, "completed", NOW, None, envelope, self._events)
        return TurnRecord(owner, True, self._input, self._output, response, None, None, session=response_id)


@asynccontextmanager
async def asking(directory: Path) -> AsyncIterator[Asking]:
    store = sqlite.create(f"sqlite:///{directory}/state.db")
    await store.open()
    numbers = count(1)
    try:
        yield Asking(store, Objects(store, lambda prefix: f"{prefix}{next(numbers):04x}", lambda: NOW))
    finally:
        await store.close()
