"""The backend of `benchmarks.turns`: answers were made beforehand, and only their ids differ.

    python -m benchmarks.canned PORT

The model says how: `canned` answers 200 tokens at once, `canned-GAP-N` streams N of them with an event every GAP
milliseconds, the first at once. GET /last returns the body of the last turn, as it arrived.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import re
import secrets
import sys
from collections.abc import Iterator
from typing import cast

import uvloop

from benchmarks.frames import message, response, text_round

TOKENS = 200
_MARK = "@" * 16  # where the number of an answer goes
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_MODEL = re.compile(rb"canned-(\d+)-(\d+)")
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"canned","object":"model"}]}'

Pieces = list[bytes]  # of one answer, to be joined by its number

last = b""
numbers: Iterator[bytes] = map((secrets.token_hex(4).encode() + b"%08x").__mod__, itertools.count())


def pieces(raw: bytes) -> Pieces:
    return raw.split(_MARK.encode())


@functools.cache
def json_answer() -> Pieces:
    said = response(f"resp_{_MARK}", "completed", [message(f"msg_{_MARK}", TOKENS)])
    body = json.dumps(said, separators=(",", ":")).encode()
    return pieces(_OK % len(body) + body)


@functools.cache
def frames(tokens: int) -> list[Pieces]:
    return [pieces(each) for each in text_round(f"resp_{_MARK}", tokens, f"msg_{_MARK}")]


@functools.cache
def stream_at_once() -> Pieces:
    return pieces(_STREAM + b"".join(text_round(f"resp_{_MARK}", TOKENS, f"msg_{_MARK}")) + _END)


class Backend(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.held = b""

    def data_received(self, data: bytes) -> None:
        self.held += data
        while (head := self.held.find(b"\r\n\r\n") + 4) > 3:
            end = self._end(head)
            if end < 0 or len(self.held) < end:
                return
            whole, self.held = self.held[:end], self.held[end:]
            self._answer(whole, head)

    def _end(self, head: int) -> int:
        if found := _LENGTH.search(self.held, 0, head):
            return head + int(found[1])
        if not _CHUNKED.search(self.held, 0, head):
            return head
        last_chunk = self.held.find(_END, head)
        return last_chunk if last_chunk < 0 else last_chunk + len(_END)

    def _answer(self, whole: bytes, head: int) -> None:
        if whole.startswith(b"GET"):
            body = last if whole.startswith(b"GET /last ") else _MODELS
            self.transport.write(_OK % len(body) + body)
        else:
            self._turn(whole, head)

    def _turn(self, whole: bytes, head: int) -> None:
        global last  # noqa: PLW0603
        last = whole[head:]
        number = next(numbers)
        if not (b'"stream":true' in last or b'"stream": true' in last):
            self.transport.write(number.join(json_answer()))
        elif paced := _MODEL.match(last, last.find(b"canned")):
            Paced(self.transport, number, int(paced[1]) / 1e3, frames(int(paced[2]))).step()
        else:
            self.transport.write(number.join(stream_at_once()))


class Paced:
    """A stream that sends an event at each of its times."""

    def __init__(self, transport: asyncio.Transport, number: bytes, gap: float, events: list[Pieces]) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport, self.number, self.gap = transport, number, gap
        self.events = iter(events)
        self.due = self.loop.time()
        transport.write(_STREAM)

    def step(self) -> None:
        if self.transport.is_closing():
            return
        event = next(self.events, None)
        if event is None:
            self.transport.write(_END)
            return
        self.transport.write(self.number.join(event))
        self.due += self.gap
        self.loop.call_at(self.due, self.step)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
