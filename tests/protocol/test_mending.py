"""Each repair acts where its case is present, and gives back the very same object where it is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import mending
from proxy.protocol.events import Event, Frames, encode
from proxy.protocol.round import Round, stable_id
from proxy.protocol.sse import frames
from tests import cassettes

# What a repair must not touch: spellings that any decode and encode would change.
ODD = rb'"t":1.50,"n":12345678901234567890,"e":"\u00e9","m":{ "a" : [1 ,2] }'


def response(status: str, *items: bytes, extra: bytes = ODD) -> bytes:
    return b'{"id":"resp_1","status":"%b","output":[%b],%b}' % (status.encode(), b",".join(items), extra)


def message(id_: str = "msg_1", status: str = "completed") -> bytes:
    return b'{"id":"%b","type":"message","status":"%b","x":1.0}' % (id_.encode(), status.encode())


def read(raw: bytes) -> Any:
    return json.loads(raw)


# Context overflow


def test_a_recorded_context_overflow_gets_the_code_that_clients_know():
    body = cassettes.load("error_context_tokens").body
    before, after = read(body), read(mending.context_length(body))
    assert after["error"].pop("code") == "context_length_exceeded"
    before["error"].pop("code")
    assert after == before


@pytest.mark.parametrize(
    "error",
    [
        b'{"message":"This model\'s maximum context length is 5","code":400}',
        b'{"message":"The engine prompt length is 9","code":400}',
        b'{"message":"m","param":"input_tokens"}',
        b'{"message":"contains 5 characters","param":"input_text"}',
    ],
)
def test_every_spelling_of_an_overflow_is_known(error: bytes):
    assert read(mending.context_length(b'{"error":' + error + b"}"))["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "name", [name for name in cassettes.names() if name.startswith("error_") and name != "error_context_tokens"]
)
def test_every_other_recorded_error_stays_as_it_is(name: str):
    body = cassettes.load(name).body
    if body.startswith(b"{"):
        assert mending.context_length(body) is body


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":"Unauthorized"}',
        b'{"detail":"x"}',
        b"{}",
        b'{"error":{"code":"context_length_exceeded","param":"input_tokens"}}',
    ],
)
def test_an_error_of_another_shape_stays_as_it_is(body: bytes):
    assert mending.context_length(body) is body


# Incomplete


def test_the_last_item_of_an_incomplete_response_is_marked_so():
    body = response("incomplete", message("a"), message("b"))
    assert mending.incomplete_response(body) == response("incomplete", message("a"), message("b", "incomplete"))


@pytest.mark.parametrize(
    "body",
    [
        response("completed", message()),
        response("completed", message("incomplete")),
        response("incomplete"),
        response("incomplete", message("a"), message("b", "incomplete")),
        b'{"status":"incomplete"}',
        b'{"status":"incomplete","output":null}',
    ],
)
def test_a_response_that_needs_no_mark_stays_as_it_is(body: bytes):
    assert mending.incomplete_response(body) is body


def test_a_completed_event_of_an_incomplete_response_becomes_an_incomplete_one():
    event = completed(response("incomplete", message()))
    mended = mending.incomplete_event(event)
    assert mended.type == "response.incomplete"
    assert mended.raw.startswith(b"event: response.incomplete\ndata: {")
    assert mended.fields["type"] == b'"response.incomplete"'
    assert mended.fields["sequence_number"] == b"9"
    assert mended.fields["response"] == response("incomplete", message(status="incomplete"))


def test_a_completed_event_of_a_complete_response_stays_as_it_is():
    for event in (
        completed(response("completed", message("incomplete"))),
        completed(b"null"),
        encode("response.completed", b"{}"),
    ):
        assert mending.incomplete_event(event) is event


def completed(body: bytes) -> Event:
    return encode("response.completed", b'{"type":"response.completed","sequence_number":9,"response":' + body + b"}")


# In-band errors


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b'{"type":"error","code":"rate","message":"slow down"}', "rate", "slow down"),
        (b'{"error":{"code":"rate","message":"slow down"}}', "rate", "slow down"),
        (b'{"error":"slow down"}', "server_error", "slow down"),
        (b'{"error":{"code":500}}', "server_error", "The backend reported an error."),
    ],
)
def test_an_error_event_of_a_begun_response_becomes_its_failure(data: bytes, code: str, said: str):
    round_ = Round()
    round_.observe(encode("response.created", b'{"sequence_number":3,"response":' + response("in_progress") + b"}"))
    failed = mending.failed_for(encode("error", data), round_)
    assert failed.type == "response.failed"
    assert read(failed.fields["response"])["error"] == {"code": code, "message": said}
    assert failed.fields["sequence_number"] == b"4"
    assert ODD in failed.raw


def test_an_error_event_before_any_response_stays_as_it_is():
    event = encode("error", b'{"message":"m"}')
    assert mending.failed_for(event, Round()) is event


# Ids


def test_items_without_an_id_get_one_that_stays_the_same():
    body = response("completed", b'{"type":"reasoning","x":1.0}', message("own"), b'{"id":null,"type":"message"}')
    mended = mending.identified(body)
    first, second, third = read(mended)["output"]
    assert first["id"] == stable_id("rs_", "resp_1", 0)
    assert second["id"] == "own"
    assert third["id"] == stable_id("msg_", "resp_1", 2)
    assert mending.identified(body) == mended
    assert mending.identified(mended) is mended
    assert b'"type":"reasoning","x":1.0}' in mended
    assert ODD in mended


@pytest.mark.parametrize("body", [response("completed", message()), response("completed"), b"{}", b'{"output":null}'])
def test_a_response_whose_items_have_ids_stays_as_it_is(body: bytes):
    assert mending.identified(body) is body


def test_a_stream_and_its_response_agree_on_the_ids():
    ids = mending.ItemIds()
    item = b'{"type":"function_call","call_id":"c"}'
    created = encode("response.created", b'{"response":' + response("in_progress") + b"}")
    added = encode("response.output_item.added", b'{"output_index":0,"item":' + item + b"}")
    done = encode("response.output_item.done", b'{"output_index":0,"item":' + item + b"}")
    about = encode("response.content_part.added", b'{"output_index":0,"item_id":""}')
    wanted = stable_id("fc_", "resp_1", 0)

    assert ids.event(created) is created
    assert read(ids.event(added).fields["item"])["id"] == wanted
    run = Frames(
        b'event: response.x.delta\ndata: {"output_index":0}\n\nevent: response.x.delta\ndata: {"output_index":1}\n\n'
    )
    first, second = ids.frames(run)
    assert first.fields["item_id"] == b'"%b"' % wanted.encode()
    assert second.raw == frames(run.raw)[1].raw
    assert read(ids.event(done).fields["item"])["id"] == wanted
    last = ids.event(completed(response("completed", item)))
    assert read(last.fields["response"])["output"][0]["id"] == wanted
    assert ids.event(about) is about  # an empty id is the backend's own


def test_every_event_of_a_recorded_stream_stays_as_it_is():
    for name in ("sse_turn", "sse_call", "sse_second_turn"):
        ids = mending.ItemIds()
        for event in frames(cassettes.load(name).body):
            assert ids.event(event) is event
            if event.type == "response.completed":
                assert mending.incomplete_event(event) is event


def test_the_recorded_cut_call_is_marked_incomplete():
    terminal = frames(cassettes.load("sse_call_cut").body)[-1]
    assert mending.incomplete_event(terminal).type == "response.incomplete"


# Bytes


_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_members = st.dictionaries(st.text(min_size=1, max_size=6), _value, max_size=5)


@given(_members, st.booleans(), st.booleans())
def test_unrelated_members_keep_their_bytes(members: dict[str, Any], incomplete: bool, with_id: bool):
    members = {f"x_{key}": value for key, value in members.items()}
    extra = b'"last":1.0' + b"".join(
        b"," + json.dumps(k).encode() + b": " + json.dumps(v).encode() for k, v in members.items()
    )
    item = message() if with_id else b'{"type":"message","x":1.0}'
    body = response("incomplete" if incomplete else "completed", item, extra=extra)
    for mend, acts in ((mending.identified, not with_id), (mending.incomplete_response, incomplete)):
        mended = mend(body)
        assert (mended is not body) is acts
        assert all(json.dumps(value).encode() in mended for value in members.values())
        changed = {key: value for key, value in read(mended).items() if key != "output"}
        assert changed == {key: value for key, value in read(body).items() if key != "output"}


@given(_members)
def test_an_object_without_any_case_is_the_same_object(members: dict[str, Any]):
    members = {f"x_{key}": value for key, value in members.items()}
    body = json.dumps(members).encode()
    for mend in (mending.identified, mending.incomplete_response, mending.context_length):
        assert mend(body) is body


@pytest.mark.parametrize(
    ("status", "acts"),
    [
        (b'"incomplete"', True),
        (b'"completed","x":"incomplete"', False),
        (b'"completed","x":{"status":"incomplete"}', False),
        (b'{"status":"incomplete"}', False),
        (b'"completed","status":"incomplete"', True),
    ],
)
def test_only_the_responses_own_status_makes_it_incomplete(status: bytes, acts: bool):
    body = b'{"status":%b,"output":[{"id":"a","status":"completed"}]}' % status
    assert (mending.incomplete_response(body) is not body) is acts


@pytest.mark.parametrize(
    ("id_", "acts"), [(b'"a"', False), (b'""', True), (b"null", True), (b"7", True), (b"{}", True)]
)
def test_an_id_is_a_text_that_says_something(id_: bytes, acts: bool):
    body = b'{"id":"resp_1","output":[{"x":{"id":"b"},"type":"message","id":%b}]}' % id_
    mended = mending.identified(body)
    assert (mended is not body) is acts
    item = read(mended)["output"][0]
    assert item["id"] == (stable_id("msg_", "resp_1", 0) if acts else "a")
    assert item["x"] == {"id": "b"}
