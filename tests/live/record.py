"""Takes the cassettes again: python -m tests.live.record http://127.0.0.1:8000 "flags the server was started with".

Each exchange goes over a fresh socket, so that a cassette holds what the server wrote and nothing a client library made
of it: the head, the body, the chunk borders, and whether the answer ended or was cut.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.cassettes import FOLDER
from tests.live.exchanges import EXCHANGES, Exchange


@dataclass(frozen=True)
class Answer:
    head: bytes
    chunks: list[bytes]
    ended: str


async def read_chunks(reader: asyncio.StreamReader) -> tuple[list[bytes], str]:
    chunks: list[bytes] = []
    try:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            chunks.append((await reader.readexactly(size + 2))[:-2])
    except asyncio.IncompleteReadError:
        return chunks, "cut"
    return chunks, "complete"


def header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


async def exchange(host: str, port: int, request: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if header(head, b"transfer-encoding") == b"chunked":
            chunks, ended = await read_chunks(reader)
            return Answer(head, chunks, ended)
        body = await reader.readexactly(int(header(head, b"content-length") or b"0"))
        return Answer(head, [body] if body else [], "complete")
    finally:
        writer.close()


def request_head(wanted: Exchange) -> str:
    lines = [f"{wanted.method} {wanted.path} HTTP/1.1", "Host: vllm", "Accept: */*"]
    if wanted.body is not None:
        lines += [f"Content-Type: {wanted.content_type}", f"Content-Length: {len(wanted.body.encode())}"]
    return "\r\n".join(lines) + "\r\n\r\n"


async def version(host: str, port: int) -> str:
    answer = await exchange(host, port, b"GET /version HTTP/1.1\r\nHost: vllm\r\n\r\n")
    return str(json.loads(answer.chunks[0])["version"])


async def record(base: str, flags: str) -> None:
    url = urlsplit(base)
    host, port = url.hostname or "127.0.0.1", url.port or 80
    source = {
        "recorded_from": f"a real vLLM {await version(host, port)} (CPU build), no proxy between",
        "date": datetime.date.today().isoformat(),
        "model": "SmolLM2-135M-Instruct, served as smollm2",
        "flags": flags,
    }
    for wanted in EXCHANGES:
        head = request_head(wanted)
        answer = await exchange(host, port, head.encode() + (wanted.body or "").encode())
        write(wanted, source, head, answer)
        print(f"{wanted.name}: {answer.head.split(b' ', 2)[1].decode()}, {len(answer.chunks)} chunks, {answer.ended}")


def write(wanted: Exchange, source: dict[str, str], head: str, answer: Answer) -> None:
    cassette: dict[str, Any] = {
        "shows": wanted.shows,
        **source,
        "request": {"head": head, "body": wanted.body or ""},
        "response": {
            "head": answer.head.decode("latin-1"),
            "chunks": [chunk.decode() for chunk in answer.chunks],
            "ended": answer.ended,
        },
    }
    path = FOLDER / f"{wanted.name}.json"
    path.write_text(json.dumps(cassette, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1], sys.argv[2]))
