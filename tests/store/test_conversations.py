"""What every backend promises about conversations and their leases."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.errors import LeaseLost, StoreConflict
from proxy.store import Conversation, DuplicateItem, Lease, Page, PageQuery, UnknownCursor
from proxy.store._sql import SqlStore
from tests.store.records import (
    ALICE,
    BOB,
    OpenStore,
    append,
    conversation,
    conversation_ids,
    failed,
    ids,
    item,
    rows,
    turn,
)

LEASE = Lease("conv_1", "token")


async def test_a_conversation_is_read_back_and_its_metadata_replaced(store: SqlStore) -> None:
    first = item()
    await conversation(store, items=(first,))
    assert await store.conversation(ALICE, "conv_1") == Conversation("conv_1", 1.0, b"{}")
    changed = await store.update_conversation(ALICE, "conv_1", b'{"a":"b"}')
    assert changed == Conversation("conv_1", 1.0, b'{"a":"b"}') == await store.conversation(ALICE, "conv_1")
    assert await store.conversation_item(ALICE, "conv_1", first.id) == first


async def test_nothing_is_found_under_another_owner_or_id(store: SqlStore) -> None:
    first = item()
    await conversation(store, items=(first,))
    for owner, name in ((BOB, "conv_1"), (ALICE, "conv_2")):
        assert await store.conversation(owner, name) is None
        assert await store.update_conversation(owner, name, b"{}") is None
        assert await store.conversation_history(owner, name) is None
        assert await store.conversation_items(owner, name, PageQuery()) is None
        assert await store.conversation_item(owner, name, first.id) is None
        assert not await store.add_conversation_items(owner, name, (item(),))
        assert not await store.delete_conversation_item(owner, name, first.id)
        assert not await store.delete_conversation(owner, name)
        assert not await store.acquire(owner, Lease(name, "token"), 60)
        assert not await store.renew(owner, Lease(name, "token"), 60)
        await store.release(owner, Lease(name, "token"))
    assert await conversation_ids(store) == [first.id]


async def test_a_repeated_conversation_id_is_a_conflict(store: SqlStore) -> None:
    await conversation(store)
    with pytest.raises(StoreConflict):
        await conversation(store)
    await store.create_conversation(BOB, Conversation("conv_1", 1.0, b"{}"), ())


async def test_items_are_added_paged_and_taken_out(store: SqlStore) -> None:
    first, rest = item(), tuple(item() for _ in range(3))
    await conversation(store, items=(first,))
    assert await store.add_conversation_items(ALICE, "conv_1", rest)
    assert await store.add_conversation_items(ALICE, "conv_1", ())
    page = await store.conversation_items(ALICE, "conv_1", PageQuery(limit=2, order="asc", after=first.id))
    assert page == Page(rest[:2], has_more=True)
    assert await store.conversation_items(ALICE, "conv_1", PageQuery(limit=1)) == Page(rest[2:], has_more=True)
    assert await store.delete_conversation_item(ALICE, "conv_1", rest[1].id)
    assert not await store.delete_conversation_item(ALICE, "conv_1", rest[1].id)
    assert await conversation_ids(store) == [first.id, rest[0].id, rest[2].id]
    with pytest.raises(UnknownCursor):
        await store.conversation_items(ALICE, "conv_1", PageQuery(after=rest[1].id))
    assert await store.add_conversation_items(ALICE, "conv_1", (rest[1],))
    assert await store.delete_conversation(ALICE, "conv_1")
    assert await rows(store) == {}


async def test_an_item_id_is_added_once(store: SqlStore) -> None:
    first, second = item(), item()
    with pytest.raises(DuplicateItem):
        await store.create_conversation(ALICE, Conversation("conv_1", 1.0, b"{}"), (first, first))
    assert await rows(store) == {}
    await conversation(store, items=(first,))
    for added in ((second, first), (second, second)):
        with pytest.raises(DuplicateItem):
            await store.add_conversation_items(ALICE, "conv_1", added)
    assert await conversation_ids(store) == [first.id]


async def test_turns_append_and_end_their_lease(store: SqlStore) -> None:
    first = item()
    await conversation(store, items=(first,))
    one, two = turn("resp_1"), turn("resp_2", response=None)
    await append(store, "conv_1", one)
    assert await store.acquire(ALICE, Lease("conv_1", "other"), 60)
    await store.release(ALICE, Lease("conv_1", "other"))
    await append(store, "conv_1", two)
    expected = [first.id, *(each.id for record in (one, two) for each in record.input + record.output)]
    assert await conversation_ids(store) == expected
    assert await ids(store, "resp_1") == expected[:3]
    assert await store.head(ALICE, "resp_2") is None


async def test_an_id_that_the_conversation_has_is_replaced(store: SqlStore) -> None:
    first = item()
    await conversation(store, items=(first,))
    await append(store, "conv_1", turn("resp_1", input=(first,), output=(first,)))
    history = await store.conversation_history(ALICE, "conv_1")
    assert history is not None
    assert len({one.id for one in history.items}) == 3
    assert {one.body for one in history.items} == {first.body}


async def test_a_failed_turn_leaves_the_conversation_alone(store: SqlStore) -> None:
    history = await conversation(store, items=(item(),))
    assert await store.acquire(ALICE, LEASE, 60)
    await store.save(replace(failed(turn("resp_1", history)), lease=LEASE))
    assert await conversation_ids(store) == [history.items[0].id]
    assert len(await ids(store, "resp_1") or []) == 3


async def test_a_response_in_a_conversation_is_continued_beside_it(store: SqlStore) -> None:
    await conversation(store)
    await append(store, "conv_1", turn("resp_1"))
    before = await conversation_ids(store)
    await store.save(turn("resp_2", await store.history(ALICE, "resp_1")))
    assert await conversation_ids(store) == before
    assert len(await ids(store, "resp_2") or []) == 4


async def test_a_stored_response_keeps_its_item_that_the_conversation_lost(store: SqlStore) -> None:
    await conversation(store)
    record = turn("resp_1")
    await append(store, "conv_1", record)
    history = await store.history(ALICE, "resp_1")
    await store.save(turn("resp_2", history))
    assert await store.delete_conversation_item(ALICE, "conv_1", record.output[0].id)
    assert await store.conversation_item(ALICE, "conv_1", record.output[0].id) is None
    assert await conversation_ids(store) == [record.input[0].id]
    found = await store.response(ALICE, "resp_1")
    assert found is not None
    assert found.output == record.output
    assert record.output[0].id not in (await ids(store, "resp_2") or [])
    for response_id in ("resp_1", "resp_2"):
        assert await store.delete_response(ALICE, response_id)
    assert (await rows(store))["items"] == 1
    assert await store.delete_conversation(ALICE, "conv_1")
    assert await rows(store) == {}


async def test_a_deleted_conversation_leaves_stored_responses_their_items(store: SqlStore) -> None:
    added = item()
    await conversation(store, items=(added,))
    one, two = turn("resp_1"), turn("resp_2", response=None)
    await append(store, "conv_1", one)
    await append(store, "conv_1", two)
    history = await store.history(ALICE, "resp_1")
    assert await store.delete_conversation(ALICE, "conv_1")
    assert not await store.delete_conversation(ALICE, "conv_1")
    assert await store.conversation_history(ALICE, "conv_1") is None
    own = [each.id for each in one.input + one.output]
    assert await ids(store, "resp_1") == own
    assert (await rows(store))["items"] == 2
    await store.save(turn("resp_3", history))
    assert (await ids(store, "resp_3") or [])[:2] == own
    for response_id in ("resp_1", "resp_3"):
        assert await store.delete_response(ALICE, response_id)
    assert await rows(store) == {}


async def test_a_response_deleted_in_a_conversation_leaves_its_items_there(store: SqlStore) -> None:
    await conversation(store)
    record = turn("resp_1")
    await append(store, "conv_1", record)
    assert await store.delete_response(ALICE, "resp_1")
    assert await conversation_ids(store) == [each.id for each in record.input + record.output]


async def test_one_holder_at_a_time_over_two_stores(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    await conversation(one)
    other = Lease("conv_1", "other")
    assert await one.acquire(ALICE, LEASE, 60)
    assert await one.acquire(ALICE, LEASE, 60)
    assert not await two.acquire(ALICE, other, 60)
    assert not await two.renew(ALICE, other, 60)
    await two.release(ALICE, other)
    assert await one.renew(ALICE, LEASE, 60)
    await one.release(ALICE, LEASE)
    assert await two.acquire(ALICE, other, 60)
    assert not await one.renew(ALICE, LEASE, 60)


async def test_a_lease_that_was_taken_over_fences_its_old_holder(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    history = await conversation(one)
    other = Lease("conv_1", "other")
    assert await one.acquire(ALICE, LEASE, -1)  # it has run out already
    assert await two.acquire(ALICE, other, 60)
    before = await rows(one)
    with pytest.raises(LeaseLost):
        await one.save(turn("resp_1", history, lease=LEASE))
    assert await rows(one) == before
    await two.save(turn("resp_2", history, lease=other))
    with pytest.raises(LeaseLost):
        await two.save(turn("resp_3", history, lease=other))
    assert len(await conversation_ids(one) or []) == 2


async def test_a_conversation_deleted_under_a_turn_is_a_lost_lease(store: SqlStore) -> None:
    history = await conversation(store)
    assert await store.acquire(ALICE, LEASE, 60)
    assert await store.delete_conversation(ALICE, "conv_1")
    with pytest.raises(LeaseLost):
        await store.save(turn("resp_1", history, lease=LEASE))
    assert await rows(store) == {}


async def test_of_many_that_want_the_lease_one_gets_it(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(3)]
    await conversation(stores[0])
    tries = (stores[n % 3].acquire(ALICE, Lease("conv_1", f"token_{n}"), 60) for n in range(12))
    assert sum(await asyncio.gather(*tries)) == 1


async def test_lost_and_held_leases_in_one_group(store: SqlStore) -> None:
    histories = [await conversation(store, f"conv_{n}") for n in range(4)]
    leases = [Lease(f"conv_{n}", "token") for n in range(4)]
    for lease in leases[::2]:
        assert await store.acquire(ALICE, lease, 60)
    saves = (store.save(turn(f"r_{n}", histories[n], lease=leases[n])) for n in range(4))
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), LeaseLost, type(None), LeaseLost]
    assert [len(await conversation_ids(store, f"conv_{n}") or []) for n in range(4)] == [2, 0, 2, 0]
