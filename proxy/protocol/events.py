"""What a backend says, as it travels outwards through the chain: one vocabulary for JSON answers and streams.

A streamed answer is one `Head`, then `Frames` and `Event`s, perhaps `Trailers`. A JSON answer is one `Answer`. Any
other
body is one `Head`, then `Chunk`s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from proxy.protocol import jsonbytes
from proxy.protocol.headers import Headers

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


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of an answer whose body follows."""

    status: int
    reason: bytes
    headers: Headers
    events: bool = False  # the body is a Responses event stream, sent as Frames and Events
    composed: bool = False  # and the gateway has a say in it: more than one round may stand behind it


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status, headers and body."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of a body that nobody reads."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Frames:
    """A run of whole SSE frames, all of them deltas, that arrived together; nobody decodes them."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Trailers:
    """The headers that follow a chunked body."""

    headers: Headers


@dataclass(frozen=True)
class Event:
    """One SSE frame, its exact bytes, read only when asked."""

    raw: bytes
    name: str = field(default="")  # of the `event:` line; empty where there is none

    @cached_property
    def data(self) -> bytes:
        """The frame's data: its `data:` lines joined by newlines, as the SSE standard says."""
        lines = self.raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))

    @cached_property
    def fields(self) -> jsonbytes.Fields:
        """The members of the frame's JSON object; empty where the data is no object (`[DONE]`, a comment)."""
        try:
            return jsonbytes.fields(self.data)
        except jsonbytes.NotJSON:
            return {}

    @cached_property
    def type(self) -> str:
        """The event's type: the `event:` line, else the data's own `type`, else `error` for a bare error object."""
        if self.name:
            return self.name
        named = jsonbytes.text(self.fields.get("type"))
        if named is None and jsonbytes.present(self.fields.get("error")):
            return "error"
        return named or ""

    @property
    def terminal(self) -> bool:
        """Whether the response is over with this event."""
        return self.type in TERMINAL

    @property
    def sequence_number(self) -> int | None:
        """The event's number in its stream, where it has one."""
        return jsonbytes.count(self.fields.get("sequence_number"))


Message = Head | Answer | Chunk | Frames | Event | Trailers


def encode(type_: str, data: bytes) -> Event:
    """A frame as vLLM and OpenAI spell it."""
    return Event(b"event: " + type_.encode() + b"\ndata: " + data + b"\n\n", type_)
