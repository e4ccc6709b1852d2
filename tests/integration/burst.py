"""Bursts: a gateway process over PostgreSQL, and clients that know what they asked for and what is due to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateways import Running, serving
from tests.integration.burst_backend import DONE, BurstBackend, cut, drawn
from tests.integration.gateway import Answer, Client

PATIENCE = 90.0  # seconds for all of a test; a failure only
JSON = ((b"Content-Type", b"application/json"),)
DATABASE_POOL = 10  # connections, at most
ASK = b"POST /v1/responses HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
MARK = re.compile(r"T\d+\.\d+T")  # of a turn
KINDS = ("alone", "unstored", "chained", "conversing")


@dataclass
class Turn:
    """One request, and what came of it."""

    mark: str
    kind: str
    stream: bool
    request: bytes
    named: tuple[bytes, bytes] | None = None  # the member that the gateway restores, and its value
    answer: Answer | None = None

    @property
    def id(self) -> str:
        return f"resp_{self.mark}"

    @property
    def wire(self) -> bytes:
        """The request as it is sent."""
        return ASK % len(self.request) + self.request

    @property
    def got(self) -> Answer:
        assert self.answer is not None, f"{self.mark} was never answered"
        return self.answer

    @property
    def stored(self) -> bool:
        return self.kind != "unstored"

    @property
    def completed(self) -> bool:
        """Whether the client was told that this turn is done."""
        if self.stream:
            return re.search(rb'(?m)^data: \{"type":"response\.completed"', self.got.body) is not None
        return self.got.status == 200

    def due(self, sent: bytes) -> bytes:
        """What the client is owed of these bytes of the backend: the same, with the name restored that it used."""
        if self.named is None:
            return sent
        name, value = self.named
        return sent.replace(b'"%b":null' % name, b'"%b":%b' % (name, value))


@dataclass
class Burst:
    """A running gateway and the backend behind it."""

    process: Running
    backend: BurstBackend
    turns: list[Turn] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.process.pid

    @property
    def port(self) -> int:
        return int(self.process.url.rpartition(":")[2])

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A connection of one client's own."""
        sock = socket.create_connection(("127.0.0.1", self.port))
        async with hearing(sock) as client:
            yield client

    async def ask(self, method: str, target: str, body: bytes = b"") -> Answer:
        """One request on a connection of its own."""
        async with self.client() as client:
            await client.send(method, target, body, JSON)
            return await client.answer(method)

    async def open_streams(self) -> float:
        """What the gateway says of itself."""
        lines = (await self.ask("GET", "/metrics")).body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("rejoinder_open_streams"))

    @property
    def files(self) -> int:
        """The gateway's open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def at_rest(self) -> int:
        """Its files and sockets when it keeps no connection to the backend any more."""
        await until(lambda: not self.backend.open, "the connections to the backend end")
        await self.ask("GET", "/healthz")
        return self.files

    async def check_closed(self, before: int) -> None:
        """No more is open than was at rest before; the database's pool alone may have grown."""
        await self.at_rest()
        await until(lambda: self.files <= before + DATABASE_POOL, f"{self.files} open files become {before}")
        assert await self.open_streams() == 0

    @property
    def rss(self) -> int:
        """The gateway's resident bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    async def deaf(self, turn: Turn, *, resets: bool = False) -> socket.socket:
        """Asks, and leaves the answer in the socket, which holds little of it."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        if resets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        await asyncio.get_running_loop().sock_sendall(sock, turn.wire)
        return sock

    async def check_kept(self, turn: Turn) -> None:
        """The turn can be read back, as JSON and as a stream, just as its client gets it."""
        said = self.backend.said[turn.mark]
        kept = await self.ask("GET", f"/v1/responses/{turn.id}")
        if not turn.stored:
            assert kept.status == 404, turn.mark
            return
        assert (kept.status, kept.body) == (200, turn.due(said.response))
        items = (await self.ask("GET", f"/v1/responses/{turn.id}/input_items")).json["data"]
        assert [marks_of([item]) for item in items] == [[turn.mark]]
        if turn.stream:
            replay = await self.ask("GET", f"/v1/responses/{turn.id}?stream=true")
            assert replay.body == turn.due(said.body.removesuffix(DONE)), turn.mark  # events; [DONE] is none

    async def check_each(self, turns: Iterable[Turn], check: Callable[[Turn], Awaitable[None]]) -> None:
        """Checks several at a time."""
        left = iter(turns)

        async def some() -> None:
            for turn in left:
                await check(turn)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(some())

    def check_answered(self, turn: Turn) -> None:
        """The client got exactly what the backend said to it, and nothing of anybody else's."""
        got, due = turn.got, turn.due(self.backend.said[turn.mark].body)
        assert (got.status, got.whole) == (200, True), (turn.mark, got.body)
        foreign = set(MARK.findall(got.body.decode())) - set(MARK.findall(due.decode()))
        assert not foreign, f"{turn.mark} was told what belongs to {foreign}"
        assert got.body == due, turn.mark


