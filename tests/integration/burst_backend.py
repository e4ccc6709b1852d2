"""A backend for bursts: every answer carries its turn's mark in each frame, and is written in the turn's own pieces.

A turn is known by `metadata.turn` of its request. Everything about its answer is drawn from that mark, so a run can be
repeated; what was said is kept, for the test to compare with what the client got.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.backend import Exchange, Received, Script, ScriptedVLLM

DONE = b"data: [DONE]\n\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
SPICES = ("", " é", " 𝄞", " \\", ' "', "\u2028")


@dataclass(frozen=True)
class Said:
    """What the backend has to say to one turn."""

    mark: str
    response: bytes  # the finished response object
    frames: tuple[bytes, ...] = ()  # of a stream; its last but one is the terminal event

    @property
    def body(self) -> bytes:
        return b"".join(self.frames) or self.response

    def wire(self) -> bytes:
        """The whole answer, a chunk for each frame."""
        if not self.frames:
            return JSON_HEAD % len(self.response) + self.response
        return EVENTS + b"".join(map(chunk, self.frames)) + LAST_CHUNK


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def frame(type_: str, number: int, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        type_.encode(),
        compact({"type": type_, "sequence_number": number, **members}),
    )


def drawn(mark: str, purpose: str) -> random.Random:
    """Chance that is the same in every run."""
    return random.Random(f"{mark} {purpose}")


def answer_to(mark: str, body: dict[str, Any]) -> Said:
    """The answer to the turn of that mark; odd spellings where nothing of it need be rewritten by the gateway."""
    chance = drawn(mark, "words")
    words = [f" {mark}:{n}" + chance.choice(SPICES) for n in range(chance.randint(3, 40))]
    item = {"id": f"msg_{mark}", "type": "message", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": "".join(words), "annotations": []}
    done = {**item, "content": [part]}
    response = lifecycle(mark, "completed", [done])
    if not body.get("stream"):
        return Said(mark, compact(response))
    at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    begun = lifecycle(mark, "in_progress", [])
    steps: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": begun}),
        ("in_progress", {"response": begun}),
        ("output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}}),
        ("content_part.added", {**at, "part": {**part, "text": ""}}),
        *(("output_text.delta", {**at, "delta": word, "logprobs": []}) for word in words),
        ("output_text.done", {**at, "text": part["text"], "logprobs": []}),
        ("content_part.done", {**at, "part": part}),
        ("output_item.done", {"output_index": 0, "item": done}),
        ("completed", {"response": response}),
    ]
    frames = [frame(f"response.{kind}", number, **members) for number, (kind, members) in enumerate(steps)]
    if body["metadata"].get("odd"):
        frames = list(odd(frames, mark))
    return Said(mark, compact(response), (*frames, DONE))


def lifecycle(mark: str, status: str, output: list[Any]) -> dict[str, Any]:
    named = {"previous_response_id": None, "conversation": None}
    return {"id": f"resp_{mark}", "object": "response", "created_at": 1, "status": status, "output": output, **named}


def odd(frames: list[bytes], mark: str) -> Iterable[bytes]:
    """The same stream as other servers might spell it: other newlines, comments, events of their own."""
    chance = drawn(mark, "spelling")
    newline = chance.choice([b"\n", b"\r\n", b"\r"])
    for each in frames:
        if chance.random() < 0.2:
            yield b": %b is still thinking%b%b" % (mark.encode(), newline, newline)
        if chance.random() < 0.1:
            yield b"event: vendor.note%bdata: %b%bdata:  two lines%b%b" % (newline, mark.encode(), *[newline] * 3)
        yield each.replace(b"\n", newline)


def pieces(said: Said) -> list[bytes]:
    """The wire's bytes as they will be written: whole, frame by frame, cut anywhere, or a few bytes at a time."""
    chance = drawn(said.mark, "pieces")
    manner = chance.choice(["whole", "frames", "anywhere", "crumbs"])
    if manner == "whole":
        return [EVENTS + chunk(said.body) + LAST_CHUNK if said.frames else said.wire()]
    if manner == "frames":
        return [EVENTS, *map(chunk, said.frames), LAST_CHUNK] if said.frames else [said.wire()]
    if manner == "anywhere" and said.frames:
        wire = EVENTS + b"".join(map(chunk, cut(said.body, chance.randint(1, 30), chance))) + LAST_CHUNK
    else:
        wire = said.wire()
    return cut(wire, chance.randint(1, 30) if manner == "anywhere" else len(wire) // 24, chance)


def cut(data: bytes, count: int, chance: random.Random) -> list[bytes]:
    """The data in up to that many more parts, cut at random."""
    places = sorted({0, len(data), *(chance.randrange(1, len(data)) for _ in range(count))})
    return [data[start:end] for start, end in itertools.pairwise(places)]


class BurstBackend(ScriptedVLLM):
    """`async with BurstBackend() as backend:`; `backend.act` makes the script of an answer."""

    def __init__(self, *, keep_alive: float = 5.0) -> None:
        super().__init__(keep_alive=keep_alive)
        self.said: dict[str, Said] = {}
        self.asked: dict[str, Received] = {}  # the newest request of each turn
        self.act: Callable[[Said], Script] = usual

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    def _script_for(self, request: Received) -> Script:
        body = json.loads(request.body)
        mark = body["metadata"]["turn"]
        self.asked[mark] = request
        self.said[mark] = said = answer_to(mark, body)
        return self.act(said)


def usual(said: Said) -> Script:
    """The whole answer, in its pieces."""

    async def run(exchange: Exchange) -> None:
        for piece in pieces(said):
            await exchange.write(piece)
            await asyncio.sleep(0)

    return run


def at_once(said: Said) -> Script:
    """The whole answer in one write."""

    async def run(exchange: Exchange) -> None:
        await exchange.write(said.wire())

    return run
