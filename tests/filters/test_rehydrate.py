"""What a turn continues, by every way of saying so, and what the backend gets to see of it."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from proxy.protocol.events import Answer, Head
from proxy.protocol.records import Item
from proxy.protocol.turn import Operation
from proxy.services import Services
from tests.filters.stage import Stage, header, output, user
from tests.playbook import JSON, Played, answer, called, post, response, said, streamed


@pytest.fixture
def stage(services: Services) -> Stage:
    return Stage(services)


def refused(played: Played) -> tuple[int, str | None, str | None]:
    assert played.error is not None
    assert played.turns == []
    return played.error.status, played.error.code, played.error.param


# previous_response_id


async def test_a_first_turn_goes_up_byte_for_byte(stage: Stage):
    body = b'{"temperature":1.50, "seed":12345678901234567890,"x":"\\u00e9","input":"a","input":"b"}'
    played = await stage.turn(body)
    assert played.turn.body.raw == body


async def test_a_second_turn_carries_the_first_and_every_other_member_keeps_its_bytes(stage: Stage):
    await stage.turn({"input": "one"}, answer("resp_1", said("two")))
    played = await stage.turn(b'{"previous_response_id":"resp_1","temperature":1.50, "input":"three","x":{ "a":1 }}')
    assert played.turn.body.raw == b'{"temperature":1.50,"input":[%b,%b,%b],"x":{ "a":1 }}' % (
        user("one"),
        said("two"),
        user("three"),
    )


async def test_a_chain_of_turns_is_replayed_in_order(stage: Stage):
    for number in range(1, 5):
        previous = {"previous_response_id": f"resp_{number - 1}"} if number > 1 else {}
        played = await stage.turn({"input": f"q{number}", **previous})
    texts = [item["content"][0]["text"] for item in played.sent["input"]]
    assert texts == ["q1", "answer 1", "q2", "answer 2", "q3", "answer 3", "q4"]


async def test_two_turns_may_continue_the_same_one(stage: Stage):
    await stage.turn({"input": "root"})
    for text in ("left", "right"):
        played = await stage.turn({"input": text, "previous_response_id": "resp_1"})
        assert [item["content"][0]["text"] for item in played.sent["input"]] == ["root", "answer 1", text]


async def test_the_first_turns_session_goes_up_with_every_later_one(stage: Stage):
    first = await stage.turn({"input": "a"}, answer("resp_1", said("x"), headers=(*JSON, (b"X-Session-Token", b"tok"))))
    second = await stage.turn({"input": "b", "previous_response_id": "resp_1"}, answer("resp_2", said("y")))
    third = await stage.turn({"input": "c", "previous_response_id": "resp_2"})
    assert header(first, b"x-session-id") == header(second, b"x-session-id") == header(third, b"x-session-id") != []
    assert header(first, b"x-session-token") == []
    assert header(second, b"x-session-token") == [b"tok"]


@pytest.mark.parametrize("owner", ["ann", "bob"])
async def test_an_unknown_response_and_a_foreign_one_are_refused_alike(stage: Stage, owner: str):
    await stage.turn({"input": "a"}, owner="bob" if owner == "ann" else "ann")
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"}, owner=owner)
    assert refused(played) == (400, "previous_response_not_found", "previous_response_id")
    assert str(played.error) == "Previous response with id 'resp_1' not found."


@pytest.mark.parametrize("status", ["failed", "incomplete"])
async def test_only_a_completed_response_can_be_continued(stage: Stage, status: str):
    await stage.turn({"input": "a"}, answer("resp_1", said("x"), status=status))
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"})
    assert refused(played) == (400, "invalid_request_error", "previous_response_id")
    assert str(played.error) == f"cannot continue from response with status '{status}'"


async def test_an_operator_may_let_incomplete_responses_be_continued(services: Services):
    stage = Stage(services, rehydrate={"continue_from": ["completed", "incomplete"]})
    await stage.turn({"input": "a"}, answer("resp_1", said("x"), status="incomplete"))
    await stage.turn({"input": "a"}, answer("resp_2", said("x"), status="failed"))
    assert (await stage.turn({"input": "b", "previous_response_id": "resp_1"}, answer("resp_3"))).error is None
    assert refused(await stage.turn({"input": "b", "previous_response_id": "resp_2"}))[0] == 400


async def test_a_response_that_was_not_stored_cannot_be_continued(stage: Stage):
    await stage.turn({"input": "a", "store": False})
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"})
    assert refused(played)[1] == "previous_response_not_found"


async def test_a_turn_that_is_not_stored_may_continue_one_that_is(stage: Stage):
    await stage.turn({"input": "a"})
    played = await stage.turn({"input": "b", "store": False, "previous_response_id": "resp_1"})
    assert len(played.sent["input"]) == 3
    assert await stage.kept("resp_2") is None


@pytest.mark.parametrize("operation", [Operation.INPUT_TOKENS, Operation.COMPACT])
async def test_the_relatives_of_create_are_given_the_history_too_and_leave_nothing(stage: Stage, operation: Operation):
    await stage.turn({"input": "a"})
    counted = Answer(200, b"OK", JSON, b'{"object":"response.input_tokens","input_tokens":9}')
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"}, counted, operation=operation)
    assert len(played.sent["input"]) == 3
    assert played.heard == [counted]


@pytest.mark.parametrize(
    ("member", "value"),
    [("previous_response_id", 7), ("conversation", 7), ("conversation", {}), ("conversation", {"id": 1})],
)
async def test_a_malformed_selector_is_refused(stage: Stage, member: str, value: Any):
    assert refused(await stage.turn({"input": "a", member: value})) == (400, "invalid_type", member)


async def test_a_history_has_a_limit(services: Services):
    stage = Stage(services, rehydrate={"max_history_items": 2})
    await stage.turn({"input": "a"})
    await stage.turn({"input": "b", "previous_response_id": "resp_1"})
    played = await stage.turn({"input": "c", "previous_response_id": "resp_2"})
    assert played.error is not None
    assert "more than 2 items" in played.error.message


# What the client sees


async def test_the_name_is_put_back_into_an_answer(stage: Stage):
    await stage.turn({"input": "a"})
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"})
    (heard,) = played.heard
    assert isinstance(heard, Answer)
    assert (
        heard.body
        == response("resp_2", said("answer 2", "msg_a2")).replace(b', "object', b',"object')[:-1]
        + b',"previous_response_id":"resp_1"}'
    )


async def test_the_name_is_put_back_into_every_lifecycle_event_and_no_other(stage: Stage):
    await stage.turn({"input": "a"})
    stream = streamed("resp_2", said("x"))
    played = await stage.turn({"input": "b", "stream": True, "previous_response_id": "resp_1"}, stream)
    for event in played.events:
        if "response" in event.fields:
            assert json.loads(event.fields["response"])["previous_response_id"] == "resp_1"
            assert b'"temperature":1.50' in event.raw
    assert [message for message in played.heard if message in stream] == [
        part for part in stream if b'"response":' not in getattr(part, "raw", b"")
    ]


async def test_a_null_that_the_backend_says_is_replaced_in_its_place(stage: Stage):
    await stage.turn({"input": "a"})
    bare = Answer(200, b"OK", JSON, b'{"id":"resp_2","previous_response_id":null,"object":"response","output":[]}')
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"}, bare)
    assert played.heard == [
        Answer(200, b"OK", JSON, b'{"id":"resp_2","previous_response_id":"resp_1","object":"response","output":[]}')
    ]


@pytest.mark.parametrize(
    "name", [b"ETag", b"Digest", b"content-digest", b"Repr-Digest", b"Content-MD5", b"Last-Modified", b"Content-Range"]
)
async def test_a_body_that_is_bound_to_its_bytes_keeps_them(stage: Stage, name: bytes):
    await stage.turn({"input": "a"})
    bound = answer("resp_2", said("x"), headers=(*JSON, (name, b"x")))
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"}, bound)
    assert played.heard == [bound]


async def test_an_answer_that_came_encoded_stays_encoded_and_is_stored(stage: Stage):
    await stage.turn({"input": "a"})
    packed = gzip.compress(response("resp_2", said("x")))
    encoded = Answer(200, b"OK", (*JSON, (b"Content-Encoding", b"gzip")), packed)
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"}, encoded)
    assert played.heard == [encoded]
    assert await stage.kept("resp_2") == "completed"


async def test_an_error_of_the_backends_keeps_its_bytes(stage: Stage):
    await stage.turn({"input": "a"})
    error = Answer(400, b"Bad Request", JSON, b'{"error": {"code":400}}')
    played = await stage.turn({"input": "b", "previous_response_id": "resp_1"}, error)
    assert played.heard == [error]


async def test_what_was_stored_is_what_the_client_saw(stage: Stage):
    # The name is put back inside of the filter that stores.
    await stage.turn({"input": "a"})
    await stage.turn({"input": "b", "previous_response_id": "resp_1"})
    head = await stage.store.head("ann", "resp_2")  # type: ignore[arg-type]
    assert head is not None
    assert json.loads(head.envelope)["previous_response_id"] == "resp_1"


# conversation


@pytest.mark.parametrize("spelled", ["conv_1", {"id": "conv_1"}])
async def test_a_conversation_carries_its_items_and_gains_the_turns(stage: Stage, spelled: Any):
    await stage.conversation("conv_1", Item("msg_0", "message", user("before")))
    played = await stage.turn({"input": "one", "conversation": spelled}, answer("resp_1", said("two")))
    assert played.turn.body.raw == b'{"input":[%b,%b]}' % (user("before"), user("one"))
    assert await stage.items_of("conv_1") == [user("before"), user("one"), said("two")]


@pytest.mark.parametrize("spelled", ["conv_1", {"id": "conv_1"}])
async def test_the_conversation_is_named_in_the_response_as_an_object(stage: Stage, spelled: Any):
    await stage.conversation("conv_1")
    told = await stage.turn({"input": "a", "conversation": spelled})
    assert told.body["conversation"] == {"id": "conv_1"}
    stream = streamed("resp_2", said("x"))
    played = await stage.turn({"input": "b", "conversation": spelled, "stream": True}, stream)
    lifecycle = [event for event in played.events if "response" in event.fields]
    assert len(lifecycle) == 3
    assert all(json.loads(event.fields["response"])["conversation"] == {"id": "conv_1"} for event in lifecycle)


async def test_a_conversation_turn_that_is_not_stored_is_appended_all_the_same(stage: Stage):
    await stage.conversation("conv_1")
    await stage.turn({"input": "one", "conversation": "conv_1", "store": False}, answer("resp_1", said("two")))
    assert await stage.items_of("conv_1") == [user("one"), said("two")]
    assert await stage.kept("resp_1") is None


@pytest.mark.parametrize("status", ["failed", "incomplete"])
async def test_a_turn_that_did_not_complete_is_not_appended(stage: Stage, status: str):
    await stage.conversation("conv_1")
    await stage.turn({"input": "one", "conversation": "conv_1"}, answer("resp_1", said("two"), status=status))
    assert await stage.items_of("conv_1") == []
    assert await stage.kept("resp_1") == status


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.INPUT_TOKENS])
async def test_an_unknown_conversation_is_404_and_never_made(stage: Stage, operation: Operation):
    played = await stage.turn({"input": "a", "conversation": "conv_9"}, operation=operation)
    assert refused(played) == (404, "conversation_not_found", "conversation")
    assert await stage.store.conversation("ann", "conv_9") is None  # type: ignore[arg-type]


async def test_a_foreign_conversation_is_404(stage: Stage):
    await stage.conversation("conv_1")
    played = await stage.turn({"input": "a", "conversation": "conv_1"}, owner="bob")
    assert refused(played) == (404, "conversation_not_found", "conversation")


async def test_counting_tokens_neither_locks_nor_changes_a_conversation(stage: Stage):
    await stage.conversation("conv_1", Item("msg_0", "message", user("before")))
    gate = asyncio.Event()
    _, running = stage.begin({"input": "one", "conversation": "conv_1"}, gate, answer("resp_1"))
    counted = Answer(200, b"OK", JSON, b'{"input_tokens":9}')
    played = await stage.turn({"input": "b", "conversation": "conv_1"}, counted, operation=Operation.INPUT_TOKENS)
    assert len(played.sent["input"]) == 2
    gate.set()
    await running


# The lease


async def test_a_second_turn_waits_for_the_first_and_sees_its_items(stage: Stage):
    await stage.conversation("conv_1")
    gate = asyncio.Event()
    first, running = stage.begin({"input": "one", "conversation": "conv_1"}, gate, answer("resp_1", said("two")))
    await first.waiting.wait()
    second, waiting = stage.begin({"input": "three", "conversation": "conv_1"}, answer("resp_2", said("four", "msg_2")))
    await asyncio.sleep(0.1)
    assert second.turns == []
    gate.set()
    await asyncio.gather(running, waiting)
    assert (first.error, second.error) == (None, None)
    assert second.turn.body.raw == b'{"input":[%b,%b,%b]}' % (user("one"), said("two"), user("three"))
    assert len(await stage.items_of("conv_1")) == 4


async def test_more_than_the_queue_holds_are_refused_at_once(services: Services):
    stage = Stage(services, rehydrate={"conversation_queue": 1})
    await stage.conversation("conv_1")
    gate = asyncio.Event()
    first, running = stage.begin({"input": "1", "conversation": "conv_1"}, gate, answer("resp_1"))
    await first.waiting.wait()
    _, waiting = stage.begin({"input": "2", "conversation": "conv_1"}, answer("resp_2"))
    await asyncio.sleep(0)
    third = await stage.turn({"input": "3", "conversation": "conv_1"})
    assert refused(third) == (409, "conversation_locked", "conversation")
    assert third.error is not None
    assert third.error.headers == ((b"Retry-After", b"1"),)
    gate.set()
    await asyncio.gather(running, waiting)


async def test_who_waits_too_long_is_refused(services: Services):
    stage = Stage(services, rehydrate={"conversation_wait_seconds": 0.1})
    await stage.conversation("conv_1")
    gate = asyncio.Event()
    first, running = stage.begin({"input": "1", "conversation": "conv_1"}, gate, answer("resp_1"))
    await first.waiting.wait()
    second = await stage.turn({"input": "2", "conversation": "conv_1"})
    assert refused(second) == (409, "conversation_locked", "conversation")
    assert str(second.error) == "The conversation was busy for 0.1 seconds. Retry later."
    gate.set()
    await running
    assert (await stage.turn({"input": "3", "conversation": "conv_1"}, answer("resp_3"))).error is None


async def test_a_turn_that_fails_or_is_abandoned_gives_the_conversation_back(stage: Stage):
    from proxy.errors import UpstreamUnreachable

    await stage.conversation("conv_1")
    failed = await stage.turn({"input": "1", "conversation": "conv_1"}, UpstreamUnreachable())
    assert failed.error is not None
    left, running = stage.begin({"input": "2", "conversation": "conv_1"}, asyncio.Event())
    await left.waiting.wait()
    running.cancel()
    await asyncio.wait([running])
    assert (await stage.turn({"input": "3", "conversation": "conv_1"}, answer("resp_3", said("x")))).error is None
    assert await stage.items_of("conv_1") == [user("3"), said("x")]


async def test_other_conversations_and_other_owners_do_not_wait(stage: Stage):
    await stage.conversation("conv_1")
    await stage.conversation("conv_2")
    gate = asyncio.Event()
    first, running = stage.begin({"input": "1", "conversation": "conv_1"}, gate, answer("resp_1"))
    await first.waiting.wait()
    assert (await stage.turn({"input": "2", "conversation": "conv_2"}, answer("resp_2"))).error is None
    gate.set()
    await running


# item_reference


@pytest.mark.parametrize("spelled", [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}])
async def test_a_reference_becomes_the_item_with_its_stored_bytes(stage: Stage, spelled: dict[str, str]):
    await stage.turn({"input": "one"}, answer("resp_1", said("two")))
    played = await stage.turn({"input": [spelled, {"role": "user", "content": "three"}]})
    assert played.turn.body.raw == b'{"input":[%b,{"role":"user","content":"three"}]}' % said("two")


async def test_a_reference_may_stand_in_a_continued_turn(stage: Stage):
    await stage.turn({"input": "one"}, answer("resp_1", said("two")))
    await stage.turn({"input": "other"}, answer("resp_2", said("else", "msg_2")))
    played = await stage.turn({"previous_response_id": "resp_1", "input": [{"id": "msg_2"}]})
    assert played.turn.body.raw == b'{"input":[%b,%b,%b]}' % (user("one"), said("two"), said("else", "msg_2"))


@pytest.mark.parametrize("owner", ["ann", "bob"])
async def test_an_unknown_reference_and_a_foreign_one_are_refused_alike(stage: Stage, owner: str):
    await stage.turn({"input": "one"}, owner="bob" if owner == "ann" else "ann")
    played = await stage.turn({"input": [{"id": "msg_a1"}]}, owner=owner)
    assert refused(played) == (400, "invalid_request_error", "input")
    assert str(played.error) == "Item with id 'msg_a1' not found."


# Tool outputs without a selector


async def test_outputs_alone_are_bound_to_the_response_that_made_their_calls(stage: Stage):
    await stage.turn({"input": "add"}, answer("resp_1", called("c1"), called("c2")))
    played = await stage.turn({"input": [output("c2"), output("c1")]})
    assert [item.get("call_id") for item in played.sent["input"]] == [None, "c1", "c2", "c2", "c1"]
    assert called("c1") in played.turn.body.raw
    assert header(played, b"x-session-id") != []


async def test_outputs_answer_calls_of_an_earlier_turn_of_the_chain(stage: Stage):
    await stage.turn({"input": "one"}, answer("resp_1", said("two")))
    await stage.turn({"input": "add", "previous_response_id": "resp_1"}, answer("resp_2", called("c1")))
    played = await stage.turn({"input": [output("c1")]})
    assert len(played.sent["input"]) == 5


@pytest.mark.parametrize(
    ("given", "named"),
    [(["nope"], "'nope'"), (["c1", "nope"], "'nope'"), (["c1", "d1"], "'c1', 'd1'"), (["same"], "'same'")],
    ids=["unknown", "in part", "of two responses", "ambiguous"],
)
async def test_outputs_that_cannot_be_bound_are_refused_by_name(stage: Stage, given: list[str], named: str):
    await stage.turn({"input": "1"}, answer("resp_1", called("c1")))
    await stage.turn({"input": "2"}, answer("resp_2", called("d1")))
    await stage.turn({"input": "3"}, answer("resp_3", called("same", "fc_a")))
    await stage.turn({"input": "4"}, answer("resp_4", called("same", "fc_b")))
    played = await stage.turn({"input": [output(call_id) for call_id in given]})
    assert refused(played) == (400, "invalid_request_error", "input")
    assert named in str(played.error)
    assert "replay the full history" in str(played.error)


async def test_a_foreign_call_is_an_unknown_one(stage: Stage):
    await stage.turn({"input": "1"}, answer("resp_1", called("c1")))
    played = await stage.turn({"input": [output("c1")]}, owner="bob")
    assert refused(played)[0] == 400


async def test_a_call_left_open_is_named(stage: Stage):
    await stage.turn({"input": "add"}, answer("resp_1", called("c1"), called("c2")))
    for request in (
        {"input": "never mind", "previous_response_id": "resp_1"},
        {"input": [output("c1")], "previous_response_id": "resp_1"},
        {"input": [output("c1")]},
    ):
        played = await stage.turn(request)
        assert refused(played) == (400, "invalid_request_error", "input")
        assert "'c2'" in str(played.error)


async def test_an_output_beside_a_message_is_no_key_to_the_history(stage: Stage):
    await stage.turn({"input": "add"}, answer("resp_1", called("c1")))
    played = await stage.turn({"input": [output("c1"), {"role": "user", "content": "and?"}]})
    assert refused(played)[0] == 400
    assert "'c1'" in str(played.error)


async def test_a_client_that_replays_everything_is_left_alone(stage: Stage):
    await stage.turn({"input": "add"}, answer("resp_1", called("c1")))
    replayed = b'{"input":[ %b,%b, {"type":"function_call_output","call_id":"c1","output":"42"}]}' % (
        user("add"),
        called("c1"),
    )
    played = await stage.turn(replayed)
    assert played.turn.body.raw == replayed
    assert await stage.kept("resp_1") == "completed"


async def test_what_is_not_ours_is_not_looked_at(stage: Stage):
    turn = post(b'{"previous_response_id":7}', operation=Operation.OTHER)
    played = await stage.turn(turn.body.raw, Head(200, b"OK", JSON), operation=Operation.OTHER)
    assert played.error is None
    assert played.turn.body.raw == turn.body.raw
