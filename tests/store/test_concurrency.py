"""What holds when turns, deletes and other processes meet."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.errors import StoreConflict
from proxy.store._sql import SqlStore
from tests.store.records import ALICE, OpenStore, chain, commits, conversation, ids, item, rows, saved, turn


async def test_of_parallel_continuations_one_extends_and_the_others_fork(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(2)]
    await stores[0].save(turn("resp_0"))
    history = await stores[0].history(ALICE, "resp_0")
    assert history is not None
    before = [one.id for one in history.items]
    records = [turn(f"next_{number}", history) for number in range(24)]
    await asyncio.gather(*(stores[number % 2].save(record) for number, record in enumerate(records)))
    extended = 0
    for number, record in enumerate(records):
        after = await stores[number % 2].history(ALICE, f"next_{number}")
        assert after is not None
        assert [one.id for one in after.items] == before + [one.id for one in record.input + record.output]
        extended += after.anchor.thread == history.anchor.thread
    assert extended == 1
    assert (await rows(stores[0]))["threads"] == len(records)


async def test_a_parent_deleted_while_the_turn_ran(store: SqlStore) -> None:
    turns = await chain(store, 3)
    history = await store.history(ALICE, "resp_2")
    for number in range(3):
        await store.delete_response(ALICE, f"resp_{number}")
    assert await rows(store) == {}
    last = await saved(store, turn("resp_3", history))
    expected = [one.id for record in (*turns, last) for one in record.input + record.output]
    assert await ids(store, "resp_3") == expected
    await store.save(turn("resp_4", await store.history(ALICE, "resp_3")))
    assert (await ids(store, "resp_4") or [])[:-2] == expected
    for number in (3, 4):
        await store.delete_response(ALICE, f"resp_{number}")
    assert await rows(store) == {}


async def test_a_tail_that_was_replaced_is_not_taken_for_the_one_that_was_deleted(store: SqlStore) -> None:
    await chain(store, 2)
    stale = await store.history(ALICE, "resp_1")
    assert stale is not None
    await store.delete_response(ALICE, "resp_1")
    await store.save(turn("other", await store.history(ALICE, "resp_0")))  # as long as the deleted tail
    await store.save(turn("late", stale))
    assert (await ids(store, "late") or [])[:4] == [one.id for one in stale.items]


async def test_a_parent_whose_tail_went_can_still_be_continued(store: SqlStore) -> None:
    turns = await chain(store, 2)
    await store.delete_response(ALICE, "resp_1")
    record = await saved(store, turn("again", await store.history(ALICE, "resp_0")))
    assert await ids(store, "again") == [one.id for each in (turns[0], record) for one in each.input + each.output]


async def test_deletes_and_continuations_of_one_chain_at_once(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(2)]
    await chain(stores[0], 12)
    histories = [await stores[0].history(ALICE, f"resp_{number}") for number in range(12)]

    async def cut(number: int) -> None:
        await stores[number % 2].delete_response(ALICE, f"resp_{number}")

    async def extend(number: int) -> None:
        await stores[(number + 1) % 2].save(turn(f"next_{number}", histories[number]))

    await asyncio.gather(*(job(number) for number in range(12) for job in (cut, extend)))
    for number, history in enumerate(histories):
        assert history is not None
        assert (await ids(stores[0], f"next_{number}") or [])[:-2] == [one.id for one in history.items]
    jobs = (stores[number % 2].delete_response(ALICE, f"next_{number}") for number in range(12))
    assert all(await asyncio.gather(*jobs))
    assert await rows(stores[0]) == {}


async def test_concurrent_saves_share_transactions(store: SqlStore) -> None:
    with commits(store) as seen:
        await asyncio.gather(*(store.save(turn(f"resp_{number}")) for number in range(100)))
    assert len(seen) <= 4
    assert (await rows(store))["responses"] == 100


async def test_a_group_is_bounded(open_store: OpenStore) -> None:
    store = await open_store(group_limit=10)
    with commits(store) as seen:
        await asyncio.gather(*(store.save(turn(f"resp_{number}")) for number in range(100)))
    assert len(seen) >= 10


async def test_a_turn_that_is_refused_fails_alone(store: SqlStore) -> None:
    await store.save(turn("resp_5"))
    saves = (store.save(turn(f"resp_{number}")) for number in range(12))
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == [5]
    assert isinstance(outcomes[5], StoreConflict)
    assert await rows(store) == {"threads": 12, "items": 24, "responses": 12}


async def test_two_of_one_group_with_one_id(store: SqlStore) -> None:
    outcomes = await asyncio.gather(*(store.save(turn("same")) for _ in range(2)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreConflict]
    assert await rows(store) == {"threads": 1, "items": 2, "responses": 1}


async def test_a_caller_that_goes_away_takes_nothing_from_its_group(store: SqlStore) -> None:
    tasks = [asyncio.ensure_future(store.save(turn(f"resp_{number}"))) for number in range(6)]
    await asyncio.sleep(0)  # all have asked, the group's transaction is about to begin
    await asyncio.sleep(0)
    tasks[2].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[2], asyncio.CancelledError)
    assert [outcome for number, outcome in enumerate(outcomes) if number != 2] == [None] * 5
    for number in (0, 1, 3, 4, 5):
        assert await store.head(ALICE, f"resp_{number}") is not None


async def test_a_close_waits_for_what_was_taken(open_store: OpenStore) -> None:
    store, other = await open_store(), await open_store()
    tasks = [asyncio.ensure_future(store.save(turn(f"resp_{number}"))) for number in range(6)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks)
    assert (await rows(other))["responses"] == 6


async def test_items_added_by_many_at_once_all_get_a_place(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(2)]
    await conversation(stores[0])
    added = [item() for _ in range(20)]
    jobs = (stores[n % 2].add_conversation_items(ALICE, "conv_1", (one,)) for n, one in enumerate(added))
    assert all(await asyncio.gather(*jobs))
    history = await stores[1].conversation_history(ALICE, "conv_1")
    assert history is not None
    assert {one.id for one in history.items} == {one.id for one in added}
    assert history.anchor.position == 20


async def test_two_sweepers_take_each_response_once(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(2)]
    for number in range(20):
        record = turn(f"resp_{number}")
        assert record.response is not None
        await stores[0].save(replace(record, response=replace(record.response, expires_at=1.0)))
    taken = 0
    while await rows(stores[0]):
        taken += sum(await asyncio.gather(*(store.sweep(3) for store in stores)))
    assert taken == 20


@pytest.mark.parametrize("length", [1, 5])
async def test_one_response_deleted_by_two(open_store: OpenStore, length: int) -> None:
    stores = [await open_store() for _ in range(2)]
    await chain(stores[0], length)
    outcomes = await asyncio.gather(*(store.delete_response(ALICE, "resp_0") for store in stores))
    assert sorted(outcomes) == [False, True]
