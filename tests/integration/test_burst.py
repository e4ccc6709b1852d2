"""Under a burst of turns of every kind: what a client is told is done can be read back, and every byte is its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg

from tests.backend import Script, faults
from tests.integration.burst import KINDS, Burst, Talker, bursting, talkers, until
from tests.integration.burst_backend import Said, usual


class Withholding:
    """A backend that, after the last event of some turns, waits with the end of the stream."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}

    def act(self, said: Said) -> Script:
        gate = self.gates.get(said.mark)
        return usual(said) if gate is None else faults.stream([*said.frames[:-1], gate, said.frames[-1]])


async def test_whatever_is_completed_can_be_read_back_at_once_and_later(postgres_url: str, tmp_path: Path) -> None:
    async with bursting(tmp_path, postgres_url) as burst, AsyncExitStack() as stack:
        backend = Withholding()
        burst.backend.act = backend.act
        async with asyncio.TaskGroup() as tasks:
            for talker in await talkers(burst, 24, stack):
                tasks.create_task(told_and_kept(burst, backend, talker))
        assert len(burst.turns) == 24 * 20
        await burst.check_each(burst.turns, burst.check_kept)


async def told_and_kept(burst: Burst, backend: Withholding, talker: Talker) -> None:
    for number in range(20):
        turn = talker.turn(KINDS[number % 4], stream=number % 3 != 0)
        if turn.stream:
            backend.gates[turn.mark] = asyncio.Event()
        await talker.ask(turn)
        if turn.stream:
            await talker.client.until(b"event: response.completed")
            await burst.check_kept(turn)
            backend.gates[turn.mark].set()
        await talker.hear(turn)
        burst.check_answered(turn)
        talker.check_sent(turn)
        await burst.check_kept(turn)


async def test_nothing_is_completed_while_the_commit_waits(postgres_url: str, tmp_path: Path) -> None:
    """Somebody else locks the table; the backend has said everything, and each client waits for one thing alone."""
    async with bursting(tmp_path, postgres_url) as burst, AsyncExitStack() as stack:
        clients = await talkers(burst, 24, stack)
        other = await asyncpg.connect(postgres_url)
        stack.push_async_callback(other.close)
        lock = other.transaction()
        await lock.start()
        await other.execute("LOCK TABLE responses IN SHARE MODE")
        async with asyncio.TaskGroup() as tasks:
            for number, talker in enumerate(clients):
                tasks.create_task(talker.say(("alone", "conversing")[number // 2 % 2], stream=number % 2 == 0))
            streamed = [talker.client for talker in clients[::2]]
            await until(lambda: len(burst.backend.asked) == len(clients), "the backend is asked")
            await until(lambda: all(each.answered for each in burst.backend.asked.values()), "the backend has answered")
            await until(lambda: all(b"output_item.done" in client.received for client in streamed), "streams come")
            await waiting_for_the_lock(other)
            assert (await burst.ask("GET", "/healthz")).status == 200
            assert not any(b"response.completed" in talker.client.received for talker in clients)
            assert not any(talker.client.received for talker in clients[1::2])
            assert not burst.turns
            await lock.rollback()
        assert len(burst.turns) == len(clients)
        for turn in burst.turns:
            burst.check_answered(turn)
        await burst.check_each(burst.turns, burst.check_kept)


async def waiting_for_the_lock(other: asyncpg.Connection) -> None:
    while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
        assert not other.is_closed()
        await asyncio.sleep(0.01)


async def test_every_stream_is_its_own_to_the_byte(postgres_url: str, tmp_path: Path) -> None:
    async with bursting(tmp_path, postgres_url) as burst, AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as tasks:
            for talker in await talkers(burst, 32, stack):
                tasks.create_task(heard_as_said(burst, talker))
        assert len(burst.turns) == 32 * 40


async def heard_as_said(burst: Burst, talker: Talker) -> None:
    """Rounds of four turns, one of each kind: asked in pieces and one after the other, or all before any answer."""
    for number in range(10):
        turns = [talker.turn(kind, stream=(number + place) % 5 != 0, odd=True) for place, kind in enumerate(KINDS)]
        for turn in turns:
            await talker.ask(turn, parts=8)
            if number % 2:
                await talker.hear(turn)
        for turn in turns:
            if number % 2 == 0:
                await talker.hear(turn)
            burst.check_answered(turn)
            talker.check_sent(turn)
