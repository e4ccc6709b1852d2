"""The load: connections that ask again as soon as they were answered. A process of its own.

    python -m benchmarks.load '{"url": "http://127.0.0.1:8080/v1", "body": {…}, "connections": 16, "seconds": 6}'

Each connection asks for `seconds`, after `warm` seconds that do not count; with 0 seconds it asks once. They begin
within `spread` seconds of each other. `pid` names the process whose family's CPU and memory are told too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.processes import cpu_seconds, resident_kib

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END = b"\r\n0\r\n\r\n"
_STREAM_DONE = [b"event: response.completed\n"]
_JSON_DONE = [b'"status":"completed"', b'"status": "completed"']
_GRACE = 120.0  # seconds for what is still being answered


@dataclass
class Job:
    """What to do."""

    url: str
    body: dict[str, Any]
    connections: int
    seconds: float
    warm: float = 0.0
    spread: float = 0.0
    pid: int | None = None

    def command(self) -> list[str]:
        """What does it in a process of its own, run from the root of the project."""
        return [sys.executable, "-m", "benchmarks.load", json.dumps(asdict(self))]

    def place(self) -> tuple[str, int]:
        split = urlsplit(self.url)
        return split.hostname or "127.0.0.1", split.port or 80

    def request(self) -> bytes:
        body = json.dumps(self.body, separators=(",", ":")).encode()
        path = (urlsplit(self.url).path.rstrip("/") or "/v1") + "/responses"
        head = f"POST {path} HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\nContent-Type: application/json\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass
class Outcome:
    """What happened."""

    counts_from: float
    until: float | None
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    errors: int = 0
    error: str = ""

    def answered(self, began: float, first: float) -> None:
        now = time.perf_counter()
        if began >= self.counts_from and (self.until is None or now <= self.until):
            self.first.append(first - began)
            self.whole.append(now - began)

    def failed(self, why: str) -> None:
        self.errors += 1
        self.error = self.error or why


class Connection(asyncio.Protocol):
    """Asks, reads the answer, asks again."""

    def __init__(self, request: bytes, outcome: Outcome) -> None:
        self.request, self.outcome = request, outcome
        self.done = _STREAM_DONE if b'"stream":true' in request else _JSON_DONE
        self.over = asyncio.get_running_loop().create_future()
        self.seen = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.outcome.failed(f"cut after {bytes(self.seen[:200])!r}: {error}")
            self.over.set_result(False)

    def _ask(self) -> None:
        self.began, self.first = time.perf_counter(), 0.0
        self.end = -1  # where the answer ends; 0 where a last chunk tells
        self.seen.clear()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.seen += data
        if not self.first and b"data: " in data:
            self.first = time.perf_counter()
        if self.end < 0:
            self._read_head()
        if self.seen.endswith(_END) if self.end == 0 else 0 < self.end <= len(self.seen):
            self._answered()

    def _read_head(self) -> None:
        head = self.seen.find(b"\r\n\r\n") + 4
        if head > 3:
            found = _LENGTH.search(self.seen, 0, head)
            self.end = head + int(found[1]) if found else 0

    def _answered(self) -> None:
        if self.seen.startswith(b"HTTP/1.1 200 ") and any(self.seen.rfind(each) > 0 for each in self.done):
            self.outcome.answered(self.began, self.first or time.perf_counter())
        else:
            self.outcome.failed(bytes(self.seen[-300:]).decode(errors="replace"))
        if self.outcome.until is None or time.perf_counter() > self.outcome.until:
            self.over.set_result(True)
            self.transport.close()
        else:
            self._ask()


async def hold(job: Job, outcome: Outcome, delay: float) -> None:
    """One connection, and another after it if it is lost too early."""
    await asyncio.sleep(delay)
    loop, over = asyncio.get_running_loop(), False
    while not over:
        try:
            connection = (await loop.create_connection(lambda: Connection(job.request(), outcome), *job.place()))[1]
            over = await connection.over
        except OSError as error:
            outcome.failed(str(error))
        over = over or outcome.until is None or time.perf_counter() > outcome.until
        await asyncio.sleep(0 if over else 0.1)


async def watch(pid: int, seen: list[int], outcome: Outcome) -> None:
    """Looks at the memory while every stream is open: until the first one ends."""
    while not outcome.whole:
        seen.append(resident_kib(pid))
        await asyncio.sleep(0.25)


async def run(job: Job) -> dict[str, Any]:
    """Does the job, and tells what happened: times in milliseconds."""
    begin = time.perf_counter()
    outcome = Outcome(begin + job.warm, begin + job.warm + job.seconds if job.seconds else None)
    resident = [resident_kib(job.pid)] if job.pid else []
    used = cpu_seconds(job.pid) if job.pid else 0.0
    async with asyncio.timeout(job.warm + job.seconds + job.spread + _GRACE), asyncio.TaskGroup() as group:
        watching = group.create_task(watch(job.pid, resident, outcome)) if job.pid else None
        async with asyncio.TaskGroup() as holding:
            for number in range(job.connections):
                holding.create_task(hold(job, outcome, job.spread * number / job.connections))
        if watching:
            watching.cancel()
    told: dict[str, Any] = summary(job, outcome)
    if job.pid:
        told["cpu_seconds"] = cpu_seconds(job.pid) - used
        told["grown_kib"] = max(resident) - resident[0]
    return told


def summary(job: Job, outcome: Outcome) -> dict[str, Any]:
    told: dict[str, Any] = {"turns": len(outcome.whole), "errors": outcome.errors, "error": outcome.error}
    if job.seconds:
        told["per_second"] = len(outcome.whole) / job.seconds
    for name, times in (("first", sorted(outcome.first)), ("whole", sorted(outcome.whole))):
        for label, share in (("p50", 0.50), ("p99", 0.99)):
            told[f"{name}_{label}"] = times[int(len(times) * share)] * 1e3 if times else None
    return told


if __name__ == "__main__":
    gc.disable()
    sys.stdout.write(json.dumps(uvloop.run(run(Job(**json.loads(sys.argv[1]))))))
