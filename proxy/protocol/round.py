"""One upstream answer, folded into what it said: the response object and its output items.

JSON answers and streams end as the same `Outcome`. A stream that ends early is folded into a failed response out of
what
had come: the object of `response.created`, and the items that were done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from proxy.errors import InvalidRequest
from proxy.protocol import items, jsonbytes
from proxy.protocol.events import TERMINAL, Event, Frames, encode
from proxy.protocol.lookup import storable_id
from proxy.protocol.records import Item
from proxy.protocol.sse import frames

Fields = jsonbytes.Fields


_OUTPUT = b'"output":'


class Outline(msgspec.Struct):
    """What the gateway reads of a response object itself, found without taking the rest apart."""

    id: msgspec.Raw = jsonbytes.ABSENT
    status: msgspec.Raw = jsonbytes.ABSENT
    created_at: msgspec.Raw = jsonbytes.ABSENT
    output: msgspec.Raw = jsonbytes.ABSENT


_outline = msgspec.json.Decoder(Outline)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished response: what a store needs of it."""

    id: str
    status: str
    created_at: float | None
    envelope: bytes  # the response object with its output emptied
    output: tuple[Item, ...]


class NoResponse(ValueError):
    """The backend's answer holds no response object."""


def outcome(response: bytes, folded: Sequence[bytes] = ()) -> Outcome:
    """Reads a response object; `folded` are its items where it lists none itself.

    Raises `NoResponse` when it is not an object, or when it or an item of it has no id that can be stored.
    """
    try:
        outline = outline_of(response)
        id_ = jsonbytes.text(bytes(outline.id))
        status = jsonbytes.text(bytes(outline.status))
        raw = bytes(outline.output)
        output = _output(raw, id_ or "", folded)
        envelope = _emptied(response, raw)
    except (jsonbytes.NotJSON, InvalidRequest) as error:
        raise NoResponse(str(error)) from error
    if not id_:
        raise NoResponse("the response has no id")
    if not storable_id(id_):
        raise NoResponse("the response's id is too long, or holds what cannot be printed")
    return Outcome(id_, status or "completed", _seconds(bytes(outline.created_at)), envelope, output)


def outline_of(response: bytes) -> Outline:
    """What a response object says of itself. Raises `NotJSON`."""
    return jsonbytes.outline(_outline, response)


def response_id(response: bytes) -> str | None:
    """The id of a response object. Raises `NotJSON`."""
    return jsonbytes.text(bytes(outline_of(response).id))


def _emptied(response: bytes, output: bytes) -> bytes:
    """The response with `[]` for its output; other bytes stay, where the output is found in one place."""
    start = response.find(_OUTPUT) + len(_OUTPUT)
    end = start + len(output)
    # The first place with that name and the very bytes; and none behind it, which would be the one that counts.
    if output and start >= len(_OUTPUT) and response.startswith(output, start) and response.find(_OUTPUT, end) < 0:
        return b"%b[]%b" % (response[:start], response[end:])
    return jsonbytes.with_members(response, {"output": b"[]"})


def _output(raw: bytes, response_id: str, folded: Sequence[bytes]) -> tuple[Item, ...]:
    parts = jsonbytes.elements(raw) if raw and jsonbytes.present(raw) else []
    return tuple(_output_item(part, response_id, index) for index, part in enumerate(parts or folded))


def _output_item(raw: bytes, response_id: str, index: int) -> Item:
    return items.parse_item(raw, lambda prefix: stable_id(prefix, response_id, index), f"output[{index}]")


def stable_id(prefix: str, response_id: str, index: int) -> str:
    """An id for an output item that came without one: the same whenever it is asked for."""
    return prefix + hashlib.sha256(f"{response_id}/{index}".encode()).hexdigest()[:32]


def _seconds(raw: bytes) -> float | None:
    try:
        return float(raw) if raw else None
    except ValueError:
        return None


class Round:
    """Listens to a stream's events, so that it can be finished properly if the backend does not."""

    def __init__(self) -> None:
        self.response: bytes | None = None  # of the newest lifecycle event
        self.terminal: Event | None = None
        self._done: dict[int, bytes] = {}
        self._latest: Event | bytes | None = None  # bytes: a run of deltas

    def deltas(self, run: bytes) -> None:
        """Takes note of a run of deltas."""
        self._latest = run

    def observe(self, part: Event | Frames) -> None:
        """Takes note of one part of the stream."""
        if isinstance(part, Frames):
            self.deltas(part.raw)
            return
        if b'"sequence_number"' in part.raw:  # a comment has none, and must not make the count begin again
            self._latest = part
        type_ = part.type
        if type_ in TERMINAL:
            self.terminal = part
        if type_ == "response.output_item.done" and part.item.startswith(b"{"):
            index = part.output_index
            self._done[len(self._done) if index is None else index] = part.item
        elif type_.startswith("response.") and b'"response"' in part.raw and part.response.startswith(b"{"):
            self.response = part.response

    @property
    def next_sequence_number(self) -> int:
        """The number that the stream's next event should carry."""
        if self._latest is None:
            return 0
        last = frames(self._latest)[-1].sequence_number if isinstance(self._latest, bytes) else None
        if isinstance(self._latest, Event):
            last = self._latest.sequence_number
        return 0 if last is None else last + 1

    def items(self) -> list[bytes]:
        """The items that were done, in order."""
        return [self._done[index] for index in sorted(self._done)]

    def ended(self, type_: str, status: str, changes: Fields) -> Event:
        """A terminal event for a response that the backend did not finish. Raises `NoResponse` if none had begun."""
        if self.response is None:
            raise NoResponse("no response had begun")
        output = jsonbytes.join_array(self.items())
        response = jsonbytes.with_members(
            self.response, {"status": jsonbytes.encode(status), **changes, "output": output}
        )
        number = jsonbytes.encode(self.next_sequence_number)
        members = {"response": response, "sequence_number": number, "type": jsonbytes.encode(type_)}
        return encode(type_, jsonbytes.join_object(members))

    def failed(self, code: str, message: str) -> Event:
        """`response.failed`, naming what went wrong. Raises `NoResponse` if no response had begun."""
        error = jsonbytes.encode({"code": code, "message": message})
        return self.ended("response.failed", "failed", {"error": error})


def terminal_response(event: Event) -> bytes | None:
    """The response object that a terminal event carries; None for a bare `error`."""
    return event.response or None


def error_event(code: str | None, message: str, param: str | None, sequence_number: int) -> Event:
    """The flat `error` event of the Responses API."""
    data = {"type": "error", "sequence_number": sequence_number, "code": code, "message": message, "param": param}
    return encode("error", jsonbytes.encode(data))
