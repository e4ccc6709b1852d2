"""The repairs themselves, pure: each returns the very same object where its case is not present."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from proxy.protocol import items, jsonbytes
from proxy.protocol.events import LIFECYCLE, Event, Frames, encode
from proxy.protocol.round import NoResponse, Round, outline_of, response_id, stable_id
from proxy.protocol.sse import frames

Thing = TypeVar("Thing", bytes, Event)

# vLLM answers 400 to these nulls, for some of them only after the whole generation.
REFUSED_NULLS = ("truncation", "background", "tools", "tool_choice", "service_tier", "include_reasoning")

_INCOMPLETE = b'"incomplete"'


class _Item(msgspec.Struct):
    id: msgspec.Raw = jsonbytes.ABSENT


_item = msgspec.json.Decoder(_Item)
_items = msgspec.json.Decoder(list[_Item])


def context_length(body: bytes) -> bytes:
    """An error body of vLLM's for a prompt that is too long, with the code that clients know. Raises `NotJSON`."""
    members = jsonbytes.fields(body)
    raw = members.get("error", b"")
    if not raw.startswith(b"{"):
        return body
    error = jsonbytes.fields(raw)
    if error.get("code") == b'"context_length_exceeded"' or not _overflow(error):
        return body
    code = {"code": b'"context_length_exceeded"'}
    return jsonbytes.with_members(body, {"error": jsonbytes.with_members(raw, code)})


def _overflow(error: jsonbytes.Fields) -> bool:
    message = jsonbytes.text(error.get("message")) or ""
    if "maximum context length" in message or "engine prompt length" in message:
        return True
    return jsonbytes.text(error.get("param")) in ("input_tokens", "input_text")


def incomplete_response(body: bytes) -> bytes:
    """A response whose status is incomplete, with its last item marked so too. Raises `NotJSON`."""
    if not _is_incomplete(body):
        return body
    members = jsonbytes.fields(body)
    raw = members.get("output", b"")
    if not raw.startswith(b"["):
        return body
    parts = jsonbytes.elements(raw)
    if not parts or jsonbytes.fields(parts[-1]).get("status") == _INCOMPLETE:
        return body
    parts[-1] = jsonbytes.with_members(parts[-1], {"status": _INCOMPLETE})
    return jsonbytes.join_object({**members, "output": jsonbytes.join_array(parts)})


def _is_incomplete(response: bytes) -> bool:
    if _INCOMPLETE not in response:
        return False
    return bytes(outline_of(response).status) == _INCOMPLETE


def incomplete_event(event: Event) -> Event:
    """`response.incomplete` for a `response.completed` that carries the status incomplete."""
    response = event.response
    if not _is_incomplete(response):
        return event
    type_ = "response.incomplete"
    changes = {"type": jsonbytes.encode(type_), "response": incomplete_response(response)}
    return encode(type_, jsonbytes.join_object({**event.fields, **changes}))


def failed_for(event: Event, round_: Round) -> Event:
    """`response.failed` for an `error` event, when a response had begun."""
    try:
        return round_.failed(*error_of(event))
    except NoResponse:
        return event


def error_of(event: Event) -> tuple[str, str]:
    """The code and the message of an `error` event, which holds them itself, or an object or a string with them."""
    raw = event.fields.get("error", b"")
    error = jsonbytes.fields(raw) if raw.startswith(b"{") else event.fields
    code = jsonbytes.text(error.get("code")) or "server_error"
    message = jsonbytes.text(error.get("message")) or jsonbytes.text(raw) or "The backend reported an error."
    return code, message


def identified(body: bytes) -> bytes:
    """A response whose output items all have ids. Raises `NotJSON`."""
    outline = outline_of(body)
    raw = bytes(outline.output)
    if not raw.startswith(b"[") or all(_is_id(bytes(item.id)) for item in jsonbytes.outline(_items, raw)):
        return body
    response_id = jsonbytes.text(bytes(outline.id)) or ""
    mended = [identify(part, response_id, index) for index, part in enumerate(jsonbytes.elements(raw))]
    return jsonbytes.join_object({**jsonbytes.fields(body), "output": jsonbytes.join_array(mended)})


def _is_id(raw: bytes) -> bool:
    return raw.startswith(b'"') and raw != b'""'


def identify(item: bytes, response_id: str, index: int) -> bytes:
    """The item with an id: its own, or a stable one. Raises `NotJSON`."""
    if _is_id(bytes(jsonbytes.outline(_item, item).id)):
        return item
    members = jsonbytes.fields(item)
    prefix = items.prefix(jsonbytes.text(members.get("type")) or "message")
    return jsonbytes.join_object({"id": jsonbytes.encode(stable_id(prefix, response_id, index)), **_rest(members)})


def _rest(members: jsonbytes.Fields) -> jsonbytes.Fields:
    return {key: raw for key, raw in members.items() if key != "id"}


class ItemIds:
    """Gives ids to the items of a stream that come without, and the same ids to the events about them."""

    def __init__(self) -> None:
        self._response_id = ""
        self.missing: dict[int, str] = {}

    def event(self, event: Event) -> Event:
        """The event, its items and its `item_id` identified."""
        if event.type in LIFECYCLE and event.response:
            return self._lifecycle(event)
        if event.type.startswith("response.output_item.") and event.item:
            return self._item(event)
        return self._about(event)

    def frames(self, run: Frames) -> list[Event]:
        """A run of deltas, each identified."""
        return [self._about(frame) for frame in frames(run.raw)]

    def _lifecycle(self, event: Event) -> Event:
        response = event.response
        if not self._response_id:
            self._response_id = response_id(response) or ""
        mended = identified(response)
        return event if mended is response else _with(event, "response", mended)

    def _item(self, event: Event) -> Event:
        index, item = event.output_index, event.item
        if index is None or not item.startswith(b"{"):
            return event
        mended = identify(item, self._response_id, index)
        if mended is item:
            return event
        self.missing[index] = jsonbytes.text(jsonbytes.fields(mended)["id"]) or ""
        return _with(event, "item", mended)

    def _about(self, event: Event) -> Event:
        index = event.output_index if self.missing else None
        if index is None or index not in self.missing or jsonbytes.present(event.fields.get("item_id")):
            return event
        return _with(event, "item_id", jsonbytes.encode(self.missing[index]))


def _with(event: Event, name: str, value: bytes) -> Event:
    return encode(event.type, jsonbytes.join_object({**event.fields, name: value}))
