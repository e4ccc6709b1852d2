"""Recordings of a real vLLM 0.32, one exchange a file; taken by tests/live/record.py, never edited by hand.

`response.chunks` keeps the borders of the chunked body as the server wrote them; `ended` is "cut" where the connection
closed without the last chunk. Text is UTF-8 (heads: latin-1) and stands for the exact bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Cassette:
    name: str
    request_head: bytes
    request_body: bytes
    status: int
    response_head: bytes
    chunks: tuple[bytes, ...]
    ended: str

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return sse_events(self.body)


def sse_events(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The events of a body framed as vLLM frames it: one event line, one data line, one blank line."""
    events = []
    for frame in body.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def load(name: str) -> Cassette:
    raw = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    head = raw["response"]["head"].encode("latin-1")
    return Cassette(
        name=name,
        request_head=raw["request"]["head"].encode("latin-1"),
        request_body=raw["request"]["body"].encode(),
        status=int(head.split(b" ", 2)[1]),
        response_head=head,
        chunks=tuple(chunk.encode() for chunk in raw["response"]["chunks"]),
        ended=raw["response"]["ended"],
    )


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))
