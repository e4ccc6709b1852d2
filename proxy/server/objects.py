"""The endpoints that the store answers: no filter, no backend.

A path that is none of ours answers None; then it is somebody else's. Every answer about a foreign object is that about
an absent one, byte for byte, because the store knows no difference and nothing else here could tell.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from proxy.errors import InvalidRequest, MethodNotAllowed, ResponseNotFound
from proxy.protocol import jsonbytes
from proxy.protocol.items import NewId
from proxy.protocol.listing import list_body, response_body
from proxy.protocol.lookup import Lookup, Reply, json_reply, storable_id
from proxy.protocol.replay import replayed
from proxy.server.conversations import Conversations, conversation_not_found, item_not_found
from proxy.server.query import RetrieveQuery, list_query, retrieve_query, unknown_cursor
from proxy.store import Store, UnknownCursor

Handler = Callable[..., Awaitable[Reply]]  # (lookup, *ids of the path)

_INLINE_BYTES = 64 * 1024
_EVENT_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))


@dataclass(frozen=True, slots=True)
class Route:
    """A path with the ids in it, who answers each method, and what is said of an id that nothing can have."""

    path: re.Pattern[str]
    handlers: Mapping[str, Handler]
    not_found: Callable[..., Exception]


class Objects:
    """Answers for stored responses and conversations."""

    def __init__(self, store: Store, new_id: NewId, now: Callable[[], float]) -> None:
        self._store = store
        conversations = Conversations(store, new_id, now)
        self._routes = (
            _route(
                # Two operations of the chain look like ids; a POST to them is not ours to refuse.
                r"/v1/responses/(?!(?:input_tokens|compact)$)([^/]+)",
                {"GET": self.retrieve, "DELETE": self.delete},
                response_not_found,
            ),
            _route(r"/v1/responses/([^/]+)/input_items", {"GET": self.input_items}, response_not_found),
            *_conversation_routes(conversations),
        )

    async def answer(self, lookup: Lookup) -> Reply | None:
        """The reply; None where the path is not one of these endpoints. Raises `ProxyError`."""
        path = lookup.path.rstrip("/")
        for route in self._routes:
            match = route.path.fullmatch(path)
            if match:
                return await _handled(route, lookup, [_decoded(part) for part in match.groups()])
        return None

    async def retrieve(self, lookup: Lookup, response_id: str) -> Reply:
        query = retrieve_query(lookup.query)
        if query.stream:
            return await self._replay(lookup, response_id, query)
        stored = await self._store.response(lookup.owner, response_id)
        if stored is None:
            raise response_not_found(response_id)
        return json_reply(response_body(stored))

    async def _replay(self, lookup: Lookup, response_id: str, query: RetrieveQuery) -> Reply:
        log = await self._store.events(lookup.owner, response_id)
        if log is None and await self._store.head(lookup.owner, response_id) is None:
            raise response_not_found(response_id)
        body = await _replayed(log, query.starting_after) if log else None
        if body is None:
            raise InvalidRequest(
                f"Response with id '{response_id}' cannot be streamed again: it was not streamed, or its stream was "
                "too long to be kept. Retrieve it without 'stream'.",
                param="stream",
            )
        return Reply(200, _EVENT_STREAM, body)

    async def input_items(self, lookup: Lookup, response_id: str) -> Reply:
        query = list_query(lookup.query)
        try:
            page = await self._store.input_items(lookup.owner, response_id, query.page)
        except UnknownCursor:
            raise unknown_cursor(query.page.after) from None
        if page is None:
            raise response_not_found(response_id)
        return json_reply(list_body(page, query.include))

    async def delete(self, lookup: Lookup, response_id: str) -> Reply:
        if not await self._store.delete_response(lookup.owner, response_id):
            raise response_not_found(response_id)
        return json_reply(jsonbytes.encode({"id": response_id, "object": "response.deleted", "deleted": True}))


async def _replayed(log: bytes, starting_after: int | None) -> bytes | None:
    # Reading a log of many megabytes takes a second, in which the event loop has other streams to serve.
    if len(log) <= _INLINE_BYTES:
        return replayed(log, starting_after)
    return await asyncio.to_thread(replayed, log, starting_after)


def _decoded(part: str) -> str:
    # Bytes that are no UTF-8 may have come as lone surrogates, which could not be sent back in a message.
    return unquote(part).encode("utf-8", "replace").decode()


def response_not_found(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(f"Response with id '{response_id}' not found.")


def _conversation_routes(conversations: Conversations) -> tuple[Route, ...]:
    one = "/v1/conversations/([^/]+)"
    return (
        _route("/v1/conversations", {"POST": conversations.create}, conversation_not_found),
        _route(
            one,
            {"GET": conversations.retrieve, "POST": conversations.update, "DELETE": conversations.delete},
            conversation_not_found,
        ),
        _route(
            one + "/items", {"GET": conversations.list_items, "POST": conversations.add_items}, conversation_not_found
        ),
        _route(
            one + "/items/([^/]+)",
            {"GET": conversations.retrieve_item, "DELETE": conversations.delete_item},
            item_not_found,
        ),
    )


def _route(path: str, handlers: Mapping[str, Handler], not_found: Callable[..., Exception]) -> Route:
    return Route(re.compile(path), handlers, not_found)


async def _handled(route: Route, lookup: Lookup, ids: list[str]) -> Reply:
    handler = route.handlers.get(lookup.method)
    if handler is None:
        allowed = ", ".join(route.handlers)
        raise MethodNotAllowed(
            f"Method {lookup.method} is not allowed here. Allowed: {allowed}.",
            headers=((b"allow", allowed.encode()),),
        )
    if not all(map(storable_id, ids)):
        raise route.not_found(*ids)
    return await handler(lookup, *ids)
