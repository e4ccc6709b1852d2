"""A backend's stream folded into what it said, and finished where the backend did not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol.events import Event, Frames, encode
from proxy.protocol.round import NoResponse, Outcome, Round, error_event, outcome, stable_id, terminal_response
from proxy.protocol.sse import split

RESPONSE = (
    b'{"id":"resp_1","object":"response","created_at":1700000000,"status":"in_progress","output":[],"temperature":1.50}'
)
ITEM = b'{"id":"msg_1","type":"message","status":"completed","content":[{"text": "Hi"}]}'


def event(type_: str, number: int, **members: bytes) -> Event:
    fields = b"".join(b',"%b":%b' % (name.encode(), raw) for name, raw in members.items())
    return encode(type_, b'{"type":"%b","sequence_number":%d%b}' % (type_.encode(), number, fields))


def delta(number: int) -> bytes:
    return event("response.output_text.delta", number, delta=b'"x"').raw


def heard(*parts: Event | Frames) -> Round:
    round_ = Round()
    for part in parts:
        round_.observe(part)
    return round_


CREATED = event("response.created", 0, response=RESPONSE)
DONE = event("response.output_item.done", 4, output_index=b"0", item=ITEM)


def data(made: Event) -> Any:
    return json.loads(made.data)


def test_a_cut_stream_becomes_a_failed_response_with_what_was_done():
    failed = heard(CREATED, Frames(delta(1) + delta(2)), DONE).failed("upstream_stream_cut", "It ended.")
    assert failed.type == "response.failed"
    assert data(failed)["sequence_number"] == 5
    response = data(failed)["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "upstream_stream_cut", "message": "It ended."}
    assert ITEM in failed.raw
    assert b'"temperature":1.50' in failed.raw


def test_the_newest_lifecycle_event_is_the_one_that_counts():
    later = RESPONSE.replace(b'"in_progress"', b'"queued"').replace(b"1.50", b"2.50")
    ended = heard(CREATED, event("response.in_progress", 1, response=later)).ended(
        "response.incomplete", "incomplete", {}
    )
    assert b'"temperature":2.50' in ended.raw
    assert data(ended)["response"]["status"] == "incomplete"


def test_items_come_in_the_order_of_their_index():
    first, second = ITEM, ITEM.replace(b"msg_1", b"msg_2")
    round_ = heard(
        event("response.output_item.done", 0, output_index=b"1", item=second),
        event("response.output_item.done", 1, output_index=b"0", item=first),
    )
    assert round_.items() == [first, second]


@pytest.mark.parametrize(
    ("parts", "number"),
    [
        ([], 0),
        ([CREATED], 1),
        ([CREATED, Frames(delta(1) + delta(2))], 3),
        ([CREATED, DONE, Event(b": ping\n\n"), Event(b"data: [DONE]\n\n")], 5),
        ([Frames(delta(1)), Event(b": ping\n\n")], 2),
        ([CREATED, DONE], 5),
    ],
)
def test_the_next_number_follows_the_last_one(parts: list[Event | Frames], number: int):
    assert heard(*parts).next_sequence_number == number


def test_nothing_can_be_finished_that_never_began():
    with pytest.raises(NoResponse):
        heard(Event(b": ping\n\n"), Frames(delta(0))).failed("x", "y")


@pytest.mark.parametrize("type_", ["response.completed", "response.incomplete", "response.failed", "error"])
def test_the_terminal_event_is_remembered(type_: str):
    terminal = event(type_, 3, response=RESPONSE)
    assert heard(CREATED).terminal is None
    assert heard(CREATED, terminal).terminal is terminal
    assert terminal_response(terminal) == RESPONSE


def test_a_bare_error_carries_no_response():
    assert terminal_response(error_event("server_error", "m", None, 3)) is None


def test_an_error_event_is_flat():
    assert data(error_event("c", "m", "p", 3)) == {
        "type": "error",
        "sequence_number": 3,
        "code": "c",
        "message": "m",
        "param": "p",
    }


def test_an_outcome_is_the_envelope_and_its_items():
    raw = b'{"id":"resp_1", "status":"completed","created_at":1.5,"output":[' + ITEM + b'],"x":1.0}'
    found = outcome(raw)
    assert isinstance(found, Outcome)
    assert (found.id, found.status, found.created_at) == ("resp_1", "completed", 1.5)
    assert found.envelope == b'{"id":"resp_1", "status":"completed","created_at":1.5,"output":[],"x":1.0}'
    assert [(item.id, item.body) for item in found.output] == [("msg_1", ITEM)]


@pytest.mark.parametrize(
    ("raw", "envelope"),
    [
        (b'{"usage":{"output":[]},"id":"r","output":[%b]}', b'{"usage":{"output":[]},"id":"r","output":[]}'),
        (b'{"id":"r","output":[%b],"usage":{"output":[]}}', b'{"id":"r","output":[],"usage":{"output":[]}}'),
        (b'{"output":[],"id":"r","output":[%b]}', b'{"output":[],"id":"r"}'),
        (b'{"id":"r","output" : [%b]}', b'{"id":"r","output":[]}'),
        (b'{"id":"r","text":"\\"output\\":[","output":[%b]}', b'{"id":"r","text":"\\"output\\":[","output":[]}'),
    ],
)
def test_only_the_response_s_own_output_is_emptied(raw: bytes, envelope: bytes):
    found = outcome(raw % ITEM)
    assert found.envelope == envelope
    assert [item.body for item in found.output] == [ITEM]


@pytest.mark.parametrize("listed", [b"[]", b"null"])
def test_items_that_streamed_by_stand_in_where_none_are_listed(listed: bytes):
    assert [item.body for item in outcome(b'{"id":"r","output":%b}' % listed, [ITEM]).output] == [ITEM]
    assert [item.body for item in outcome(b'{"id":"r"}', [ITEM]).output] == [ITEM]


def test_listed_items_win_over_those_that_streamed_by():
    assert outcome(b'{"id":"r","output":[%b]}' % ITEM, [b"{}", b"{}"]).output[0].body == ITEM


def test_an_item_without_an_id_gets_the_same_one_every_time():
    raw = b'{"id":"resp_1","output":[{"type":"reasoning"},{"type":"function_call","call_id":"c"}]}'
    first, second = outcome(raw).output
    assert first.id == stable_id("rs_", "resp_1", 0)
    assert (second.id, second.call_id) == (stable_id("fc_", "resp_1", 1), "c")
    assert outcome(raw) == outcome(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"id":""}',
        b'{"id":7}',
        b'{"id":"r","output":{}}',
        b'{"id":"r","output":["x"]}',
        b'{"id":"r","output":[{"type":1}]}',
    ],
)
def test_what_is_no_response_is_said_to_be_none(raw: bytes):
    with pytest.raises(NoResponse):
        outcome(raw)


@pytest.mark.parametrize(("spelled", "seconds"), [(b"1", 1.0), (b"1.5", 1.5), (b"null", None), (b'"x"', None)])
def test_the_time_of_creation_may_be_missing(spelled: bytes, seconds: float | None):
    assert outcome(b'{"id":"r","created_at":%b}' % spelled).created_at == seconds


def test_a_whole_recorded_stream_folds_into_its_own_response():
    from tests.cassettes import load  # the recording of a real vLLM

    stream = b"".join(load("sse_turn").chunks)
    round_ = heard(*split(stream))
    assert round_.terminal is not None
    response = terminal_response(round_.terminal)
    assert response is not None
    assert [item.body for item in outcome(response).output] == round_.items()
