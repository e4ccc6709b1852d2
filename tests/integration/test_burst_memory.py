"""What a burst costs the gateway: nothing that stays, and no memory for clients that do not read."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from tests.backend import Exchange, Script
from tests.integration.burst import KINDS, Burst, Talker, bursting, hearing, standstill, talkers, until
from tests.integration.burst_backend import Said, at_once, frame, usual
from tests.integration.gateway import chain

MB = 1 << 20
ON_OFFER = 64 * MB  # to each client that does not read
HELD = 96 * MB  # for all of them: a fifth of what is on offer, and five times what is needed
SHORT_LOG = chain(response_store={"max_event_bytes": 1 * MB})


class Pouring:
    """A backend that pours deltas into some turns until it is told that this is enough."""

    def __init__(self) -> None:
        self.marks: set[str] = set()
        self.enough = asyncio.Event()
        self.runs: Counter[str] = Counter()

    def act(self, said: Said) -> Script:
        if said.mark not in self.marks:
            return usual(said)

        async def pour(exchange: Exchange) -> None:
            await exchange.begin()
            for each in said.frames[:4]:
                await exchange.chunk(each)
            while not self.enough.is_set() and exchange.request.written < ON_OFFER:
                await exchange.chunk(run_of_deltas(said.mark, self.runs[said.mark]))
                self.runs[said.mark] += 1
                await asyncio.sleep(0)
            for each in said.frames[4:]:
                await exchange.chunk(each)
            await exchange.end()

        return pour

    def poured(self, said: Said) -> bytes:
        """Everything that turn was sent."""
        runs = (run_of_deltas(said.mark, number) for number in range(self.runs[said.mark]))
        return b"".join([*said.frames[:4], *runs, *said.frames[4:]])


def run_of_deltas(mark: str, number: int) -> bytes:
    deltas = (frame("response.output_text.delta", number * 8 + step, delta=mark + "x" * 4000) for step in range(8))
    return b"".join(deltas)


async def test_clients_that_do_not_read_cost_no_memory_and_miss_no_byte(postgres_url: str, tmp_path: Path) -> None:
    async with bursting(tmp_path, postgres_url, **SHORT_LOG) as burst, AsyncExitStack() as stack:
        pouring = Pouring()
        burst.backend.act = pouring.act
        clients = await talkers(burst, 16, stack)
        await all_talk(burst, clients, 8)
        before = burst.rss
        slow = [clients[0].turn(kind, stream=True) for kind in ("alone", "unstored") * 4]
        pouring.marks.update(turn.mark for turn in slow)
        sockets = [await burst.deaf(turn) for turn in slow]
        for each in sockets:
            stack.callback(each.close)
        await until(lambda: all(turn.mark in burst.backend.asked for turn in slow), "the backend is asked")
        await all_talk(burst, clients, 8)
        await standstill(burst, slow)
        written = [burst.backend.asked[turn.mark].written for turn in slow]
        assert max(written) < ON_OFFER, "the backend was not held back"
        assert burst.rss - before < HELD
        pouring.enough.set()
        for turn, sock in zip(slow, sockets, strict=True):
            async with hearing(sock) as client:
                turn.answer = await client.answer("POST")
            assert (turn.got.status, turn.got.whole) == (200, True)
            assert turn.got.body == pouring.poured(burst.backend.said[turn.mark])
        assert burst.rss - before < HELD
        for turn in slow:
            kept = await burst.ask("GET", f"/v1/responses/{turn.id}")
            said = burst.backend.said[turn.mark].response
            assert (kept.status, kept.body == said) == ((200, True) if turn.stored else (404, False))


async def all_talk(burst: Burst, clients: list[Talker], count: int, words: str = "") -> None:
    """Each client says that much, all at once, and is answered properly."""
    async with asyncio.TaskGroup() as tasks:
        for talker in clients:
            tasks.create_task(talk(burst, talker, count, words))


async def talk(burst: Burst, talker: Talker, count: int, words: str) -> None:
    for number in range(count):
        turn = await talker.say(KINDS[number % 4], stream=number % 3 != 0, words=words)
        burst.check_answered(turn)


async def test_thousands_of_turns_leave_nothing_behind(postgres_url: str, tmp_path: Path) -> None:
    async with bursting(tmp_path, postgres_url, keep_alive=0.5) as burst, AsyncExitStack() as stack:
        burst.backend.act = at_once
        clients = await talkers(burst, 24, stack)
        await talk_in_batches(burst, clients, 4)
        files, memory = await burst.at_rest(), burst.rss
        await talk_in_batches(burst, clients, 6)
        assert len(burst.turns) == 2880
        await burst.check_closed(files)
        assert burst.rss - memory < 16 * MB, "1,728 turns brought 27 MB of questions alone"


async def talk_in_batches(burst: Burst, clients: list[Talker], count: int) -> None:
    """Turns with questions of 16 KB; chains and conversations begin anew in each batch, or histories would grow."""
    for _ in range(count):
        await all_talk(burst, clients, 12, " " + "word" * 4000)
        for talker in clients:
            talker.last = None
            talker.conversation = (await burst.ask("POST", "/v1/conversations", b"{}")).json["id"]
