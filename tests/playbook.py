"""Filters played like scripts: what the backend says on one side, what the client hears on the other.

`play(filters, turn, *steps)` runs a chain over a scripted backend. A step is a message to send, an exception to raise,
or an event to wait for. The result holds every turn that reached the backend, every message that reached the client,
and the error that came out, if one did.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.chain import Filter, compose, deltas_of
from proxy.errors import ProxyError
from proxy.protocol.events import Answer, Event, Frames, Head, Message, encode
from proxy.protocol.headers import Headers
from proxy.protocol.records import Owner
from proxy.protocol.sse import frames
from proxy.protocol.turn import Body, Operation, Turn

JSON: Headers = ((b"content-type", b"application/json"),)
SSE: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"),)

Step = Message | BaseException | asyncio.Event


@dataclass
class Played:
    """What became of one turn."""

    steps: Sequence[Step]
    turns: list[Turn] = field(default_factory=list)
    heard: list[Message] = field(default_factory=list)
    error: ProxyError | None = None
    waiting: asyncio.Event = field(default_factory=asyncio.Event)  # the backend has come to an event

    async def backend(self, turn: Turn, send: Any) -> None:
        """The innermost link."""
        self.turns.append(turn)
        for step in self.steps:
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, asyncio.Event):
                self.waiting.set()
                await step.wait()
            elif isinstance(step, Frames):  # as the relay sends them
                rest = deltas_of(send)(step.raw)
                if rest is not None:
                    await rest
            else:
                await send(step)

    async def client(self, message: Message) -> None:
        """The outermost `send`."""
        self.heard.append(message)

    @property
    def turn(self) -> Turn:
        """The one turn that reached the backend."""
        (turn,) = self.turns
        return turn

    @property
    def sent(self) -> Any:
        """The body that reached the backend, decoded."""
        return json.loads(self.turn.body.raw)

    @property
    def body(self) -> Any:
        """The JSON answer that reached the client, decoded."""
        (answer,) = self.heard
        assert isinstance(answer, Answer)
        return json.loads(answer.body)

    @property
    def events(self) -> list[Event]:
        """The events that reached the client, runs of deltas taken apart."""
        parts = [part for part in self.heard if isinstance(part, Event | Frames)]
        return [one for part in parts for one in (frames(part.raw) if isinstance(part, Frames) else [part])]

    @property
    def types(self) -> list[str]:
        """Their types."""
        return [event.type for event in self.events]


async def play(filters: Sequence[Filter], turn: Turn, *steps: Step | Iterable[Step]) -> Played:
    """Runs one turn; a `ProxyError` ends in `error`, anything else is raised."""
    flat = [one for step in steps for one in (step if isinstance(step, list | tuple) else [step])]
    played = Played(flat)
    await run(filters, turn, played)
    return played


async def run(filters: Sequence[Filter], turn: Turn, played: Played) -> None:
    """Runs one turn into a record that the test already holds."""
    try:
        await compose(filters, played.backend)(turn, played.client)
    except ProxyError as error:
        played.error = error


def post(
    body: bytes | dict[str, Any], *, owner: str = "ann", operation: Operation = Operation.CREATE, **changes: Any
) -> Turn:
    """A turn as the listener makes it; given a dict, in compact JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    turn = Turn("POST", b"/v1/responses", "/v1/responses", JSON, operation, Body(raw), Owner(owner))
    return turn.replace(**changes)


# What a backend says


def said(text: str, id_: str = "msg_1") -> bytes:
    """An assistant's message."""
    return (
        b'{"id":"%b","type":"message","role":"assistant","status":"completed",'
        b'"content":[{"type":"output_text","text":%b,"annotations":[] }]}' % (id_.encode(), json.dumps(text).encode())
    )


def called(call_id: str, id_: str | None = None) -> bytes:
    """A function call."""
    return b'{"id":"%b","type":"function_call","call_id":"%b","name":"f","arguments":"{}","status":"completed"}' % (
        (id_ or f"fc_{call_id}").encode(),
        call_id.encode(),
    )


def response(id_: str, *items: bytes, status: str = "completed") -> bytes:
    """A response object; its spelling is odd on purpose."""
    return (
        b'{"id":"%b", "object":"response","created_at":1700000000,"status":"%b","temperature":1.50,"output":[%b]}'
        % (
            id_.encode(),
            status.encode(),
            b", ".join(items),
        )
    )


def answer(id_: str, *items: bytes, status: str = "completed", headers: Headers = JSON) -> Answer:
    """A JSON answer."""
    return Answer(200, b"OK", headers, response(id_, *items, status=status))


def event(type_: str, number: int, **members: bytes) -> Event:
    """One event."""
    fields = b"".join(b',"%b":%b' % (name.encode(), raw) for name, raw in members.items())
    return encode(type_, b'{"type":"%b","sequence_number":%d%b}' % (type_.encode(), number, fields))


def delta(number: int, text: str = "x", index: int = 0) -> bytes:
    """The bytes of one delta."""
    members = {"output_index": str(index).encode(), "item_id": b'"msg_1"', "delta": json.dumps(text).encode()}
    return event("response.output_text.delta", number, **members).raw


def opening(id_: str) -> list[Message]:
    """The head and the first two events of a stream."""
    begun = response(id_, status="in_progress")
    created, progress = (
        event(f"response.{name}", n, response=begun) for n, name in enumerate(("created", "in_progress"))
    )
    return [Head(200, b"OK", SSE, events=True), created, progress]


def items_of(*items: bytes, number: int = 2) -> list[Message]:
    """The events of some items, each with two deltas."""
    messages: list[Message] = []
    for index, item in enumerate(items):
        at = number + index * 4
        place = str(index).encode()
        messages += [
            event("response.output_item.added", at, output_index=place, item=item),
            Frames(delta(at + 1, "a", index) + delta(at + 2, "b", index)),
            event("response.output_item.done", at + 3, output_index=place, item=item),
        ]
    return messages


def streamed(id_: str, *items: bytes, status: str = "completed") -> list[Message]:
    """A whole stream."""
    last = event(f"response.{status}", 2 + 4 * len(items), response=response(id_, *items, status=status))
    return [*opening(id_), *items_of(*items), last]
