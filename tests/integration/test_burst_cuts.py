"""Clients that leave and a backend that hangs up, under load: the other side learns of it, and nothing is made up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.backend import Exchange, Script
from tests.integration.burst import KINDS, Burst, Talker, Turn, bursting, standstill, talkers, until
from tests.integration.burst_backend import EVENTS, Said, chunk, drawn, frame, usual

WAYS = ("unanswered", "silent", "pouring")


class Endless:
    """A backend whose answers to some turns never end: they do not begin, fall silent, or pour for ever."""

    def __init__(self) -> None:
        self.ways: dict[str, str] = {}

    def act(self, said: Said) -> Script:
        way = self.ways.get(said.mark)
        if way is None:
            return usual(said)

        async def run(exchange: Exchange) -> None:
            if way != "unanswered":
                await exchange.write(EVENTS + b"".join(map(chunk, said.frames[:6])))
            while way == "pouring":
                await exchange.chunk(frame("response.output_text.delta", 6, delta="x" * 8000))
                await asyncio.sleep(0)
            await asyncio.Event().wait()

        return run


async def test_clients_that_leave_free_everything(postgres_url: str, tmp_path: Path) -> None:
    async with bursting(tmp_path, postgres_url, keep_alive=0.5) as burst, AsyncExitStack() as stack:
        endless = Endless()
        burst.backend.act = endless.act
        clients = await talkers(burst, 30, stack)
        async with asyncio.TaskGroup() as tasks:
            for talker in clients:
                tasks.create_task(talk(burst, talker, 4))
        before = await burst.at_rest()
        async with talking(burst, clients[:8]):
            for wave in range(4):
                await leave(burst, endless, clients[8:], resets=wave % 2 == 0)
        left = list(endless.ways)
        assert len(left) == 4 * 22
        await until(lambda: all(burst.backend.asked[mark].gone.is_set() for mark in left), "the backend sees them gone")
        for mark in left:
            assert (await burst.ask("GET", f"/v1/responses/resp_{mark}")).status == 404
        async with asyncio.TaskGroup() as tasks:  # chains and conversations go on where they were
            for talker in clients:
                tasks.create_task(talk(burst, talker, 4))
        await burst.check_closed(before)


@asynccontextmanager
async def talking(burst: Burst, clients: list[Talker]) -> AsyncIterator[None]:
    """Turn upon turn of these clients while something else happens."""
    over = asyncio.Event()

    async def on_and_on(talker: Talker) -> None:
        while not over.is_set():
            await talk(burst, talker, 4)

    async with asyncio.TaskGroup() as tasks:
        for talker in clients:
            tasks.create_task(on_and_on(talker))
        yield
        over.set()


async def talk(burst: Burst, talker: Talker, count: int) -> None:
    for number in range(count):
        turn = await talker.say(KINDS[number % 4], stream=number % 3 != 0)
        burst.check_answered(turn)
        talker.check_sent(turn)


async def leave(burst: Burst, endless: Endless, clients: list[Talker], *, resets: bool) -> None:
    """Each client begins a turn that will not end, hears nothing, a little or as much as its socket holds, and goes."""
    async with AsyncExitStack() as stack:
        begun = []
        for number, talker in enumerate(clients):
            turn = talker.turn(("alone", "chained", "conversing")[number // 3 % 3], stream=True)
            endless.ways[turn.mark] = way = WAYS[number % 3]
            sock = await burst.deaf(turn, resets=resets)
            stack.callback(sock.close)
            begun.append((turn, way, sock))
        await until(lambda: all(turn.mark in burst.backend.asked for turn, _, _ in begun), "the backend is asked")
        for turn, way, sock in begun:
            if way == "silent":
                await heard(sock, f"{turn.mark}:1")
        await standstill(burst, [turn for turn, way, _ in begun if way == "pouring"])


async def heard(sock: socket.socket, words: str) -> None:
    """Returns when these words have come."""
    data = b""
    while words.encode() not in data:
        data += (got := await asyncio.get_running_loop().sock_recv(sock, 65536))
        assert got


class Unsteady:
    """A backend that cuts or resets every other connection at some byte of its answer, or before the first."""

    def __init__(self) -> None:
        self.written: dict[str, int] = {}  # bytes of the wire, of the newest answer to a turn
        self.harmless: set[str] = set()  # turns whose answer must come all the same

    def act(self, said: Said) -> Script:
        chance = drawn(said.mark, "accidents")
        wire = said.wire()
        fate = chance.choice(["whole", "whole", "cut", "reset", "stale", "late"])
        end = {"whole": len(wire), "stale": 0, "late": len(wire) - chance.randrange(1, 40)}.get(
            fate, chance.randrange(len(wire))
        )
        if fate in ("whole", "stale"):
            self.harmless.add(said.mark)
        by_reset = fate == "reset" or chance.random() < 0.5

        async def run(exchange: Exchange) -> None:
            # A kept connection that ends without a word is no accident: the turn is sent again on another one.
            count = len(wire) if fate == "stale" and not exchange.request.reused else end
            self.written[said.mark] = count
            for start in range(0, count, 700):
                await exchange.write(wire[start : min(start + 700, count)])
                await asyncio.sleep(0)
            if count < len(wire):
                exchange.reset() if by_reset else exchange.cut()

        return run


async def test_a_backend_that_hangs_up_completes_nothing_and_leaves_nobody_waiting(
    postgres_url: str, tmp_path: Path
) -> None:
    async with bursting(tmp_path, postgres_url, keep_alive=0.5) as burst, AsyncExitStack() as stack:
        unsteady = Unsteady()
        clients = await talkers(burst, 24, stack)
        async with asyncio.TaskGroup() as tasks:
            for talker in clients:
                tasks.create_task(talk(burst, talker, 4))
        before = await burst.at_rest()
        burst.backend.act = unsteady.act
        async with asyncio.TaskGroup() as tasks:
            for talker in clients:
                tasks.create_task(talk_anyhow(burst, unsteady, talker))
        broken = [turn for turn in burst.turns if not turn.completed]
        assert len(broken) > 100
        assert len(burst.turns) - len(broken) > 100
        await burst.check_closed(before)


async def talk_anyhow(burst: Burst, unsteady: Unsteady, talker: Talker) -> None:
    for number in range(24):
        turn = await talker.say(KINDS[number % 4], stream=number % 3 != 0)
        talker.check_sent(turn)
        assert turn.got.whole, turn.mark
        if turn.completed:
            await check_completed(burst, turn, unsteady.written[turn.mark])
        else:
            assert turn.mark not in unsteady.harmless
            await check_broken(burst, turn)


async def check_completed(burst: Burst, turn: Turn, written: int) -> None:
    """What is called done was said to its last word, and is stored."""
    said = burst.backend.said[turn.mark]
    last = said.body.removesuffix(b"data: [DONE]\n\n")
    assert turn.due(said.body).startswith(turn.got.body)
    assert turn.got.body.startswith(turn.due(last))
    assert written >= said.wire().rindex(last[-40:]) + 40
    kept = await burst.ask("GET", f"/v1/responses/{turn.id}")
    assert (kept.status, kept.body == turn.due(said.response)) == ((200, True) if turn.stored else (404, False))


async def check_broken(burst: Burst, turn: Turn) -> None:
    """Told by status, or by a last event after whole frames; and what is kept of it is what the client was told."""
    got = turn.got
    kept = await burst.ask("GET", f"/v1/responses/{turn.id}")
    if got.status != 200:
        assert (got.status, got.error["type"]) == (502, "server_error"), got.body
        assert kept.status == 404
        return
    before, event, last = got.body.rpartition(b"event: ")
    assert event
    assert turn.due(burst.backend.said[turn.mark].body).startswith(before)
    assert before.endswith(b"\n\n") or not before
    assert got.final["type"] in ("response.failed", "error"), last
    if got.final["type"] == "response.failed" and turn.stored:
        assert (kept.status, kept.json) == (200, got.final["response"])
    else:
        assert kept.status == 404
