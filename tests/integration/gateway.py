"""The gateway in the test's own loop, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy import app, config
from tests.backend import ScriptedVLLM


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Gateway:
    """A running gateway and the scripted backend behind it."""

    port: int
    backend: ScriptedVLLM
    app: app.App

    def body(self, **members: Any) -> bytes:
        return json.dumps({"model": "smollm2", **members}).encode()

    async def create(self, owner: str | None = None, **members: Any) -> Answer:
        """POST /v1/responses."""
        return await self.ask("POST", "/v1/responses", self.body(**members), owner=owner)

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        headers: tuple[tuple[bytes, bytes], ...] = ((b"Content-Type", b"application/json"),),
        owner: str | None = None,
    ) -> Answer:
        """One request on a connection of its own; the whole answer."""
        async with self.client() as client:
            if owner is not None:
                headers += ((b"X-Rejoinder-Owner", owner.encode()),)
            await client.send(method, target, body, headers)
            return await client.answer(method)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


@dataclass
class Answer:
    """An answer as it came over the wire, its chunks put together."""

    head: bytes
    body: bytes
    raw: bytes
    trailers: bytes = b""
    whole: bool = True

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    def headers(self, name: bytes) -> list[bytes]:
        lines = [line.partition(b":") for line in self.head.split(b"\r\n")[1:]]
        return [value.strip() for key, _, value in lines if key.lower() == name]

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.body.replace(b"\r\n", b"\n").split(b"\n")
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    @property
    def final(self) -> dict[str, Any]:
        """The last event of a stream."""
        return self.events[-1]


@dataclass
class Client:
    """A connection on which requests are written and answers are read byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytearray = field(default_factory=bytearray)

    async def send(self, method: str, target: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        lines = [f"{method} {target} HTTP/1.1".encode(), b"Host: gateway"]
        lines += [name + b": " + value for name, value in headers]
        if body or method == "POST":
            lines.append(b"Content-Length: %d" % len(body))
        self.writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def until(self, mark: bytes) -> bytes:
        """Reads on until `mark` has come."""
        while mark not in self.received:
            data = await self.reader.read(65536)
            assert data, f"the connection ended before {mark!r}: {bytes(self.received)!r}"
            self.received += data
        return bytes(self.received)

    async def rest(self) -> bytes:
        while data := await self.reader.read(65536):
            self.received += data
        return bytes(self.received)

    async def answer(self, method: str = "GET") -> Answer:
        """One whole answer, by its own framing."""
        await self.until(b"\r\n\r\n")
        head, _, _ = bytes(self.received).partition(b"\r\n\r\n")
        answer = Answer(head, b"", b"")
        start = len(head) + 4
        if method == "HEAD" or answer.status in (204, 304):
            body, end, trailers, whole = b"", start, b"", True
        elif b"chunked" in b"".join(answer.headers(b"transfer-encoding")):
            body, end, trailers, whole = await self._chunks(start)
        elif lengths := answer.headers(b"content-length"):
            body, end, whole = await self._sized(start, int(lengths[0]))
            trailers = b""
        else:
            await self.rest()
            body, end, trailers, whole = bytes(self.received[start:]), len(self.received), b"", True
        raw = bytes(self.received[:end])
        del self.received[:end]
        return Answer(head, body, raw, trailers, whole)

    async def _sized(self, start: int, length: int) -> tuple[bytes, int, bool]:
        while len(self.received) < start + length:
            data = await self.reader.read(65536)
            if not data:
                return bytes(self.received[start:]), len(self.received), False
            self.received += data
        return bytes(self.received[start : start + length]), start + length, True

    async def _chunks(self, at: int) -> tuple[bytes, int, bytes, bool]:
        parts: list[bytes] = []
        while True:
            line_end = await self._find(b"\r\n", at)
            if line_end < 0:
                return b"".join(parts), len(self.received), b"", False
            size = int(bytes(self.received[at:line_end]), 16)
            at = line_end + 2
            if size == 0:
                end = await self._find(b"\r\n\r\n", at - 2)
                return b"".join(parts), end + 4, bytes(self.received[at : max(at, end)]), end >= 0
            body, at, whole = await self._sized(at, size)
            parts.append(body)
            if not whole:
                return b"".join(parts), at, b"", False
            at += 2

    async def _find(self, mark: bytes, at: int) -> int:
        while (found := self.received.find(mark, at)) < 0:
            try:
                data = await self.reader.read(65536)
            except ConnectionResetError:
                return -1
            if not data:
                return -1
            self.received += data
        return found


@asynccontextmanager
async def running(server: ScriptedVLLM, store_url: str, **sections: Any) -> AsyncIterator[Gateway]:
    """A gateway of the default chain in front of `server`; `sections` are those of the YAML file."""
    port = free_port()
    listener = {"address": f"127.0.0.1:{port}", **sections.pop("listener", {})}
    data = {
        "listeners": [listener],
        "backends": {"default": {"endpoints": [server.url], **sections.pop("backend", {})}},
        "store": {"url": store_url, **sections.pop("store", {})},
        "telemetry": {"access_log": False},
        **sections,
    }
    instance = app.App(app.blueprint(config.parse(data, "test")))
    async with instance.running():
        yield Gateway(port, server, instance)


def chain(**options: dict[str, Any]) -> dict[str, Any]:
    """The default chain with some filters' options set."""
    entries = [{"filter": name, **options.get(name, {})} for name in config.DEFAULT_CHAIN]
    return {"chains": {"default": entries}}


OWNERS = chain(owner={"mode": "trusted_header"})
