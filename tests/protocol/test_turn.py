"""A request's body, looked at and rebuilt."""

from __future__ import annotations

import pytest

from proxy.protocol.jsonbytes import NotJSON
from proxy.protocol.turn import Body, Operation, Turn

RAW = b'{"temperature":1.50, "seed":12345678901234567890,"x":"\\u00e9","stream" :true,"store":null,"n":0}'


def test_a_member_is_its_exact_bytes_and_null_is_absent():
    body = Body(RAW)
    assert body.get("temperature") == b"1.50"
    assert body.get("store") is None
    assert body.get("nothing") is None


@pytest.mark.parametrize(
    ("name", "default", "meant"),
    [("stream", False, True), ("store", True, True), ("n", True, True), ("n", False, False), ("nothing", True, True)],
)
def test_a_flag_is_its_boolean_or_the_default(name: str, default: bool, meant: bool):
    assert Body(RAW).flag(name, default) is meant


def test_a_rebuild_touches_what_it_must():
    rebuilt = Body(RAW).rebuilt({"stream": b"false", "x": None, "input": b"[ ]"})
    assert (
        rebuilt.raw == b'{"temperature":1.50,"seed":12345678901234567890,"stream":false,"store":null,"n":0,"input":[ ]}'
    )


def test_a_body_that_nobody_reads_may_be_anything():
    body = Body(b"\x00\xff")
    assert body.raw == b"\x00\xff"
    with pytest.raises(NotJSON):
        _ = body.fields


def test_a_turn_is_frozen_and_replaced():
    turn = Turn("POST", b"/v1/responses", "/v1/responses", (), Operation.CREATE, Body(RAW))
    streamed = turn.replace(stream=True)
    assert (turn.stream, streamed.stream) == (False, True)
    assert streamed.body is turn.body
    with pytest.raises(AttributeError):
        turn.stream = True  # type: ignore[misc]
