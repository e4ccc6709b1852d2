"""Approvals are used once, all of a turn or none; items keep what the backend is sent in their place."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from proxy.store import Approval, ApprovalRefused, Owner, PageQuery
from proxy.store._sql import SqlStore
from tests.store.records import (
    ALICE,
    BOB,
    OpenStore,
    append,
    conversation,
    failed,
    item,
    rows,
    saved,
    statements,
    turn,
)

HERE, THERE, ANY = "here", "there", ""


async def waiting(store: SqlStore, *ids: str, owner: Owner = ALICE, response: str = "resp_1") -> None:
    """A response with these requests."""
    await saved(store, turn(response, owner=owner, approvals=tuple(Approval(id_, HERE) for id_ in ids)))


async def why(store: SqlStore, *approvals: Approval, owner: Owner = ALICE) -> tuple[str, str] | None:
    """Which approval is refused, and the end of the reason; None: all are used now."""
    try:
        await store.use_approvals(owner, approvals)
    except ApprovalRefused as error:
        return error.approval_id, str(error).removeprefix(f"approval '{error.approval_id}' ")
    return None


UNKNOWN, USED, MOVED = "was not found", "has already been used", "was asked for another target"


async def test_an_approval_is_used_once(store: SqlStore) -> None:
    await waiting(store, "a", "b")
    assert await why(store, Approval("a", HERE)) is None
    assert await why(store, Approval("a", HERE)) == ("a", USED)
    assert await why(store, Approval("a", ANY)) == ("a", USED)
    assert await why(store, Approval("b", HERE)) is None


async def test_all_are_used_or_none(store: SqlStore) -> None:
    await waiting(store, "a", "b", "c")
    assert await why(store, Approval("a", HERE), Approval("b", THERE)) == ("b", MOVED)
    assert await why(store, Approval("c", HERE), Approval("x", HERE)) == ("x", UNKNOWN)
    assert await why(store, *(Approval(id_, HERE) for id_ in "cba")) is None
    assert await why(store, Approval("x", HERE), Approval("a", HERE)) == ("x", UNKNOWN), "the first of the request"


async def test_none_at_all_is_nothing(store: SqlStore) -> None:
    assert await why(store) is None


async def test_another_target_is_refused_and_does_not_use_it_up(store: SqlStore) -> None:
    await waiting(store, "a")
    assert await why(store, Approval("a", THERE)) == ("a", MOVED)
    assert await why(store, Approval("a", HERE)) is None


async def test_a_refusal_names_no_target(store: SqlStore) -> None:
    await waiting(store, "a")
    assert await why(store, Approval("a", ANY)) is None


async def test_another_owners_is_unknown(store: SqlStore) -> None:
    await waiting(store, "a")
    await waiting(store, "b", owner=BOB)
    assert await why(store, Approval("a", HERE), owner=BOB) == ("a", UNKNOWN)
    assert await why(store, Approval("b", HERE), Approval("a", HERE), owner=BOB) == ("a", UNKNOWN)
    assert await why(store, Approval("b", HERE), owner=BOB) is None
    assert await why(store, Approval("a", HERE)) is None


async def test_two_owners_may_have_the_same_id(store: SqlStore) -> None:
    await waiting(store, "a")
    await waiting(store, "a", owner=BOB)
    assert await why(store, Approval("a", HERE)) is None
    assert await why(store, Approval("a", HERE), owner=BOB) is None


async def test_a_deleted_response_takes_its_requests_with_it(store: SqlStore) -> None:
    await waiting(store, "a")
    await waiting(store, "b", response="resp_2")
    assert await store.delete_response(ALICE, "resp_1")
    assert await why(store, Approval("a", HERE)) == ("a", UNKNOWN)
    assert await why(store, Approval("b", HERE)) is None
    assert await store.delete_response(ALICE, "resp_2")
    assert await rows(store) == {}


async def test_a_response_that_failed_still_waits(store: SqlStore) -> None:
    await saved(store, failed(turn("resp_1", approvals=(Approval("a", HERE),))))
    assert await why(store, Approval("a", HERE)) is None


async def test_nothing_waits_without_a_response(store: SqlStore) -> None:
    await conversation(store)
    await append(store, "conv_1", turn("x", response=None, approvals=(Approval("a", HERE),)))
    assert await why(store, Approval("a", HERE)) == ("a", UNKNOWN)


async def test_replicas_that_race_use_it_once(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(3)]
    await waiting(stores[0], *"abcd")
    # In opposite orders: none may wait for the other.
    tries = [("abcd" if number % 2 else "dcba") for number in range(12)]
    found = await asyncio.gather(
        *(why(stores[n % 3], *(Approval(id_, HERE) for id_ in ids)) for n, ids in enumerate(tries))
    )
    assert found.count(None) == 1
    assert {reason for each in found if each for reason in each[1:]} == {USED}


async def test_overlapping_batches_never_share_one(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(2)]
    await waiting(stores[0], *(f"id_{n}" for n in range(8)))
    batches = [[f"id_{(n + k) % 8}" for k in range(3)] for n in range(8)]
    found = await asyncio.gather(
        *(why(stores[n % 2], *(Approval(id_, HERE) for id_ in ids)) for n, ids in enumerate(batches))
    )
    used = [id_ for ids, refusal in zip(batches, found, strict=True) if refusal is None for id_ in ids]
    assert used
    assert len(used) == len(set(used))


async def test_as_many_are_used_at_once_as_anybody_has(store: SqlStore) -> None:
    ids = [f"id_{n}" for n in range(5000)]
    await waiting(store, *ids)
    assert await why(store, *(Approval(id_, HERE) for id_ in ids)) is None
    assert await why(store, Approval("id_4999", HERE)) == ("id_4999", USED)


# What the backend is sent in an item's place

PAIR = b'{"type":"function_call" ,"x":1.50},{"type":"function_call_output","output":"\\u00e9"}'


@pytest.mark.parametrize("upstream", [None, b"", PAIR, b"\x00\xff"])
async def test_it_is_kept_to_the_byte_or_is_not_there(store: SqlStore, upstream: bytes | None) -> None:
    given, made = item(type="mcp_approval_response", upstream=upstream), item(type="mcp_call", upstream=upstream)
    await saved(store, turn("resp_1", input=(given,), output=(made,)))
    history = await store.history(ALICE, "resp_1")
    assert history is not None
    assert history.items == (given, made)
    assert await store.items(ALICE, [given.id, made.id]) == {given.id: given, made.id: made}
    found = await store.response(ALICE, "resp_1")
    assert found is not None
    assert found.output == (made,)
    page = await store.input_items(ALICE, "resp_1", PageQuery())
    assert page is not None
    assert [each.body for each in page.items] == [given.body]


async def test_it_lives_on_in_conversations_branches_and_copies(store: SqlStore) -> None:
    made = item(type="mcp_call", upstream=PAIR)
    await saved(store, turn("resp_1", output=(made,)))
    history = await store.history(ALICE, "resp_1")
    await saved(store, turn("resp_2", history))
    await saved(store, turn("resp_3", history))
    assert await store.delete_response(ALICE, "resp_1")
    for response_id in ("resp_2", "resp_3"):
        found = await store.history(ALICE, response_id)
        assert found is not None
        assert found.items[1] == made
    assert history is not None
    for response_id in ("resp_2", "resp_3"):
        assert await store.delete_response(ALICE, response_id)
    await saved(store, turn("resp_4", history))  # its anchor is gone: the history is written again
    found = await store.history(ALICE, "resp_4")
    assert found is not None
    assert found.items[1] == made
    kept = item(type="mcp_call", upstream=b"")
    await conversation(store, items=(made,))
    await append(store, "conv_1", turn("resp_5", output=(kept,)))
    found = await store.conversation_history(ALICE, "conv_1")
    assert found is not None
    assert [each.upstream for each in found.items] == [PAIR, None, b""]


async def test_it_costs_no_query_of_its_own(store: SqlStore) -> None:
    await saved(store, turn("resp_1", output=tuple(item(type="mcp_call", upstream=PAIR) for _ in range(50))))
    with statements(store) as seen:
        history = await store.history(ALICE, "resp_1")
    assert len(seen) <= 2
    assert history is not None
    assert {each.upstream for each in history.items[1:]} == {PAIR}


async def test_the_newest_of_an_id_counts(store: SqlStore) -> None:
    old = item(type="mcp_call", upstream=b"old")
    await saved(store, turn("resp_1", output=(old,)))
    await saved(store, turn("resp_2", output=(structs.replace(old, upstream=PAIR),)))
    assert (await store.items(ALICE, [old.id]))[old.id].upstream == PAIR
