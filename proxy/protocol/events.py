"""What a backend says, as it travels outwards through the chain: one vocabulary for JSON answers and streams.

A streamed answer is one `Head`, then `Frames` and `Event`s, perhaps `Trailers`. A JSON answer is one `Answer`. Any
other
body is one `Head`, then `Chunk`s.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from proxy.protocol import jsonbytes
from proxy.protocol.headers import Headers
from proxy.protocol.lazy import lazy

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
LIFECYCLE = frozenset(
    {
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    }
)


class Head(Struct, frozen=True, gc=False):
    """Status line and headers of an answer whose body follows."""

    status: int
    reason: bytes
    headers: Headers
    events: bool = False  # the body is a Responses event stream, sent as Frames and Events
    composed: bool = False  # and the gateway has a say in it: more than one round may stand behind it


class Answer(Struct, frozen=True, gc=False):
    """A whole answer: status, headers and body."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


class Chunk(Struct, frozen=True, gc=False):
    """Some bytes of a body that nobody reads."""

    raw: bytes


class Frames(Struct, frozen=True, gc=False):
    """A run of whole SSE frames, all of them deltas, that arrived together; nobody decodes them."""

    raw: bytes


class Trailers(Struct, frozen=True, gc=False):
    """The headers that follow a chunked body."""

    headers: Headers


class _Outline(Struct):
    """What the gateway reads of every event that is no delta, found without taking the rest apart."""

    type: Raw = jsonbytes.ABSENT
    response: Raw = jsonbytes.ABSENT
    item: Raw = jsonbytes.ABSENT
    output_index: Raw = jsonbytes.ABSENT
    sequence_number: Raw = jsonbytes.ABSENT
    error: Raw = jsonbytes.ABSENT


_outline = Decoder(_Outline)


class Event(Struct, frozen=True, dict=True):
    """One SSE frame, its exact bytes, read only when asked."""

    raw: bytes
    name: str = ""  # of the `event:` line; empty where there is none

    @lazy
    def data(self) -> bytes:
        """The frame's data: its `data:` lines joined by newlines, as the SSE standard says."""
        lines = self.raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))

    @lazy
    def fields(self) -> jsonbytes.Fields:
        """The members of the frame's JSON object; empty where the data is no object (`[DONE]`, a comment)."""
        try:
            return jsonbytes.fields(self.data)
        except jsonbytes.NotJSON:
            return {}

    @lazy
    def type(self) -> str:
        """The event's type: the `event:` line, else the data's own `type`, else `error` for a bare error object."""
        if self.name:
            return self.name
        named = jsonbytes.text(bytes(self._outline.type))
        if named is None and jsonbytes.present(bytes(self._outline.error) or None):
            return "error"
        return named or ""

    @lazy
    def response(self) -> bytes:
        """The exact bytes of its `response` member; empty where there is none."""
        return bytes(self._outline.response)

    @lazy
    def item(self) -> bytes:
        """The exact bytes of its `item` member; empty where there is none."""
        return bytes(self._outline.item)

    @property
    def terminal(self) -> bool:
        """Whether the response is over with this event."""
        return self.type in TERMINAL

    @property
    def sequence_number(self) -> int | None:
        """The event's number in its stream, where it has one."""
        return jsonbytes.count(bytes(self._outline.sequence_number))

    @property
    def output_index(self) -> int | None:
        """The place of the item that it is about, where it names one."""
        return jsonbytes.count(bytes(self._outline.output_index))

    @lazy
    def _outline(self) -> _Outline:
        try:
            return jsonbytes.outline(_outline, self.data)
        except jsonbytes.NotJSON:
            return _Outline()


Message = Head | Answer | Chunk | Frames | Event | Trailers


def with_data(raw: bytes, name: str, data: bytes) -> Event:
    """An event whose data somebody has found already."""
    event = Event(raw, name)
    event.__dict__["data"] = data
    return event


def encode(type_: str, data: bytes) -> Event:
    """A frame as vLLM and OpenAI spell it."""
    return with_data(b"event: %b\ndata: %b\n\n" % (type_.encode(), data), type_, data)
