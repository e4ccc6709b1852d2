"""Rounds as a backend spells them, and what must hold of the one stream that is made of them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.chain import Filter
from proxy.protocol.events import TERMINAL, Answer, Event, Frames, Head
from proxy.protocol.headers import Headers
from proxy.protocol.sse import Decoder
from proxy.protocol.sse import frames as taken_apart
from proxy.protocol.turn import Turn
from tests.playbook import JSON, SSE, Played, Step, run

COMPACT, SPACED, WIDE = (",", ":"), (", ", ": "), (" , ", " : ")


def message(id_: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": id_, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def reasoning(id_: str, text: str) -> dict[str, Any]:
    return {"id": id_, "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def a_call(name: str, call_id: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}
    return {"id": f"fc_{call_id}", **item, **more}


def custom(name: str, call_id: str, text: str = "x") -> dict[str, Any]:
    return {"id": f"ctc_{call_id}", "type": "custom_tool_call", "call_id": call_id, "name": name, "input": text}


@dataclass
class Wire:
    """How a backend spells its stream."""

    separators: tuple[str, str] = COMPACT
    newline: bytes = b"\n"
    numbered: bool = True
    first: int = 0
    comments: bool = False
    done: bool = False
    _number: int = field(default=0, init=False)

    def round(self, id_: str, items: Sequence[dict[str, Any]], *, usage: Any = None, type_: str = "completed") -> bytes:
        """A whole round."""
        self._number = self.first
        base = {"id": id_, "object": "response", "created_at": 7, "model": "m", "tools": [], "output": []}
        base["tool_choice"] = "auto"
        parts = [
            self.event(f"response.{t}", response={**base, "status": "in_progress"}) for t in ("created", "in_progress")
        ]
        for index, item in enumerate(items):
            parts += self._item(index, item)
        final = {**base, "status": type_, "output": list(items), "usage": usage}
        parts.append(self.event(f"response.{type_}", response=final))
        if self.comments:
            parts = [part for each in parts for part in (b": ping" + self.newline * 2, each)]
        return b"".join(parts) + (b"data: [DONE]" + self.newline * 2 if self.done else b"")

    def event(self, type_: str, **members: Any) -> bytes:
        """One frame."""
        number = {"sequence_number": self._number} if self.numbered else {}
        self._number += 1
        data = json.dumps({"type": type_, **members, **number}, separators=self.separators).encode()
        return b"event: " + type_.encode() + self.newline + b"data: " + data + self.newline * 2

    def _item(self, index: int, item: dict[str, Any]) -> list[bytes]:
        name = _TEXTS.get(item["type"])
        begun = {**item, "content": []} if name is None else {**item, name[1]: "", "status": "in_progress"}
        parts = [self.event("response.output_item.added", output_index=index, item=begun)]
        place = {"output_index": index, "item_id": item["id"]}
        parts += self._parts(place, item) if name is None else self._plain(place, *name, item[name[1]])
        return [*parts, self.event("response.output_item.done", output_index=index, item=item)]

    def _plain(self, place: dict[str, Any], kind: str, member: str, text: str) -> list[bytes]:
        parts = [self.event(f"response.{kind}.delta", **place, delta=piece) for piece in halves(text)]
        return [*parts, self.event(f"response.{kind}.done", **place, **{member: text})]

    def _parts(self, place: dict[str, Any], item: dict[str, Any]) -> list[bytes]:
        place = {**place, "content_index": 0}
        part = item["content"][0]
        kind = "output_text" if item["type"] == "message" else "reasoning_text"
        parts = [self.event("response.content_part.added", **place, part={**part, "text": ""})]
        parts += self._plain(place, kind, "text", part["text"])
        return [*parts, self.event("response.content_part.done", **place, part=part)]


_TEXTS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}


def halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]]


def read(raw: bytes, cuts: Iterable[int] = ()) -> list[Event | Frames]:
    """The bytes as the decoder hands them on, when they come in these pieces."""
    decoder, found, at = Decoder(), [], 0
    for cut in [*sorted({cut for cut in cuts if 0 < cut < len(raw)}), len(raw)]:
        found += decoder.feed(raw[at:cut])
        at = cut
    found += decoder.end()
    assert not decoder.rest()
    return found


def one_by_one(parts: Iterable[Any]) -> list[Event]:
    """The events of a stream, runs of deltas taken apart."""
    kept = [part for part in parts if isinstance(part, Event | Frames)]
    return [one for part in kept for one in (taken_apart(part.raw) if isinstance(part, Frames) else [part])]


def check(events: Sequence[Event], functions: Iterable[str] = ()) -> dict[str, Any]:
    """What must hold of every composed stream; gives its final response."""
    data = [json.loads(event.data) for event in events if event.data and event.data != b"[DONE]"]
    assert [each["sequence_number"] for each in data] == list(range(len(data)))
    assert [each["type"] for each in data] == [event.type for event in events if event.type]
    lifecycle = [each for each in data if "response" in each]
    assert len({each["response"]["id"] for each in lifecycle}) == 1
    assert [each["type"] for each in lifecycle].count("response.created") == 1
    assert [each["type"] in TERMINAL for each in data].count(True) == 1
    assert data[-1]["type"] in TERMINAL
    done = _items(data)
    final: dict[str, Any] = data[-1]["response"]
    assert final["output"] == done
    shown = {(item["type"], item.get("name"), bool(item.get("namespace"))) for item in done}
    assert not {("function_call", name, False) for name in functions} & shown
    return final


def _items(data: Sequence[dict[str, Any]]) -> list[Any]:
    done: list[Any] = []
    current: dict[str, Any] | None = None
    streamed = ""
    for each in data:
        if each["type"] == "response.output_item.added":
            assert current is None, "items are never interleaved"
            current, streamed = each["item"], ""
            assert each["output_index"] == len(done)
        elif each["type"] == "response.output_item.done":
            assert current is not None
            assert (each["item"]["id"], each["item"]["type"]) == (current["id"], current["type"])
            assert each["output_index"] == len(done)
            assert streamed in ("", _text(each["item"]))
            done.append(each["item"])
            current = None
        elif "item_id" in each:
            assert current is not None
            assert (each["item_id"], each["output_index"]) == (current["id"], len(done))
            streamed += each["delta"] if each["type"].endswith(".delta") else ""
    assert current is None, "every item is finished"
    return done


def _text(item: dict[str, Any]) -> Any:
    plain = item.get("arguments", item.get("input"))
    return item["content"][0]["text"] if plain is None and "content" in item else plain


# Turns of several rounds, played


@dataclass
class Rounded(Played):
    """A turn whose backend has a script for each round."""

    scripts: deque[Sequence[Step]] = field(default_factory=deque)

    async def backend(self, turn: Turn, send: Any) -> None:
        """The innermost link."""
        self.steps = self.scripts.popleft()
        await super().backend(turn, send)

    @property
    def sent_all(self) -> list[Any]:
        """The bodies that reached the backend, decoded."""
        return [json.loads(turn.body.raw) for turn in self.turns]

    @property
    def data(self) -> list[Any]:
        """The data of the events that reached the client, decoded."""
        return [json.loads(event.data) for event in self.events if event.data and event.data != b"[DONE]"]

    @property
    def final(self) -> Any:
        """The last response that reached the client, as JSON or in a stream; a stream's is checked."""
        answers = [message for message in self.heard if isinstance(message, Answer)]
        return json.loads(answers[0].body) if answers else check(self.events)

    @property
    def output(self) -> list[str]:
        """The types of its items."""
        return [item["type"] for item in self.final["output"]]


async def play_rounds(filters: Sequence[Filter], turn: Turn, *scripts: Sequence[Step]) -> Rounded:
    """Runs one turn; a `ProxyError` ends in `error`, anything else is raised."""
    played = Rounded((), scripts=deque(scripts))
    await run(filters, turn, played)
    return played


def a_stream(id_: str, *items: dict[str, Any], wire: Wire | None = None, **options: Any) -> list[Step]:
    """A round as a stream."""
    head = Head(200, b"OK", SSE, events=True)
    return [head, *read((wire or Wire()).round(id_, items, **options))]


def an_answer(id_: str, *items: dict[str, Any], status: str = "completed", headers: Headers = JSON) -> list[Step]:
    """A round as a JSON answer."""
    whole = {"id": id_, "object": "response", "status": status, "output": items, "usage": {"input_tokens": 3}}
    return [Answer(200, b"OK", headers, json.dumps({**whole, "tools": []}).encode())]


def a_round(stream: bool, id_: str, *items: dict[str, Any]) -> list[Step]:
    """A round, either way."""
    return a_stream(id_, *items, usage={"input_tokens": 3}) if stream else an_answer(id_, *items)
