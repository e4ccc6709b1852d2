"""Each repair, streamed and not, switched on and off; and the bytes of everything that needs none."""

from __future__ import annotations

import json

import pytest

from proxy import errors
from proxy.filters.repair import Config, Repair
from proxy.protocol.events import Answer, Chunk, Event, Frames, Head, Message
from proxy.protocol.turn import Operation
from proxy.services import Services
from tests.playbook import (
    JSON,
    Played,
    Step,
    answer,
    delta,
    event,
    items_of,
    opening,
    play,
    post,
    response,
    said,
    streamed,
)

BODY = b'{"model": "m" ,"input":"hi","stream":true}'


@pytest.fixture
def services(closed: Services) -> Services:
    return closed


async def mended(services: Services, *steps: Step | list[Message], **switches: bool) -> Played:
    return await play([Repair(Config(**switches), services)], post(BODY, stream=True), *steps)


# Nothing wrong


async def test_a_sound_stream_keeps_every_message(services: Services):
    stream = [*streamed("resp_1", said("Hi")), Event(b"data: [DONE]\n\n")]
    played = await mended(services, stream)
    assert played.heard == stream
    assert played.turn.body.raw == BODY
    assert played.error is None


async def test_a_sound_answer_is_the_very_same_object(services: Services):
    sound = answer("resp_1", said("Hi"))
    played = await mended(services, sound)
    assert played.heard[0] is sound


async def test_an_answer_that_is_no_json_is_passed_on(services: Services):
    for odd in (Answer(200, b"", JSON, b"<html>"), Answer(500, b"", JSON, b"\xff")):
        assert (await mended(services, odd)).heard[0] is odd


async def test_what_is_not_ours_is_not_looked_at(services: Services):
    turn = post(b'{"truncation":null}', operation=Operation.OTHER)
    body: list[Message] = [Head(200, b"OK", JSON), Chunk(b"x")]
    played = await play([Repair(Config(), services)], turn, body)
    assert played.turn is turn
    assert played.heard == body


# Explicit nulls


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.INPUT_TOKENS, Operation.COMPACT])
async def test_nulls_that_vllm_refuses_are_dropped_and_the_rest_keeps_its_bytes(
    services: Services, operation: Operation
):
    body = b'{"truncation":null,"temperature":1.50,"tools":null, "x": null ,"background":null,"input":[ ]}'
    played = await play([Repair(Config(), services)], post(body, operation=operation), answer("r"))
    assert played.turn.body.raw == b'{"temperature":1.50,"x":null,"input":[ ]}'


async def test_the_switch_leaves_nulls_alone(services: Services):
    body = b'{"truncation":null}'
    played = await play([Repair(Config(null_fields=False), services)], post(body), answer("r"))
    assert played.turn.body.raw == body


# Incomplete


@pytest.mark.parametrize("on", [True, False])
async def test_a_completed_event_with_the_status_incomplete(services: Services, on: bool):
    stream = streamed("resp_1", said("Hi"), status="completed")[:-1]
    last = event("response.completed", 6, response=response("resp_1", said("Hi"), status="incomplete"))
    played = await mended(services, stream, last, incomplete_status=on)
    assert played.heard[:-1] == stream
    if on:
        assert played.types[-1] == "response.incomplete"
        assert json.loads(played.events[-1].fields["response"])["output"][-1]["status"] == "incomplete"
    else:
        assert played.heard[-1] is last


@pytest.mark.parametrize("on", [True, False])
async def test_an_answer_with_the_status_incomplete_marks_its_last_item(services: Services, on: bool):
    played = await mended(services, answer("resp_1", said("Hi"), status="incomplete"), incomplete_status=on)
    assert played.body["output"][-1]["status"] == ("incomplete" if on else "completed")
    assert played.body["status"] == "incomplete"


# Context overflow


OVERFLOW = Answer(400, b"Bad Request", JSON, b'{"error":{"message":"maximum context length is 9","code":400,"x":1.0}}')


async def test_a_context_overflow_gets_its_code(services: Services):
    (heard,) = (await mended(services, OVERFLOW)).heard
    assert isinstance(heard, Answer)
    assert heard.body == b'{"error":{"message":"maximum context length is 9","code":"context_length_exceeded","x":1.0}}'
    assert (heard.status, heard.reason, heard.headers) == (400, b"Bad Request", JSON)


async def test_the_switch_leaves_an_overflow_alone(services: Services):
    assert (await mended(services, OVERFLOW, context_length=False)).heard[0] is OVERFLOW


