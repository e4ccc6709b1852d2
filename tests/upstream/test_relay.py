"""A stream on its way outwards: in the call that reads it where nobody waits, else by its task; in order always."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import pytest

from proxy import errors
from proxy.protocol import jsonbytes
from proxy.protocol.events import Event, Frames
from proxy.upstream.connection import Connection, Patience
from proxy.upstream.relay import Relay
from tests.playbook import delta, event
from tests.upstream.test_connection import CHUNKED, chunk

LONG = Patience(first_byte=60, idle=60, total=60)
CREATED = event("response.created", 0).raw
DONE = event("response.output_text.done", 8).raw
LAST = event("response.completed", 9).raw
END = b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """The backend's end."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = Connection(asyncio.get_running_loop())
        self.connection.connection_made(self)
        self.connection.send("POST", b"", LONG, lambda: None)
        self.connection.data_received(CHUNKED)

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Play:
    """A relay whose two ends are the script."""

    def __init__(self, hinder: Callable[[Frames | Event], Awaitable[None]] | None = None, limit: int = 10_000) -> None:
        self.heard: list[bytes] = []
        self.by: list[asyncio.Task[Any] | None] = []
        self._hinder = hinder
        self._wire = Wire()
        self.relay = Relay(self._send, limit)
        self.task = asyncio.ensure_future(self.relay.run(self._wire.connection))

    async def _send(self, message: Any) -> None:
        try:
            self.by.append(asyncio.current_task())
        except RuntimeError:
            self.by.append(None)
        if self._hinder is not None:
            await self._hinder(message)
        self.heard.append(message.raw)

    def feed(self, *parts: bytes) -> None:
        """One read."""
        self._wire.connection.data_received(b"".join(chunk(part) for part in parts))

    def end(self) -> None:
        self._wire.connection.data_received(END)

    def cut(self) -> None:
        self._wire.connection.connection_lost(None)

    @property
    def bytes(self) -> bytes:
        return b"".join(self.heard)


