"""What an event says about itself, read from its bytes when somebody asks."""

from __future__ import annotations

import pytest

from proxy.protocol.events import Event, encode, with_data
from proxy.protocol.sse import event


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_data_is_what_the_lines_say(end: bytes):
    raw = end.join([b"event: x", b": note", b'data:{"a":1,', b'data: "b":2}', b"", b""])
    assert event(raw).data == b'{"a":1,\n"b":2}'
    assert event(raw).fields == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("raw", [b"data: [DONE]\n\n", b": ping\n\n", b"\n\n", b"data: \xff\n\n", b"event: x\n\n"])
def test_data_that_is_no_object_has_no_fields(raw: bytes):
    assert event(raw).fields == {}
    assert event(raw).sequence_number is None


@pytest.mark.parametrize(
    ("raw", "type_"),
    [
        (b'event: response.completed\ndata: {"type":"other"}\n\n', "response.completed"),
        (b'data: {"type":"response.completed"}\n\n', "response.completed"),
        (b'data: {"error":{"message":"m"}}\n\n', "error"),
        (b'data: {"error":null}\n\n', ""),
        (b'data: {"type":7}\n\n', ""),
        (b"data: [DONE]\n\n", ""),
    ],
)
def test_the_type_is_the_event_line_else_the_datas_own(raw: bytes, type_: str):
    assert event(raw).type == type_


@pytest.mark.parametrize(
    ("type_", "terminal"),
    [
        ("response.completed", True),
        ("response.incomplete", True),
        ("response.failed", True),
        ("error", True),
        ("response.created", False),
        ("response.output_item.done", False),
        ("keepalive", False),
    ],
)
def test_four_types_end_a_response(type_: str, terminal: bool):
    assert encode(type_, b"{}").terminal is terminal


@pytest.mark.parametrize(
    ("spelled", "number"), [(b"7", 7), (b"0", 0), (b'"7"', None), (b"-1", None), (b"1.5", None), (b"null", None)]
)
def test_the_sequence_number_is_a_plain_integer_or_none(spelled: bytes, number: int | None):
    assert encode("x", b'{"sequence_number":' + spelled + b"}").sequence_number == number


def test_an_encoded_event_reads_as_it_was_meant():
    made = encode("response.failed", b'{"a":1}')
    assert made.raw == b'event: response.failed\ndata: {"a":1}\n\n'
    assert event(made.raw) == made == Event(made.raw, "response.failed")


def test_an_outline_is_found_whatever_else_an_event_holds():
    event_ = encode(
        "response.output_item.done",
        b'{"x":[{"item":1}],"item": { "id" : "a" } ,"output_index":2,"y":{"response":5},"response":null,'
        b'"item_id":"b","sequence_number":7,"error":{"code":1}}',
    )
    assert (event_.item, event_.response) == (b'{ "id" : "a" }', b"null")
    assert (event_.output_index, event_.sequence_number) == (2, 7)


def test_the_last_of_two_members_counts_as_it_does_for_everybody():
    event_ = encode("x", b'{"item":1,"sequence_number":1,"item":2,"sequence_number":2}')
    assert (event_.item, event_.sequence_number) == (b"2", 2)
    assert event_.fields["item"] == b"2"


def test_a_member_may_be_spelled_with_escapes():
    event_ = encode("x", b'{"\\u0069tem":1,"sequence\\u005fnumber":2}')
    assert (event_.item, event_.sequence_number) == (b"1", 2)


@pytest.mark.parametrize("data", [b"[1]", b"5", b"null", b"", b'{"item":1', b'{"item":1}}', b'{"item":}'])
def test_what_is_no_object_has_no_outline(data: bytes):
    event_ = encode("x", data)
    assert (event_.item, event_.response, event_.sequence_number, event_.output_index) == (b"", b"", None, None)


def test_data_that_is_known_is_the_data_that_would_be_found():
    raw = b'event: x\ndata: {"item":1}\n\n'
    assert with_data(raw, "x", b'{"item":1}').data == Event(raw, "x").data
    assert with_data(raw, "x", b'{"item":1}') == event(raw)
