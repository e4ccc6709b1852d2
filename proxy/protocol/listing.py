"""Stored items as the public sees them: the response object, and the pages of a list.

Nothing here re-encodes what it need not change. A response's envelope keeps every byte around its output; an item that
already has OpenAI's public shape keeps every byte of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.protocol import jsonbytes
from proxy.protocol.jsonbytes import NULL, Fields
from proxy.protocol.records import Item, Page, StoredResponse

_MEMBER_START = re.compile(rb'[\s{,]*"(?:[^"\\]|\\.)*"\s*:\s*')


@dataclass(frozen=True, slots=True)
class Includable:
    """A field that a list shows only where `include` asks for it."""

    type: str
    path: tuple[str, ...]  # "[x]" stands for every part of type x of a list
    nullable: bool = False  # emptied rather than removed: without the key the item would not be valid as input


INCLUDABLE = {
    "file_search_call.results": Includable("file_search_call", ("results",)),
    "web_search_call.results": Includable("web_search_call", ("results",)),
    "web_search_call.action.sources": Includable("web_search_call", ("action", "sources")),
    "message.input_image.image_url": Includable("message", ("content", "[input_image]", "image_url")),
    "computer_call_output.output.image_url": Includable("computer_call_output", ("output", "image_url")),
    "code_interpreter_call.outputs": Includable("code_interpreter_call", ("outputs",), nullable=True),
    "reasoning.encrypted_content": Includable("reasoning", ("encrypted_content",)),
    "message.output_text.logprobs": Includable("message", ("content", "[output_text]", "logprobs")),
}

# Sessions that keep their history in a conversation send what it lists back as input (the Agents SDK's does, and asks
# for no includes); an image without its address would be lost to the model.
KEPT_IN_CONVERSATIONS = frozenset({"message.input_image.image_url", "computer_call_output.output.image_url"})


def response_body(stored: StoredResponse) -> bytes:
    """The response object: the stored envelope with the output's items in the place of its empty list."""
    output = jsonbytes.join_array(item.body for item in stored.output)
    return _with_member(stored.head.envelope, "output", output)


def list_body(page: Page, include: frozenset[str]) -> bytes:
    """OpenAI's list object."""
    first, last = (page.items[0].id, page.items[-1].id) if page.items else (None, None)
    return jsonbytes.join_object(
        {
            "object": b'"list"',
            "data": jsonbytes.join_array(public_item(item, include) for item in page.items),
            "first_id": jsonbytes.encode(first),
            "last_id": jsonbytes.encode(last),
            "has_more": jsonbytes.encode(page.has_more),
        }
    )


def public_item(item: Item, include: frozenset[str]) -> bytes:
    """The item in OpenAI's public shape, valid as input too, without the includable fields nobody asked for."""
    members = jsonbytes.fields(item.body)
    shown = _stripped(_shaped(members, item.id), include)
    return item.body if shown == members else jsonbytes.join_object(shown)


def _shaped(members: Fields, item_id: str) -> Fields:
    # The row's id rules: the client may have sent none, or one that was taken.
    if jsonbytes.text(members.get("id")) != item_id:
        encoded = jsonbytes.encode(item_id)
        members = {"id": encoded} | members | {"id": encoded}
    if not jsonbytes.present(members.get("type")):
        members = members | {"type": b'"message"'}
    return _shaped_message(members) if jsonbytes.text(members["type"]) == "message" else members


def _shaped_message(members: Fields) -> Fields:
    if not jsonbytes.present(members.get("status")):
        members = members | {"status": b'"completed"'}
    content = members.get("content", NULL)
    if content == NULL:
        return members | {"content": b"[]"}
    if content.startswith(b'"'):
        return members | {"content": _text_parts(content, jsonbytes.text(members.get("role")))}
    return members


def _text_parts(text: bytes, role: str | None) -> bytes:
    if role == "assistant":
        return b'[{"type":"output_text","text":' + text + b',"annotations":[]}]'
    return b'[{"type":"input_text","text":' + text + b"}]"


def _stripped(members: Fields, include: frozenset[str]) -> Fields:
    kind = jsonbytes.text(members["type"])
    for name, field in INCLUDABLE.items():
        if field.type == kind and name not in include:
            members = _without(members, field)
    return members


def _without(members: Fields, field: Includable) -> Fields:
    key, *rest = field.path
    if key not in members:
        return members
    if rest:
        return members | {key: _without_inside(members[key], rest)}
    return members | {key: NULL} if field.nullable else _dropped(members, key)


def _without_inside(raw: bytes, path: Sequence[str]) -> bytes:
    if path[0].startswith("["):
        return _without_in_parts(raw, path[0][1:-1], path[1]) if raw.startswith(b"[") else raw
    return _without_key(raw, path[0])


def _without_in_parts(raw: bytes, kind: str, key: str) -> bytes:
    parts = jsonbytes.elements(raw)
    shown = [_without_key(part, key) if _kind(part) == kind else part for part in parts]
    return raw if shown == parts else jsonbytes.join_array(shown)


def _without_key(raw: bytes, key: str) -> bytes:
    members = jsonbytes.fields(raw) if raw.startswith(b"{") else {}
    return jsonbytes.join_object(_dropped(members, key)) if key in members else raw


def _kind(part: bytes) -> str | None:
    return jsonbytes.text(jsonbytes.fields(part).get("type")) if part.startswith(b"{") else None


def _dropped(members: Fields, key: str) -> Fields:
    return {name: raw for name, raw in members.items() if name != key}


def _with_member(body: bytes, name: str, value: bytes) -> bytes:
    position = 0
    members = jsonbytes.fields(body)
    for key, raw in members.items():
        start = _MEMBER_START.match(body, position)
        if start is None or not body.startswith(raw, start.end()):
            break  # a repeated key: the walk cannot tell where it is
        position = start.end() + len(raw)
        if key == name:
            return body[: start.end()] + value + body[position:]
    return jsonbytes.join_object(members | {name: value})