async def steps(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_deltas_go_on_in_the_call_that_reads_them():
    play = Play()
    await steps()
    play.feed(CREATED)
    await steps()
    for number in range(1, 4):
        play.feed(delta(number))
        assert play.heard[-1] == delta(number)
    play.feed(delta(4), delta(5), delta(6)[:7])
    assert play.heard[-1] == delta(4) + delta(5)
    play.feed(delta(6)[7:])
    assert play.heard[-1] == delta(6)
    play.feed(LAST)
    play.end()
    await play.task
    assert play.bytes == CREATED + b"".join(delta(n) for n in range(1, 7)) + LAST
    assert [by is play.task for by in play.by] == [True, False, False, False, False, False, True]


async def test_what_comes_before_its_task_has_begun_goes_on_too():
    play = Play()
    play.feed(CREATED, delta(1))
    play.feed(LAST)
    play.end()
    await play.task
    assert play.bytes == CREATED + delta(1) + LAST


STREAM = [CREATED, delta(1), delta(2), DONE, delta(3), LAST]


def _suspensions() -> dict[str, Callable[[], Awaitable[Any]]]:
    """Ways in which a `send` may wait; each ends by itself."""

    def done() -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def soon() -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        return future

    async def nested() -> None:
        for _ in range(3):
            await asyncio.shield(soon())
            await asyncio.sleep(0)

    return {"sleep": lambda: asyncio.sleep(0), "done": done, "soon": soon, "nested": nested}


@pytest.mark.parametrize("way", ["sleep", "done", "soon", "nested"])
async def test_a_send_that_waits_keeps_order_and_loses_nothing(way: str):
    wait = _suspensions()[way]
    for places in product((False, True), repeat=len(STREAM)):
        for together, pauses in ((1, 0), (1, 1), (1, 7), (2, 0), (2, 1), (3, 2), (6, 0)):
            left = list(places)

            async def hinder(message: Frames | Event, left: list[bool] = left) -> None:
                if left.pop(0) if left else True:
                    await wait()

            play = Play(hinder)
            await steps(1)
            for at in range(0, len(STREAM), together):
                play.feed(*STREAM[at : at + together])
                await steps(pauses)
            play.end()
            await play.task
            assert play.bytes == b"".join(STREAM), (places, together, pauses)


async def test_while_one_waits_nothing_else_is_sent():
    gate = asyncio.Event()

    async def hinder(message: Frames | Event) -> None:
        if message.raw == delta(1):
            await gate.wait()

    play = Play(hinder)
    await steps()
    play.feed(delta(1))
    play.feed(delta(2))
    await steps()
    play.feed(delta(3), LAST)
    await steps()
    assert play.heard == []
    gate.set()
    play.end()
    await play.task
    assert play.bytes == delta(1) + delta(2) + delta(3) + LAST


async def test_an_error_in_send_is_its_tasks_wherever_it_is_raised():
    for late, step in product((False, True), (delta(1), DONE)):

        async def hinder(message: Frames | Event, late: bool = late, step: bytes = step) -> None:
            if message.raw == step:
                if late:
                    await asyncio.sleep(0)
                raise errors.StoreError("told")

        play = Play(hinder)
        await steps()
        play.feed(CREATED)
        await steps()
        play.feed(step)
        play.feed(delta(7))
        with pytest.raises(errors.StoreError, match="told"):
            await play.task
        assert play.heard == [CREATED]


async def test_what_cannot_be_understood_is_the_backends_fault():
    async def hinder(message: Frames | Event) -> None:
        raise jsonbytes.NotJSON("odd")

    for step in (delta(1), DONE):
        play = Play(hinder)
        await steps()
        play.feed(step)
        with pytest.raises(errors.UpstreamProtocol, match="odd"):
            await play.task


async def test_an_error_that_is_thrown_into_what_waits_reaches_it_and_it_may_go_on():
    failing = asyncio.get_running_loop().create_future()

    async def hinder(message: Frames | Event) -> None:
        if message.raw == delta(1):
            with pytest.raises(errors.StoreError):
                await failing

    play = Play(hinder)
    await steps()
    play.feed(delta(1))
    await steps()
    failing.set_exception(errors.StoreError())
    play.feed(LAST)
    play.end()
    await play.task
    assert play.bytes == delta(1) + LAST


@pytest.mark.parametrize("pauses", [0, 1, 5])
async def test_who_is_interrupted_while_a_send_waits_leaves_nothing_behind(pauses: int):
    ended: list[str] = []

    async def hinder(message: Frames | Event) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("over")

    play = Play(hinder)
    await steps()
    play.feed(delta(1))
    await steps(pauses)
    play.task.cancel()
    await asyncio.wait([play.task])
    assert play.task.cancelled()
    assert ended[-1:] == ["over"]
    assert ended.count("over") == 1
    assert ("cancelled" in ended) is (pauses > 0)
    play.feed(delta(2))
    assert play.heard == []


async def test_an_event_that_is_larger_than_allowed():
    for size, early in product((100, 5000), (False, True)):
        play = Play(limit=1000)
        if not early:
            await steps()
        play.feed(delta(1))
        for at in range(0, 3000, size):
            play.feed(b"data: " * (at == 0) + b"x" * size)
        with pytest.raises(errors.UpstreamProtocol, match="larger than 1000 bytes"):
            await play.task
        if not early:
            assert play.heard == [delta(1)]


@pytest.mark.parametrize("after", range(len(STREAM) + 1))
@pytest.mark.parametrize("how", ["end", "cut"])
async def test_a_stream_that_ends_too_early_is_cut_and_all_before_that_is_heard(after: int, how: str):
    play = Play()
    await steps()
    for part in STREAM[:after]:
        play.feed(part)
    getattr(play, how)()
    if after == len(STREAM):
        await play.task
    else:
        with pytest.raises(errors.StreamCut):
            await play.task
    assert play.bytes == b"".join(STREAM[:after])


async def test_after_the_last_event_everything_is_passed_on_even_half_a_frame():
    play = Play()
    play.feed(LAST, b"data: [DONE]\n\n", b": hal")
    play.end()
    await play.task
    assert play.bytes == LAST + b"data: [DONE]\n\n: hal"


async def test_a_last_frame_that_only_the_end_shows_to_be_whole_counts():
    last = LAST.replace(b"\n", b"\r")
    play = Play()
    play.feed(last)
    await steps()
    assert play.heard == []
    play.end()
    await play.task
    assert play.bytes == last
