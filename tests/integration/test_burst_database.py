"""The database goes in the middle of a burst: nothing that was called done is lost, and every client is answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.integration.burst import KINDS, Burst, Talker, Turn, bursting, talkers, until
from tests.integration.gateway import chain
from tests.postgres import PostgresServer, _children

CLIENTS = 24
SHORT_LEASE = chain(rehydrate={"lease_seconds": 3})  # one that a crash leaves behind runs out by itself


class Breakable(PostgresServer):
    """A server that ends in more ways than `kill`."""

    def end_at_once(self) -> None:
        """An immediate shutdown, as an impatient operator's."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        self._process = None

    def lose_its_sessions(self) -> None:
        """Kills every process but the first, which then recovers by itself."""
        assert self._process is not None
        for pid in _children(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def server() -> Iterator[Breakable]:
    made = Breakable()
    made.start()
    try:
        made.execute("CREATE DATABASE state")
        yield made
    finally:
        made.stop()


async def test_a_restart_loses_nothing_and_answers_everybody(server: Breakable, tmp_path: Path) -> None:
    async with bursting(tmp_path, server.url("state"), **SHORT_LEASE) as burst, AsyncExitStack() as stack:
        clients = await talkers(burst, CLIENTS, stack)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for talker in clients:
                tasks.create_task(talk_on(burst, talker, over))
            for end in (Breakable.end_at_once, Breakable.lose_its_sessions, Breakable.kill):
                await more(burst, 120, completed)
                await asyncio.to_thread(end, server)
                if end is not Breakable.lose_its_sessions:
                    await more(burst, CLIENTS, refused)
                    await asyncio.to_thread(server.start)
            await more(burst, 120, completed)
            over.set()
        await burst.check_each(burst.turns, partial(check_outcome, burst))
        for talker in clients:
            for kind in ("chained", "conversing"):
                turn = await talker.say(kind, stream=True)
                burst.check_answered(turn)
                check_history(burst, talker, turn)


def completed(turn: Turn) -> bool:
    return turn.stored and turn.completed


def refused(turn: Turn) -> bool:
    return not turn.completed


async def more(burst: Burst, count: int, such: Callable[[Turn], bool]) -> None:
    """Waits for that many more turns that ended in such a way."""
    start = len(burst.turns)
    await until(lambda: sum(map(such, burst.turns[start:])) >= count, f"{count} turns are {such.__name__}")


async def talk_on(burst: Burst, talker: Talker, over: asyncio.Event) -> None:
    number = 0
    while not over.is_set():
        turn = await talker.say(KINDS[number % 4], stream=number % 3 != 0)
        if turn.completed:
            burst.check_answered(turn)
            check_history(burst, talker, turn)
        else:
            check_refused(burst, turn)
            await asyncio.sleep(0.02)  # a client that is refused takes a breath
        number += 1


def check_refused(burst: Burst, turn: Turn) -> None:
    """The answer is whole, is no completion, and says that it was the store."""
    got = turn.got
    assert turn.stored, "what needs no store never fails with it"
    assert got.whole, turn.mark
    if got.status != 200:
        assert (got.status, got.error["type"]) == (500, "server_error"), got.body
        assert "store" in got.error["message"]
        return
    begun = b"".join(burst.backend.said[turn.mark].frames[:-2])
    assert turn.stream
    assert got.body.startswith(turn.due(begun)), turn.mark
    assert got.final["type"] == "error", got.body
    assert got.final["code"] == "server_error"
    assert "store" in got.final["message"]


async def check_outcome(burst: Burst, turn: Turn) -> None:
    """Done is kept. What was refused is not, or is kept whole: the crash may have come between commit and its word."""
    if turn.completed:
        await burst.check_kept(turn)
    elif turn.mark in burst.backend.said:
        kept = await burst.ask("GET", f"/v1/responses/{turn.id}")
        assert kept.status == 404 or kept.body == turn.due(burst.backend.said[turn.mark].response), turn.mark


def check_history(burst: Burst, talker: Talker, turn: Turn) -> None:
    """The backend was told every turn that is done, once and in order; beside them only what was refused too late."""
    if turn.named is None:
        return
    told = talker.told_before(turn)
    doubtful = {f"{one.mark}" for one in burst.turns if one.kind == "conversing" and not one.completed}
    heard = talker.heard(turn)
    assert [mark for mark in heard if mark not in doubtful] == [*told, turn.mark]
    assert len(set(heard)) == len(heard)
