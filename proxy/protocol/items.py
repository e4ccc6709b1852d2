"""Items of a request's input: taken apart once, each keeping its exact bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from proxy.errors import InvalidType, InvalidValue
from proxy.protocol import jsonbytes
from proxy.protocol.records import Item

NewId = Callable[[str], str]  # a prefix such as "msg_" -> a fresh id that begins with it

CALLS = frozenset({"function_call", "custom_tool_call"})
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})

_MAX_ID_CHARS = 512

_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
}


class _Outline(msgspec.Struct):
    """The members of an item that decide where it belongs."""

    type: msgspec.Raw = msgspec.Raw(b"null")
    id: msgspec.Raw = msgspec.Raw(b"null")
    call_id: msgspec.Raw = msgspec.Raw(b"null")
    role: msgspec.Raw = msgspec.Raw(b"null")


_outline = msgspec.json.Decoder(_Outline)


def parse_input(raw: bytes | None, new_id: NewId) -> tuple[Item, ...]:
    """The items of an `input` member: a string is one user message, absent is none. Raises `InvalidType`."""
    if not jsonbytes.present(raw) or raw is None:
        return ()
    if raw.startswith(b'"'):
        return (Item(new_id("msg_"), "message", user_message(raw)),)
    if not raw.startswith(b"["):
        raise InvalidType("'input' must be a string or an array of items", param="input")
    return parse_items(raw, new_id, "input")


def parse_items(raw: bytes, new_id: NewId, param: str) -> tuple[Item, ...]:
    """The items of a JSON array, fresh ids where they have none. Raises `InvalidType` naming the place."""
    try:
        parts = jsonbytes.elements(raw)
    except jsonbytes.NotJSON as error:
        raise InvalidType(f"'{param}' must be an array of items: {error}", param=param) from error
    return tuple(parse_item(part, new_id, f"{param}[{index}]") for index, part in enumerate(parts))


def parse_item(raw: bytes, new_id: NewId, param: str) -> Item:
    """One item. An object with neither type nor role is an `item_reference` if it has an id, else a message."""
    try:
        outline = _outline.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidType(f"'{param}' must be an item object", param=param) from error
    type_ = _text(outline.type, f"{param}.type")
    id_ = _text(outline.id, f"{param}.id")
    if type_ is None:
        type_ = "item_reference" if id_ and bytes(outline.role) == jsonbytes.NULL else "message"
    call_id = _text(outline.call_id, f"{param}.call_id") if type_ in CALLS or type_ in OUTPUTS else None
    return Item(id_ or new_id(prefix(type_)), type_, raw, call_id)


def prefix(type_: str) -> str:
    """What the ids of such items begin with."""
    return _PREFIXES.get(type_, "item_")


def user_message(raw_text: bytes) -> bytes:
    """The message that a string input stands for; the string keeps its exact bytes."""
    return b'{"type":"message","role":"user","content":[{"type":"input_text","text":' + raw_text + b"}]}"


def join(items: Iterable[Item]) -> bytes:
    """A JSON array of the items' exact bytes."""
    return jsonbytes.join_array(item.body for item in items)


def open_calls(items: Sequence[Item]) -> list[str]:
    """The ids of calls that no later output answers, in order."""
    waiting: dict[str, None] = {}
    for item in items:
        if item.call_id is None:
            continue
        if item.type in CALLS:
            waiting[item.call_id] = None
        elif item.type in OUTPUTS:
            waiting.pop(item.call_id, None)
    return list(waiting)


def orphan_outputs(items: Sequence[Item]) -> list[str]:
    """The call ids of outputs whose call does not come before them, in order, each once."""
    made: set[str] = set()
    orphans: dict[str, None] = {}
    for item in items:
        if item.call_id is None:
            continue
        if item.type in CALLS:
            made.add(item.call_id)
        elif item.type in OUTPUTS and item.call_id not in made:
            orphans[item.call_id] = None
    return list(orphans)


def _text(raw: msgspec.Raw, param: str) -> str | None:
    spelled = bytes(raw)
    if not jsonbytes.present(spelled):
        return None
    text = jsonbytes.text(spelled)
    if text is None:
        raise InvalidType(f"'{param}' must be a string", param=param)
    if len(text) > _MAX_ID_CHARS or "\0" in text:  # a database would refuse it
        raise InvalidValue(f"'{param}' must have at most {_MAX_ID_CHARS} characters, none of them NUL", param=param)
    return text
