"""Turns, branches and deletes in any order, against a model that copies every history."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from proxy.store import Conversation, History, Item, Lease, Owner, PageQuery
from proxy.store import _tables as t
from proxy.store._sql import SqlStore
from tests.store.records import connect, failed, item, rows, turn

_owners = count()
Step = tuple[str, int, int]
BUILD = ("root", "continue", "continue", "hold", "talk", "talk", "add")
TANGLE = ("root", "continue", "fail", "hold", "land", "delete", "delete", "talk", "speak", "add", "take", "drop")


def some(actions: tuple[str, ...], least: int) -> st.SearchStrategy[list[Step]]:
    step = st.tuples(st.sampled_from(actions), st.integers(0, 50), st.integers(0, 2))
    return st.lists(step, min_size=least, max_size=20)


@dataclass
class Known:
    """A stored response as the model has it."""

    history: list[Item]
    input: tuple[Item, ...]
    output: tuple[Item, ...]
    completed: bool = True
    plain: bool = True  # no conversation anywhere before it


@dataclass
class Model:
    """Every history spelled out; `gone` are the items that left their conversation."""

    store: SqlStore
    owner: Owner
    responses: dict[str, Known] = field(default_factory=dict)
    talks: dict[str, list[Item]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    held: list[tuple[History | None, Known]] = field(default_factory=list)
    serial: int = 0

    async def run(self, steps: list[Step]) -> None:
        for action, pick, size in steps:
            await getattr(self, action)(pick, size)
            await self.check(pick)
        for name in list(self.responses):
            await self.check_response(name)
        await self.empty()

    def pick(self, names: list[str], number: int) -> str | None:
        return names[number % len(names)] if names else None

    def continuable(self) -> list[str]:
        return [name for name, known in self.responses.items() if known.completed]

    async def save(self, base: Known | None, history: History | None, size: int, completed: bool = True) -> None:
        self.serial += 1
        name = f"resp_{self.serial}"
        own = tuple(item() for _ in range(size)), tuple(item() for _ in range(1 + size // 2))
        record = turn(name, history, owner=self.owner, input=own[0], output=own[1])
        await self.store.save(record if completed else failed(record))
        before = base.history if base else []
        plain = base.plain if base else True
        self.responses[name] = Known([*before, *own[0], *own[1]], *own, completed, plain)

    async def root(self, _pick: int, size: int) -> None:
        await self.save(None, None, size)

    async def continue_(self, pick: int, size: int, completed: bool = True) -> None:
        if name := self.pick(self.continuable(), pick):
            await self.save(self.responses[name], await self.store.history(self.owner, name), size, completed)

    async def fail(self, pick: int, size: int) -> None:
        await self.continue_(pick, size, completed=False)

    async def hold(self, pick: int, _size: int) -> None:
        name = self.pick([name for name in self.continuable() if self.responses[name].plain], pick)
        if name:
            self.held.append((await self.store.history(self.owner, name), self.responses[name]))

    async def land(self, pick: int, size: int) -> None:
        if self.held:
            history, base = self.held.pop(pick % len(self.held))
            await self.save(base, history, size)

    async def delete(self, pick: int, _size: int) -> None:
        if name := self.pick(list(self.responses), pick):
            assert await self.store.delete_response(self.owner, name)
            del self.responses[name]

    async def talk(self, pick: int, size: int) -> None:
        name = self.pick(list(self.talks), pick)
        if name is None:
            await self.speak(pick, size)
            return
        self.serial += 1
        response = f"resp_{self.serial}"
        lease = Lease(name, response)
        assert await self.store.acquire(self.owner, lease, 60)
        history = await self.store.conversation_history(self.owner, name)
        record = turn(response, history, owner=self.owner, lease=lease, input=(item(),) * min(size, 1))
        await self.store.save(record if size else replace(record, response=None))
        self.talks[name] += record.input + record.output
        if size:
            self.responses[response] = Known(list(self.talks[name]), record.input, record.output, plain=False)

    async def speak(self, _pick: int, size: int) -> None:
        self.serial += 1
        name, first = f"conv_{self.serial}", [item() for _ in range(size)]
        await self.store.create_conversation(self.owner, Conversation(name, 1.0, b"{}"), first)
        self.talks[name] = first

    async def add(self, pick: int, size: int) -> None:
        if name := self.pick(list(self.talks), pick):
            added = [item() for _ in range(size)]
            assert await self.store.add_conversation_items(self.owner, name, added)
            self.talks[name] += added

    async def take(self, pick: int, size: int) -> None:
        if name := self.pick(list(self.talks), size):
            visible = [one for one in self.talks[name] if one.id not in self.gone]
            if visible:
                victim = visible[pick % len(visible)].id
                assert await self.store.delete_conversation_item(self.owner, name, victim)
                self.gone.add(victim)

    async def drop(self, pick: int, _size: int) -> None:
        if name := self.pick(list(self.talks), pick):
            assert await self.store.delete_conversation(self.owner, name)
            owned = {one.id for known in self.responses.values() for one in known.input + known.output}
            self.gone |= {one.id for one in self.talks.pop(name)} - owned

    async def check(self, pick: int) -> None:
        if name := self.pick(list(self.responses), pick):
            await self.check_response(name)
        if talk := self.pick(list(self.talks), pick):
            history = await self.store.conversation_history(self.owner, talk)
            assert history is not None
            assert list(history.items) == self.visible(self.talks[talk])

        await self.check_stored()

    async def check_stored(self) -> None:
        """No item is kept that nothing reaches, and none is missing."""
        reached = {one.id for talk in self.talks.values() for one in self.visible(talk)}
        for known in self.responses.values():
            reached |= {one.id for one in (*self.visible(known.history), *known.input, *known.output)}
        async with self.store.database.reader.connect() as connection:
            stored = await connection.scalars(select(t.items.c.id).where(t.items.c.owner == self.owner))
            assert set(stored) == reached

    async def check_response(self, name: str) -> None:
        known = self.responses[name]
        history = await self.store.history(self.owner, name)
        found = await self.store.response(self.owner, name)
        page = await self.store.input_items(self.owner, name, PageQuery(order="asc"))
        assert history is not None
        assert list(history.items) == self.visible(known.history)
        assert found is not None
        assert found.output == known.output
        assert page is not None
        assert page.items == known.input

    def visible(self, items: list[Item]) -> list[Item]:
        return [one for one in items if one.id not in self.gone]

    async def empty(self) -> None:
        for name in sorted(self.responses, key=lambda name: hash((name, self.serial))):
            assert await self.store.delete_response(self.owner, name)
        for name in self.talks:
            assert await self.store.delete_conversation(self.owner, name)
        assert await rows(self.store, self.owner) == {}


setattr(Model, "continue", Model.continue_)


def test_every_history_equals_the_model(store_url: str) -> None:
    with asyncio.Runner() as runner:
        store = runner.run(connect(store_url))

        @settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(some(BUILD, 5), some(TANGLE, 5))
        def play(build: list[Step], tangle: list[Step]) -> None:
            runner.run(Model(store, Owner(f"owner_{next(_owners)}")).run(build + tangle))

        try:
            play()
        finally:
            runner.run(store.close())
