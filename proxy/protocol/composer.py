"""Many rounds as one logical stream: one id, one line of output indexes, one line of sequence numbers.

The composer is the only owner of these three. A frame that needs no change keeps its bytes; one that does is edited in
place, not decoded and encoded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from proxy.protocol import jsonbytes
from proxy.protocol.events import Event, Frames, encode
from proxy.protocol.sse import frames

# A quoted name followed by a colon cannot stand inside a JSON string: its quotes would be escaped there.
_NUMBERS = re.compile(rb'"(output_index|sequence_number)"\s*:\s*(\d+)')
_INDEX = re.compile(rb'"output_index"\s*:\s*(\d+)')
_NUMBERED = re.compile(rb'"sequence_number"\s*:')
_COUNTED = b'"sequence_number":'  # how everybody spells it: looked for first, since that costs least
_OF_ITEMS = frozenset({"response.output_item.added", "response.output_item.done"})


class Composer:
    """Fed with what each round's stream says; gives what the client shall see."""

    def __init__(self, functions: Collection[str], overrides: jsonbytes.Fields) -> None:
        self._functions = functions  # names of the functions that the gateway runs: their calls are not shown
        self._overrides = overrides  # members of every response object: `tools`, `tool_choice`
        self._id: bytes | None = None
        self._sequence = 0
        self._items = 0
        self._round = -1
        self._places: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._usage: Any = None
        self._shifted = False
        self.output: list[bytes] = []  # the items that were shown, finished

    def begin_round(self) -> None:
        """The next frames are another round's."""
        self._round += 1
        self._places, self._hidden = {}, set()
        self._shifted = self._shifted or self._round > 0

    # What a round says

    def event(self, event: Event) -> list[Event]:
        """The event as the client shall see it, or nothing. A terminal event is the caller's to handle."""
        members = event.fields
        if "response" in members:
            return self._lifecycle(event, members)
        index = _index(members)
        if index is not None and index in self._hidden:
            return []
        if event.type in _OF_ITEMS:  # `done` may come alone
            if self._hides(members):
                self._shifted = True
                return []
            if index is not None and index not in self._places:
                self._places[index] = self._items
                self._items += 1
        if event.type == "response.output_item.done":
            self.output.append(members.get("item", b"{}"))
        return [self._renumbered(event, members)]

    def frames(self, run: Frames) -> list[Frames]:
        """A run of deltas as the client shall see it."""
        if not self._shifted:
            self._sequence += run.raw.count(_COUNTED) or len(_NUMBERED.findall(run.raw))
            return [run]
        raw = run.raw
        if self._hidden:
            raw = b"".join(frame.raw for frame in frames(raw) if not self._is_hidden(frame.raw))
        return [Frames(_NUMBERS.sub(self._number, raw))] if raw else []

    # What the gateway itself adds

    def place(self) -> int:
        """The output index of the next item."""
        self._shifted = True
        self._items += 1
        return self._items - 1

    def local(self, type_: str, members: Mapping[str, Any]) -> Event:
        """An event of the gateway's own."""
        self._shifted = True
        data = {"type": type_, **members, "sequence_number": self._sequence}
        self._sequence += 1
        return encode(type_, jsonbytes.encode(data))

    def local_raw(self, type_: str, members: jsonbytes.Fields) -> Event:
        """An event whose members are there already, under the next number."""
        number = jsonbytes.encode(self._sequence)
        self._sequence += 1
        return encode(type_, jsonbytes.join_object({**members, "sequence_number": number}))

    def take_back(self, count: int) -> None:
        """Gives back the last numbers, which have not been sent."""
        self._shifted = True
        self._sequence -= count

    # The end

    def count(self, response: bytes) -> None:
        """Adds a finished round's usage; the first round's id is everybody's."""
        members = jsonbytes.fields(response)
        self._id = self._id or members.get("id")
        raw = members.get("usage")
        if raw is not None and jsonbytes.present(raw):
            usage = jsonbytes.value(raw)
            self._usage = usage if self._usage is None else summed(self._usage, usage)

    def final(self, type_: str, response: bytes, changes: jsonbytes.Fields) -> Event:
        """The one terminal event: the last round's response, with everybody's output and usage."""
        merged = self.merged(response, changes)
        number = jsonbytes.encode(self._sequence)
        self._sequence += 1
        data = {"response": merged, "sequence_number": number, "type": jsonbytes.encode(type_)}
        return encode(type_, jsonbytes.join_object(data))

    def merged(self, response: bytes, changes: jsonbytes.Fields) -> bytes:
        """The one response object, also of a JSON answer."""
        members = {**self._overrides, "output": jsonbytes.join_array(self.output), **changes}
        if self._usage is not None:
            members["usage"] = jsonbytes.encode(self._usage)
        return self._pinned(response, members)

    # Inner matters

    def _lifecycle(self, event: Event, members: jsonbytes.Fields) -> list[Event]:
        if self._round > 0:
            return []
        response = self._pinned(members["response"], self._overrides)
        self._shifted = self._shifted or event.sequence_number != self._sequence
        number = jsonbytes.encode(self._sequence)
        self._sequence += 1
        data = jsonbytes.join_object({**members, "response": response, "sequence_number": number})
        return [encode(event.type, data)]

    def _pinned(self, response: bytes, changes: jsonbytes.Fields) -> bytes:
        members = jsonbytes.fields(response)
        self._id = self._id or members.get("id")
        known = {name: raw for name, raw in changes.items() if name in members or name != "tool_choice"}
        pinned = {"id": self._id} if self._id is not None else {}
        return jsonbytes.join_object({**members, **known, **pinned})

    def _hides(self, members: jsonbytes.Fields) -> bool:
        item, index = members.get("item", b""), _index(members)
        if index is None or b'"function_call"' not in item:
            return False
        inner = jsonbytes.fields(item)
        if jsonbytes.text(inner.get("type")) != "function_call":
            return False
        if jsonbytes.text(inner.get("name")) not in self._functions or jsonbytes.present(inner.get("namespace")):
            return False
        self._hidden.add(index)
        return True

    def _is_hidden(self, raw: bytes) -> bool:
        match = _INDEX.search(raw)
        return match is not None and int(match[1]) in self._hidden

    def _renumbered(self, event: Event, members: jsonbytes.Fields) -> Event:
        self._shifted = self._shifted or event.sequence_number not in (None, self._sequence)
        if not self._shifted:
            self._sequence += event.sequence_number is not None
            return event
        names = [name for name in ("output_index", "sequence_number") if members.get(name, b"").isdigit()]
        found = [match[1].decode() for match in _NUMBERS.finditer(event.raw)]
        if sorted(found) == names:
            return Event(_NUMBERS.sub(self._number, event.raw), event.name)
        # An object within bears the same name: only the event's own members are meant.
        own = {name: b'"%b":%b' % (name.encode(), members[name]) for name in names}
        changes = {name: _NUMBERS.sub(self._number, raw).partition(b":")[2] for name, raw in own.items()}
        return encode(event.type, jsonbytes.join_object({**members, **changes}))

    def _number(self, match: re.Match[bytes]) -> bytes:
        if match[1] == b"output_index":
            index = int(match[2])
            return b'"output_index":%d' % self._places.get(index, index)
        self._sequence += 1
        return b'"sequence_number":%d' % (self._sequence - 1)


def summed(one: Any, other: Any) -> Any:
    """Two usages as one: counts are added at every depth, anything else is the later one's."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: summed(one[key], new) if key in one else new for key, new in other.items()}}
    if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool) and not isinstance(other, bool):
        return one + other
    return other


def _index(members: jsonbytes.Fields) -> int | None:
    raw = members.get("output_index", b"")
    return int(raw) if raw.isdigit() else None