@dataclass
class Talker:
    """A client: one connection, a chain of responses and a conversation, and what the backend should see of them."""

    burst: Burst
    client: Client
    number: int
    conversation: str = ""
    last: str | None = None  # the newest response of the chain
    chain: list[str] = field(default_factory=list)  # the marks of its turns
    conversed: list[str] = field(default_factory=list)
    marks: Iterator[int] = field(default_factory=itertools.count)

    async def say(self, kind: str, stream: bool, *, words: str = "") -> Turn:
        """One turn, to the end of its answer."""
        turn = self.turn(kind, stream, words=words)
        await self.ask(turn)
        await self.hear(turn)
        return turn

    async def ask(self, turn: Turn, parts: int = 1) -> None:
        """Sends the request, in so many parts or fewer."""
        for part in cut(turn.wire, parts - 1, drawn(turn.mark, "request")):
            self.client.writer.write(part)
            await asyncio.sleep(0)

    async def hear(self, turn: Turn) -> None:
        """Takes the answer, to its end."""
        turn.answer = await self.client.answer("POST")
        self.burst.turns.append(turn)
        if turn.completed:
            self.note(turn)

    def turn(self, kind: str, stream: bool, *, odd: bool = False, words: str = "") -> Turn:
        mark = f"T{self.number}.{next(self.marks)}T"
        members: dict[str, Any] = {"model": "burst", "input": f"say {mark}{words}"}
        members["metadata"] = {"turn": mark, **({"odd": "1"} if odd and kind in ("alone", "unstored") else {})}
        named = None
        if kind == "unstored":
            members["store"] = False
        elif kind == "chained" and self.last is not None:
            members["previous_response_id"] = self.last
            named = (b"previous_response_id", json.dumps(self.last).encode())
        elif kind == "conversing":
            members["conversation"] = self.conversation
            named = (b"conversation", b'{"id":"%b"}' % self.conversation.encode())
        # A number's spelling and white space, as no encoder would make them again.
        request = json.dumps({**members, "stream": stream}, indent=1).encode()[:-2] + b',\n  "top_p" : 1.50e-0}'
        return Turn(mark, kind, stream, request, named)

    def note(self, turn: Turn) -> None:
        """Remembers a turn that is done: the next one continues it."""
        if turn.kind == "chained":
            self.last = turn.id
            self.chain.append(turn.mark)
        elif turn.kind == "conversing":
            self.conversed.append(turn.mark)

    def check_sent(self, turn: Turn) -> None:
        """The backend got the client's own bytes, or its words after the history that they continue."""
        sent = self.burst.backend.asked[turn.mark].body
        if turn.named is None:
            assert sent == turn.request
            return
        assert self.heard(turn) == [*self.told_before(turn), turn.mark]
        assert b'"top_p":1.50e-0' in sent.replace(b" ", b"")

    def told_before(self, turn: Turn) -> list[str]:
        """The turns that are done and that this one continues."""
        told = self.chain if turn.kind == "chained" else self.conversed
        return told[: told.index(turn.mark)] if turn.mark in told else told

    def heard(self, turn: Turn) -> list[str]:
        """The turns of the input that the backend got: what was said and what was answered, each time both."""
        marks = marks_of(json.loads(self.burst.backend.asked[turn.mark].body)["input"])
        assert marks[:-1:2] == marks[1::2], marks
        return marks[::2]


def marks_of(values: Iterable[Any]) -> list[str]:
    """The one mark that each of these holds, however often."""
    marks = [set(MARK.findall(json.dumps(value))) for value in values]
    assert all(len(each) == 1 for each in marks), marks
    return [each.pop() for each in marks]


@asynccontextmanager
async def bursting(folder: Path, store: str, *, keep_alive: float = 5.0, **sections: Any) -> AsyncIterator[Burst]:
    """A gateway process of the default chain; it must end well when it is told to, with no traceback in its log."""
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"telemetry": {"access_log": False}, **sections}))
    backend = BurstBackend(keep_alive=keep_alive)
    async with backend:
        flags = ["-c", str(config), "--backend", backend.url, "--store", store]
        with serving(*flags, folder=folder) as process, killed_on_failure(process):
            async with asyncio.timeout(PATIENCE):
                yield Burst(process, backend)
            assert process.stop() == 0, process.said()
            assert "Traceback" not in process.said(), process.said()


@contextlib.contextmanager
def killed_on_failure(process: Running) -> Iterator[None]:
    """A test that failed has no patience with streams that are still open."""
    try:
        yield
    except BaseException:
        process.process.kill()
        raise


@asynccontextmanager
async def hearing(sock: socket.socket) -> AsyncIterator[Client]:
    """A client that reads what comes, and has come, over this socket."""
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def talkers(burst: Burst, count: int, stack: contextlib.AsyncExitStack) -> list[Talker]:
    """That many clients, each with a conversation of its own."""
    made = []
    for number in range(count):
        client = await stack.enter_async_context(burst.client())
        talker = Talker(burst, client, number)
        talker.conversation = (await burst.ask("POST", "/v1/conversations", b"{}")).json["id"]
        made.append(talker)
    return made


async def standstill(burst: Burst, turns: Iterable[Turn]) -> None:
    """Waits while the backend still gets rid of something of its answers to these turns."""
    before, asked = -1, [burst.backend.asked[turn.mark] for turn in turns]
    while before != (now := sum(request.written for request in asked)):
        before = now
        await asyncio.sleep(0.2)


async def until(true: Callable[[], bool], what: str) -> None:
    """Returns once it is true; fails with `what` when it never is."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE / 3
    while not true():
        assert loop.time() < end, f"never: {what}"
        await asyncio.sleep(0.01)
