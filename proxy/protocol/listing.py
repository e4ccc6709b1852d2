"""Stored items as the public sees them: the response object, and the pages of a list.

Nothing here re-encodes what it need not change. A response's envelope keeps every byte around its output; an item that
already has OpenAI's public shape keeps every byte of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from proxy.protocol.records import Item, Page, StoredResponse

Members = dict[str, msgspec.Raw]

_object = msgspec.json.Decoder(Members)
_array = msgspec.json.Decoder(list[msgspec.Raw])
_anything = msgspec.json.Decoder()
_encode = msgspec.json.encode
_MEMBER_START = re.compile(rb'[\s{,]*"(?:[^"\\]|\\.)*"\s*:\s*')
_NULL = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Includable:
    """A field that a list shows only where `include` asks for it."""

    type: str
    path: tuple[str, ...]  # "[x]" stands for every part of type x of a list
    nullable: bool = False  # emptied rather than removed: the item would not be valid as input without the key


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

# The items of a conversation are sent back as input by sessions that keep their history there (the Agents SDK's do, and
# cannot ask for more); an image without its address would be lost to the model.
KEPT_IN_CONVERSATIONS = frozenset({"message.input_image.image_url", "computer_call_output.output.image_url"})


def response_body(stored: StoredResponse) -> bytes:
    """The response object: the stored envelope with the output's items in the place of its empty list."""
    output = b"[" + b",".join(item.body for item in stored.output) + b"]"
    return _replaced(stored.head.envelope, "output", output)


def list_body(page: Page, include: frozenset[str]) -> bytes:
    """OpenAI's list object."""
    data = b",".join(public_item(item, include) for item in page.items)
    first, last = (page.items[0].id, page.items[-1].id) if page.items else (None, None)
    tail = _encode({"first_id": first, "last_id": last, "has_more": page.has_more})
    return b'{"object":"list","data":[' + data + b"]," + tail[1:]


def public_item(item: Item, include: frozenset[str]) -> bytes:
    """The item in OpenAI's public shape, which is also valid as input, without the fields that `include` does not name."""
    members = _object.decode(item.body)
    shaped = _stripped(_shaped(members, item), include)
    return item.body if shaped == members else _joined(shaped)


def _shaped(members: Members, item: Item) -> Members:
    # The row's id rules: the client may have sent none, or one that was taken.
    shaped = members if _value(members, "id") == item.id else {"id": _raw(item.id)} | members | {"id": _raw(item.id)}
    if _value(shaped, "type") is None:
        shaped = shaped | {"type": _raw("message")}
    return shaped if _value(shaped, "type") != "message" else _shaped_message(shaped)


def _shaped_message(members: Members) -> Members:
    shaped = members
    if _value(members, "status") is None:
        shaped = shaped | {"status": _raw("completed")}
    content = bytes(members.get("content", _NULL))
    if content == b"null":
        return shaped | {"content": msgspec.Raw(b"[]")}
    if content.startswith(b'"'):
        return shaped | {"content": msgspec.Raw(_text_part(content, _value(members, "role")))}
    return shaped


def _text_part(text: bytes, role: object) -> bytes:
    if role == "assistant":
        return b'[{"type":"output_text","text":' + text + b',"annotations":[]}]'
    return b'[{"type":"input_text","text":' + text + b"}]"


def _stripped(members: Members, include: frozenset[str]) -> Members:
    kind = _value(members, "type")
    for name, field in INCLUDABLE.items():
        if field.type == kind and name not in include:
            members = _without(members, field.path, field.nullable)
    return members


def _without(members: Members, path: Sequence[str], nullable: bool = False) -> Members:
    key, *rest = path
    if key not in members:
        return members
    if rest:
        return members | {key: _without_inside(members[key], rest)}
    return members | {key: _NULL} if nullable else {k: v for k, v in members.items() if k != key}


def _without_inside(raw: msgspec.Raw, path: Sequence[str]) -> msgspec.Raw:
    opening = bytes(raw)[:1]
    if path[0].startswith("["):
        if opening != b"[":
            return raw
        return _changed(raw, [_without_in_part(part, path[0][1:-1], path[1:]) for part in _array.decode(raw)])
    if opening != b"{":
        return raw
    members = _object.decode(raw)
    return raw if path[0] not in members else msgspec.Raw(_joined(_without(members, path)))


def _without_in_part(part: msgspec.Raw, kind: str, path: Sequence[str]) -> msgspec.Raw:
    if bytes(part)[:1] != b"{" or _value(_object.decode(part), "type") != kind:
        return part
    return _without_inside(part, path)


def _changed(raw: msgspec.Raw, parts: Iterable[msgspec.Raw]) -> msgspec.Raw:
    new = list(parts)
    return raw if new == _array.decode(raw) else msgspec.Raw(b"[" + b",".join(map(bytes, new)) + b"]")


def _replaced(body: bytes, name: str, value: bytes) -> bytes:
    members = _object.decode(body)
    position = 0
    for key, raw in members.items():
        start = _MEMBER_START.match(body, position)
        if start is None or not body.startswith(bytes(raw), start.end()):
            break  # a key that occurs twice: the walk lost its way
        position = start.end() + len(bytes(raw))
        if key == name:
            return body[: start.end()] + value + body[position:]
    return _joined(members | {name: msgspec.Raw(value)})


def _joined(members: Members) -> bytes:
    return b"{" + b",".join(_encode(key) + b":" + bytes(raw) for key, raw in members.items()) + b"}"


def _raw(value: str) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def _value(members: Members, key: str) -> object:
    return _anything.decode(members.get(key, _NULL))