# No terminal event


@pytest.mark.parametrize(
    "error",
    [errors.StreamCut(), errors.IdleTimeout(), errors.TotalTimeout(), errors.UpstreamProtocol()],
    ids=lambda e: type(e).__name__,
)
async def test_a_stream_that_breaks_ends_with_response_failed(services: Services, error: errors.UpstreamError):
    begun = [*opening("resp_1"), *items_of(said("Hi")), Frames(delta(6))]
    played = await mended(services, begun, error)
    assert played.heard[:-1] == begun
    failed = played.events[-1]
    assert failed.type == "response.failed"
    assert failed.sequence_number == 7
    told = json.loads(failed.fields["response"])
    assert (told["id"], told["status"]) == ("resp_1", "failed")
    assert told["error"] == {"code": "server_error", "message": error.message}
    assert said("Hi") in failed.raw
    assert played.error is None


async def test_an_error_before_the_response_began_goes_on_as_it_is(services: Services):
    for steps in ([], opening("resp_1")[:1], [*opening("resp_1")[:1], Event(b": ping\n\n")]):
        refused = errors.StreamCut()
        played = await mended(services, steps, refused)
        assert played.error is refused
        assert played.heard == steps


async def test_a_cut_after_the_terminal_event_is_not_told_twice(services: Services):
    whole = streamed("resp_1", said("Hi"))
    late = errors.StreamCut()
    played = await mended(services, whole, late)
    assert played.heard == whole
    assert played.error is late


async def test_the_switch_leaves_a_cut_to_others(services: Services):
    cut = errors.StreamCut()
    played = await mended(services, opening("resp_1"), cut, missing_terminal=False)
    assert played.error is cut
    assert played.heard == opening("resp_1")


async def test_an_error_that_is_not_the_backends_goes_on(services: Services):
    broken = errors.StoreUnavailable()
    played = await mended(services, opening("resp_1"), broken)
    assert played.error is broken
    assert len(played.heard) == 3


# In-band errors


ERROR = event("error", 2, code=b'"server_error"', message=b'"the engine died"', param=b"null")


async def test_an_error_event_of_a_begun_response_becomes_response_failed(services: Services):
    played = await mended(services, opening("resp_1"), ERROR)
    assert played.types == ["response.created", "response.in_progress", "response.failed"]
    assert json.loads(played.events[-1].fields["response"])["error"] == {
        "code": "server_error",
        "message": "the engine died",
    }
    assert played.events[-1].sequence_number == 2


async def test_an_error_event_before_any_response_stays(services: Services):
    played = await mended(services, opening("resp_1")[:1], ERROR)
    assert played.heard[-1] is ERROR


async def test_the_switch_leaves_an_error_event_alone(services: Services):
    played = await mended(services, opening("resp_1"), ERROR, in_band_error=False)
    assert played.heard[-1] is ERROR


# Ids


BARE = said("Hi").replace(b'"id":"msg_1",', b"")


@pytest.mark.parametrize("on", [True, False])
async def test_items_without_ids_in_a_stream(services: Services, on: bool):
    bare_delta = delta(3).replace(b'"item_id":"msg_1",', b"")
    stream = [
        *opening("resp_1"),
        event("response.output_item.added", 2, output_index=b"0", item=BARE),
        Frames(bare_delta),
        event("response.output_item.done", 4, output_index=b"0", item=BARE),
        event("response.completed", 5, response=response("resp_1", BARE)),
    ]
    played = await mended(services, stream, item_ids=on)
    if not on:
        assert played.heard == stream
        return
    events = [json.loads(one.data) for one in played.events]
    ids = [
        events[2]["item"]["id"],
        events[3]["item_id"],
        events[4]["item"]["id"],
        events[5]["response"]["output"][0]["id"],
    ]
    assert ids[0].startswith("msg_")
    assert len(set(ids)) == 1


@pytest.mark.parametrize("on", [True, False])
async def test_items_without_ids_in_an_answer(services: Services, on: bool):
    played = await mended(services, answer("resp_1", BARE), item_ids=on)
    assert ("id" in played.body["output"][0]) is on


# After the end


async def test_only_what_closes_the_stream_follows_the_terminal_event(services: Services):
    done, ping = Event(b"data: [DONE]\n\n"), Event(b": bye\n\n")
    whole = streamed("resp_1", said("Hi"))
    played = await mended(services, whole, ERROR, whole[-1], done, ping)
    assert played.heard == [*whole, done, ping]
