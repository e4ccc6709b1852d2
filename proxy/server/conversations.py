"""The conversation endpoints: shapes and limits are OpenAI's, the state is the store's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import NoReturn

from msgspec.structs import replace

from proxy.errors import (
    ConversationNotFound,
    InvalidRequest,
    InvalidValue,
    MissingParameter,
    NotFound,
)
from proxy.protocol import jsonbytes
from proxy.protocol.items import NewId, parse_items, prefix
from proxy.protocol.jsonbytes import Fields
from proxy.protocol.listing import KEPT_IN_CONVERSATIONS, list_body, public_item
from proxy.protocol.lookup import MAX_ID_CHARS, Lookup, Reply, json_reply, storable_id
from proxy.protocol.metadata import checked_metadata
from proxy.protocol.records import Conversation, Item, Owner, Page
from proxy.server.query import include_query, list_query, unknown_cursor
from proxy.store import DuplicateItem, Store, UnknownCursor

MAX_ITEMS = 20
_REFERENCE = "item_reference"


class Conversations:
    """Answers for `/v1/conversations` and everything below."""

    def __init__(self, store: Store, new_id: NewId, now: Callable[[], float]) -> None:
        self._store = store
        self._new_id = new_id
        self._now = now

    async def create(self, lookup: Lookup) -> Reply:
        body = _body(lookup.body)
        metadata = checked_metadata(body["metadata"]) if jsonbytes.present(body.get("metadata")) else b"{}"
        conversation = Conversation(self._new_id("conv_"), float(int(self._now())), metadata)
        raw = body["items"] if jsonbytes.present(body.get("items")) else b"[]"
        items = await self._items(raw, lookup.owner, conversation.id)
        await self._store.create_conversation(lookup.owner, conversation, items)
        return _shown(conversation)

    async def retrieve(self, lookup: Lookup, conversation_id: str) -> Reply:
        return _shown(await self._conversation(lookup.owner, conversation_id))

    async def update(self, lookup: Lookup, conversation_id: str) -> Reply:
        metadata = _body(lookup.body).get("metadata")
        if metadata is None:
            raise MissingParameter("Missing required parameter: 'metadata'.", param="metadata")
        conversation = await self._store.update_conversation(lookup.owner, conversation_id, checked_metadata(metadata))
        if conversation is None:
            raise conversation_not_found(conversation_id)
        return _shown(conversation)

    async def delete(self, lookup: Lookup, conversation_id: str) -> Reply:
        if not await self._store.delete_conversation(lookup.owner, conversation_id):
            raise conversation_not_found(conversation_id)
        return json_reply(jsonbytes.encode({"id": conversation_id, "object": "conversation.deleted", "deleted": True}))

    async def add_items(self, lookup: Lookup, conversation_id: str) -> Reply:
        include = include_query(lookup.query)
        raw = _body(lookup.body).get("items")
        if raw is None:
            raise MissingParameter("Missing required parameter: 'items'.", param="items")
        items = await self._items(raw, lookup.owner, conversation_id)
        try:
            added = await self._store.add_conversation_items(lookup.owner, conversation_id, items)
        except DuplicateItem as error:
            raise InvalidValue(f"An item with id '{error}' is already in the conversation.", param="items") from None
        if not added:
            raise conversation_not_found(conversation_id)
        return json_reply(list_body(Page(tuple(items), False), include | KEPT_IN_CONVERSATIONS))

    async def list_items(self, lookup: Lookup, conversation_id: str) -> Reply:
        query = list_query(lookup.query)
        try:
            page = await self._store.conversation_items(lookup.owner, conversation_id, query.page)
        except UnknownCursor:
            raise unknown_cursor(query.page.after) from None
        if page is None:
            raise conversation_not_found(conversation_id)
        return json_reply(list_body(page, query.include | KEPT_IN_CONVERSATIONS))

    async def retrieve_item(self, lookup: Lookup, conversation_id: str, item_id: str) -> Reply:
        include = include_query(lookup.query)
        item = await self._store.conversation_item(lookup.owner, conversation_id, item_id)
        if item is None:
            await self._conversation(lookup.owner, conversation_id)
            raise item_not_found(conversation_id, item_id)
        return json_reply(public_item(item, include | KEPT_IN_CONVERSATIONS))

    async def delete_item(self, lookup: Lookup, conversation_id: str, item_id: str) -> Reply:
        conversation = await self._conversation(lookup.owner, conversation_id)
        if not await self._store.delete_conversation_item(lookup.owner, conversation_id, item_id):
            raise item_not_found(conversation_id, item_id)
        return _shown(conversation)

    async def _conversation(self, owner: Owner, conversation_id: str) -> Conversation:
        conversation = await self._store.conversation(owner, conversation_id)
        if conversation is None:
            raise conversation_not_found(conversation_id)
        return conversation

    async def _items(self, raw: bytes, owner: Owner, conversation_id: str) -> Sequence[Item]:
        """The items of a request, references replaced by what they refer to."""
        sent = _parsed(raw, self._new_id)
        references = [item.id for item in sent if item.type == _REFERENCE]
        known = await self._store.items(owner, references) if references else {}
        taken = {item.id for item in sent if item.type != _REFERENCE}
        items = []
        for item in sent:
            if item.type != _REFERENCE:
                items.append(item)
                continue
            found = known.get(item.id) or _missing(item.id)
            referred = await self._referred(found, owner, conversation_id, taken)
            taken.add(referred.id)
            items.append(referred)
        return items

    async def _referred(self, item: Item, owner: Owner, conversation_id: str, taken: Set[str]) -> Item:
        # An id names one item of a conversation: what is in it already comes again under a new one.
        if item.id in taken or await self._store.conversation_item(owner, conversation_id, item.id):
            return replace(item, id=self._new_id(prefix(item.type)))
        return item


def conversation_not_found(conversation_id: str) -> ConversationNotFound:
    return ConversationNotFound(f"Conversation with id '{conversation_id}' not found.")


def item_not_found(conversation_id: str, item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id}' not found in conversation '{conversation_id}'.")


def _shown(conversation: Conversation) -> Reply:
    return json_reply(
        jsonbytes.join_object(
            {
                "id": jsonbytes.encode(conversation.id),
                "object": b'"conversation"',
                "created_at": jsonbytes.encode(int(conversation.created_at)),
                "metadata": conversation.metadata,
            }
        )
    )


def _body(raw: bytes) -> Fields:
    """The members of a request's body; keys that we do not know are OpenAI's to add."""
    if not raw.strip():
        return {}
    try:
        raw.decode()  # slices are not looked into, and what is kept here must be JSON when it is shown again
        return jsonbytes.fields(raw)
    except (jsonbytes.NotJSON, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The request body is not a JSON object: {error}.") from error


def _parsed(raw: bytes, new_id: NewId) -> Sequence[Item]:
    items = parse_items(raw, new_id, "items")
    for index, item in enumerate(items):
        _check(item, f"items[{index}]")
    if len(items) > MAX_ITEMS:
        raise InvalidValue(f"Invalid 'items': expected at most {MAX_ITEMS} items, but got {len(items)}.", param="items")
    repeated = [
        id_ for id_, times in Counter(item.id for item in items if item.type != _REFERENCE).items() if times > 1
    ]
    if repeated:
        raise InvalidValue(f"Invalid 'items': the id '{repeated[0]}' was given more than once.", param="items")
    return items


def _check(item: Item, param: str) -> None:
    members = jsonbytes.fields(item.body)
    if item.type == "message" and not jsonbytes.text(members.get("role")):
        raise MissingParameter(f"Missing required parameter: '{param}.role'.", param=f"{param}.role")
    if item.type == _REFERENCE and not jsonbytes.text(members.get("id")):
        raise MissingParameter(f"Missing required parameter: '{param}.id'.", param=f"{param}.id")
    if not storable_id(item.id):
        raise InvalidValue(
            f"Invalid '{param}.id': expected 1 to {MAX_ID_CHARS} printable characters.", param=f"{param}.id"
        )
    if "\0" in item.type or "\0" in (item.call_id or ""):  # no database keeps one in its text
        raise InvalidValue(f"Invalid '{param}': a NUL character is not allowed here.", param=param)


def _missing(item_id: str) -> NoReturn:
    raise NotFound(f"Item with id '{item_id}' not found.", param="items")
