"""Filters nest in the order in which they are written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.chain import Next, Send, check_order, compose, deltas_of
from proxy.errors import ConfigError
from proxy.protocol.events import Chunk, Frames, Message
from proxy.protocol.turn import Turn
from tests.playbook import play, post


class Marking:
    """Leaves its name on the way in and on the way out."""

    def __init__(self, name: str, trail: list[str]) -> None:
        self.name, self.trail = name, trail

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        async def mark(message: Message) -> None:
            self.trail.append(f"{self.name} hears")
            await send(message)

        self.trail.append(f"{self.name} in")
        try:
            await call_next(turn, mark)
        finally:
            self.trail.append(f"{self.name} out")


class Counting:
    """A `send` that takes deltas without a coroutine."""

    def __init__(self) -> None:
        self.heard: list[Message | bytes] = []

    def deltas(self, raw: bytes) -> None:
        self.heard.append(raw)

    async def __call__(self, message: Message) -> None:
        self.heard.append(message)


async def test_a_send_may_take_deltas_by_a_way_of_their_own():
    send = Counting()
    assert deltas_of(send)(b"a") is None
    await send(Chunk(b"x"))
    assert send.heard == [b"a", Chunk(b"x")]


async def test_another_send_gets_deltas_as_any_message():
    heard: list[Message] = []

    async def send(message: Message) -> None:
        heard.append(message)

    rest = deltas_of(send)(b"a")
    assert rest is not None
    assert heard == []
    await rest
    assert heard == [Frames(b"a")]


async def test_the_first_filter_is_the_outermost():
    trail: list[str] = []
    played = await play([Marking("a", trail), Marking("b", trail)], post(b"{}"), Chunk(b"x"))
    assert trail == ["a in", "b in", "b hears", "a hears", "b out", "a out"]
    assert played.heard == [Chunk(b"x")]


async def test_without_filters_the_end_answers():
    assert (await play([], post(b"{}"), Chunk(b"x"))).heard == [Chunk(b"x")]


async def test_a_filter_may_call_the_rest_never_or_often():
    async def never(_turn: Turn, send: Send, call_next: Next) -> None:
        await send(Chunk(b"mine"))

    async def twice(turn: Turn, send: Send, call_next: Next) -> None:
        await call_next(turn, send)
        await call_next(turn, send)

    assert (await play([never], post(b"{}"), Chunk(b"x"))).heard == [Chunk(b"mine")]
    assert len((await play([twice], post(b"{}"), Chunk(b"x"))).turns) == 2


async def test_cancelling_unwinds_every_filter():
    trail: list[str] = []

    async def silent(_turn: Turn, _send: Send) -> None:
        await asyncio.Event().wait()

    async def nobody(_message: Message) -> None: ...

    task = asyncio.ensure_future(compose([Marking("a", trail), Marking("b", trail)], silent)(post(b"{}"), nobody))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert trail == ["a in", "b in", "b out", "a out"]


AFTER: dict[str, Any] = {"a": frozenset(), "b": frozenset({"a"}), "c": frozenset({"a", "b"})}


@pytest.mark.parametrize("names", [["a", "b", "c"], ["c"], ["b", "c"], ["a", "c"], []])
def test_an_order_that_works(names: list[str]):
    check_order(names, AFTER, "chains.default")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["b", "a"], "chains.default[0].filter: 'b' must come after a"),
        (["a", "c", "b"], "chains.default[1].filter: 'c' must come after b"),
        (["c", "b", "a"], "chains.default[0].filter: 'c' must come after a, b"),
        (["a", "b", "b"], "chains.default[2].filter: 'b' is there twice"),
    ],
)
def test_an_order_that_does_not(names: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        check_order(names, AFTER, "chains.default")
    assert str(caught.value) == message
