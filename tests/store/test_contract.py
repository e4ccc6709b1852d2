"""What every backend promises about responses and items."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from proxy.errors import StoreConflict
from proxy.store import NewResponse, Page, PageQuery, UnknownCursor
from proxy.store._sql import SqlStore
from tests.store.records import ALICE, BOB, call, chain, failed, ids, item, rows, saved, turn


async def test_a_saved_turn_is_read_back_as_it_was(store: SqlStore) -> None:
    new = NewResponse("resp_1", "completed", 12.5, None, b'{"a":1.0}', b"event: x\n\n" * 20_000)
    record = await saved(store, turn("resp_1", response=new, session_token="router"))
    found = await store.response(ALICE, "resp_1")
    assert found is not None
    assert found.output == record.output
    assert found.head == await store.head(ALICE, "resp_1")
    assert (found.head.status, found.head.created_at, found.head.envelope) == ("completed", 12.5, b'{"a":1.0}')
    assert await store.events(ALICE, "resp_1") == new.events
    history = await store.history(ALICE, "resp_1")
    assert history is not None
    assert history.items == record.input + record.output
    assert (history.session, history.session_token) == ("session", "router")


async def test_bytes_are_kept_exactly(store: SqlStore) -> None:
    odd = item(body=b'{"n":1.50e+1,"s":"\\u00e9\x00\xff"}')
    await store.save(turn("resp_1", input=(odd,)))
    history = await store.history(ALICE, "resp_1")
    assert history is not None
    assert history.items[0] == odd


async def test_nothing_is_found_under_another_owner_or_id(store: SqlStore) -> None:
    record = await saved(store, turn("resp_1", output=(call("call_1"),)))
    for owner, response_id in ((BOB, "resp_1"), (ALICE, "resp_2")):
        assert await store.response(owner, response_id) is None
        assert await store.head(owner, response_id) is None
        assert await store.events(owner, response_id) is None
        assert await store.history(owner, response_id) is None
        assert await store.input_items(owner, response_id, PageQuery()) is None
        assert not await store.delete_response(owner, response_id)
    assert await store.items(BOB, [record.output[0].id]) == {}
    assert list(await store.calls(BOB, ["call_1"])) == []
    assert await store.head(ALICE, "resp_1") is not None


async def test_two_owners_may_have_the_same_ids(store: SqlStore) -> None:
    record = await saved(store, turn("resp_1"))
    theirs = replace(record, owner=BOB, output=(structs.replace(record.output[0], body=b'"bob"'),))
    await store.save(theirs)
    assert await store.delete_response(ALICE, "resp_1")
    found = await store.response(BOB, "resp_1")
    assert found is not None
    assert found.output == theirs.output
    assert await rows(store, ALICE) == {}


async def test_a_repeated_response_id_is_a_conflict_that_changes_nothing(store: SqlStore) -> None:
    record = await saved(store, turn("resp_1"))
    before = await rows(store)
    with pytest.raises(StoreConflict):
        await store.save(turn("resp_1"))
    assert await rows(store) == before
    assert await ids(store, "resp_1") == [one.id for one in record.input + record.output]


async def test_without_a_response_or_a_lease_nothing_is_written(store: SqlStore) -> None:
    await store.save(turn("resp_1", response=None))
    assert await rows(store) == {}


async def test_an_event_log_beyond_the_cap_is_left_out(store: SqlStore) -> None:
    store._max_event_bytes = 10
    await store.save(turn("r", response=NewResponse("r", "completed", 1.0, None, b"{}", b"x" * 11)))
    assert await store.events(ALICE, "r") is None
    assert await store.response(ALICE, "r") is not None


async def test_a_failed_turn_can_be_read_and_does_not_move_the_chain(store: SqlStore) -> None:
    first = await saved(store, turn("resp_1"))
    history = await store.history(ALICE, "resp_1")
    cut = await saved(store, failed(turn("resp_2", history)))
    good = await saved(store, turn("resp_3", history))
    expected = [one.id for one in first.input + first.output + good.input + good.output]
    assert await ids(store, "resp_3") == expected
    found = await store.response(ALICE, "resp_2")
    assert found is not None
    assert found.head.status == "failed"
    assert found.output == cut.output
    after = await store.history(ALICE, "resp_3")
    assert history is not None
    assert after is not None
    assert after.anchor.thread == history.anchor.thread


async def test_a_turn_without_items_can_be_continued(store: SqlStore) -> None:
    await store.save(turn("resp_1", input=(), output=()))
    history = await store.history(ALICE, "resp_1")
    last = await saved(store, turn("resp_2", history))
    assert await ids(store, "resp_2") == [last.input[0].id, last.output[0].id]


async def test_the_session_token_follows_the_newest_turn(store: SqlStore) -> None:
    await store.save(turn("resp_1", session_token="one"))
    history = await store.history(ALICE, "resp_1")
    await store.save(turn("resp_2", history, session_token="two"))
    await store.save(turn("resp_3", await store.history(ALICE, "resp_2")))
    after = await store.history(ALICE, "resp_3")
    assert after is not None
    assert (after.session, after.session_token) == ("session", "two")
    await store.save(turn("fork", history))
    fork = await store.history(ALICE, "fork")
    assert fork is not None
    assert (fork.session, fork.session_token) == ("session", "one")


async def test_input_items_are_the_response_own_and_paged(store: SqlStore) -> None:
    first = await saved(store, turn("resp_1"))
    own = tuple(item() for _ in range(5))
    await store.save(turn("resp_2", await store.history(ALICE, "resp_1"), input=own))

    async def page(**query: object) -> Page | None:
        return await store.input_items(ALICE, "resp_2", PageQuery(**query))  # type: ignore[arg-type]

    assert await page() == Page(own[::-1], has_more=False)
    assert await page(order="asc", limit=2) == Page(own[:2], has_more=True)
    assert await page(order="asc", limit=3, after=own[1].id) == Page(own[2:], has_more=False)
    assert await page(order="desc", limit=2, after=own[3].id) == Page((own[2], own[1]), has_more=True)
    assert await page(order="asc", after=own[4].id) == Page((), has_more=False)
    for stranger in (first.input[0].id, "msg_none"):
        with pytest.raises(UnknownCursor):
            await page(after=stranger)


async def test_an_id_repeated_within_a_turn_is_replaced_and_the_bytes_kept(store: SqlStore) -> None:
    same = item()
    await store.save(turn("resp_1", input=(same, same), output=(same,)))
    page = await store.input_items(ALICE, "resp_1", PageQuery(order="asc"))
    assert page is not None
    assert page.items[0] == same
    assert page.items[1].id.startswith("msg_")
    assert page.items[1].id != same.id
    assert {one.body for one in page.items} == {same.body}
    following = await store.input_items(ALICE, "resp_1", PageQuery(order="asc", after=page.items[0].id))
    assert following == Page(page.items[1:], has_more=False)


@pytest.mark.parametrize("times", [1, 4])
async def test_replayed_items_are_stored_any_number_of_times(store: SqlStore, times: int) -> None:
    for owner in (ALICE, BOB):
        record = await saved(store, replace(turn("resp_0"), owner=owner))
        seen = record.input + record.output
        for number in range(1, times + 1):
            history = await store.history(owner, f"resp_{number - 1}")
            record = await saved(store, turn(f"resp_{number}", history, owner=owner, input=(*seen, item())))
            seen = record.input + record.output
        page = await store.input_items(owner, f"resp_{times}", PageQuery(limit=100, order="asc"))
        assert page is not None
        assert page.items == record.input
        after = await store.input_items(owner, f"resp_{times}", PageQuery(order="asc", after=record.input[0].id))
        assert after is not None
        assert after.items == record.input[1:]


async def test_the_newest_item_of_an_id_is_found(store: SqlStore) -> None:
    old, other = item("old"), item()
    await store.save(turn("resp_1", input=(old, other)))
    new = structs.replace(old, body=b'"new"')
    await store.save(turn("resp_2", await store.history(ALICE, "resp_1"), input=(new,)))
    assert await store.items(ALICE, [old.id, other.id, "msg_none"]) == {old.id: new, other.id: other}
    assert await store.items(ALICE, []) == {}


async def test_calls_lead_to_the_completed_responses_that_made_them(store: SqlStore) -> None:
    await store.save(turn("resp_1", output=(call("call_1"), item(type="mcp_call", call_id="call_2"))))
    await store.save(failed(turn("resp_2", output=(call("call_3"),))))
    await store.save(turn("resp_3", input=(call("call_1"), item(type="function_call_output", call_id="call_1"))))
    found = await store.calls(ALICE, ["call_1", "call_2", "call_3", "call_4"])
    assert [(one.call_id, one.response_id) for one in found] == [("call_1", "resp_1")]
    await store.save(turn("resp_4", output=(item(type="custom_tool_call", call_id="call_1"),)))
    assert {one.response_id for one in await store.calls(ALICE, ["call_1"])} == {"resp_1", "resp_4"}
    await store.delete_response(ALICE, "resp_1")
    assert {one.response_id for one in await store.calls(ALICE, ["call_1"])} == {"resp_4"}
    assert list(await store.calls(ALICE, [])) == []


async def test_a_descendant_outlives_the_responses_before_it(store: SqlStore) -> None:
    turns = await chain(store, 4)
    expected = [one.id for record in turns for one in record.input + record.output]
    for number in range(3):
        assert await store.delete_response(ALICE, f"resp_{number}")
        assert not await store.delete_response(ALICE, f"resp_{number}")
    assert await ids(store, "resp_3") == expected
    await store.save(turn("resp_4", await store.history(ALICE, "resp_3")))
    assert (await ids(store, "resp_4") or [])[:-2] == expected
    for number in (3, 4):
        assert await store.delete_response(ALICE, f"resp_{number}")
    assert await rows(store) == {}


async def test_only_the_tail_that_nobody_needs_goes(store: SqlStore) -> None:
    await chain(store, 3)
    assert await store.delete_response(ALICE, "resp_2")
    assert (await rows(store))["items"] == 4
    assert await store.delete_response(ALICE, "resp_0")
    assert (await rows(store))["items"] == 4
    assert await store.delete_response(ALICE, "resp_1")
    assert await rows(store) == {}


async def test_a_sweep_takes_what_has_expired_and_no_more_than_asked(store: SqlStore) -> None:
    def expiring(number: int, at: float | None) -> NewResponse:
        return NewResponse(f"resp_{number}", "completed", 1.0, at, b"{}", b"data")

    history = None
    for number in range(5):
        await store.save(turn("", history, response=expiring(number, 10.0 + number)))
        history = await store.history(ALICE, f"resp_{number}")
    await store.save(turn("", history, response=expiring(5, 4e9)))
    await store.save(turn("", None, response=expiring(6, None)))
    assert await store.sweep(3) == 3
    assert await store.head(ALICE, "resp_2") is None
    assert await store.head(ALICE, "resp_3") is not None
    assert await store.sweep(3) == 2
    assert await store.sweep(3) == 0
    assert len(await ids(store, "resp_5") or []) == 12
    await store.delete_response(ALICE, "resp_5")
    await store.delete_response(ALICE, "resp_6")
    assert await rows(store) == {}


async def test_cancel_requests_are_left_for_all_workers(store: SqlStore) -> None:
    await store.request_cancel(ALICE, "resp_1")
    await store.request_cancel(ALICE, "resp_1")
    await store.request_cancel(BOB, "resp_1")
    assert sorted(await store.cancel_requests(60)) == [(ALICE, "resp_1"), (BOB, "resp_1")]
    assert list(await store.cancel_requests(-60)) == []


async def test_ping(store: SqlStore) -> None:
    await store.ping()


async def test_a_thread_is_cut_back_to_its_furthest_fork(store: SqlStore) -> None:
    turns = await chain(store, 4)
    for number in (0, 2):
        await store.save(turn(f"branch_{number}", await store.history(ALICE, f"resp_{number}")))
    for number in range(4):
        await store.delete_response(ALICE, f"resp_{number}")
    expected = [one.id for record in turns[:3] for one in record.input + record.output]
    assert (await ids(store, "branch_2") or [])[:-2] == expected
    assert (await ids(store, "branch_0") or [])[:-2] == expected[:2]
    assert (await rows(store))["items"] == 6 + 4
    await store.delete_response(ALICE, "branch_2")
    assert (await rows(store))["items"] == 2 + 2
    await store.delete_response(ALICE, "branch_0")
    assert await rows(store) == {}
