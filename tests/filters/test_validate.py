"""What is refused before anything happens, and how little that is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.filters.validate import Config, Validate, depth
from proxy.protocol.turn import Operation
from proxy.services import Services
from tests.playbook import Played, answer, play, post


@pytest.fixture
def validate(closed: Services) -> Validate:
    return Validate(Config(), closed)


async def through(validate: Validate, body: bytes | dict[str, Any], **changes: Any) -> Played:
    return await play([validate], post(body, **changes), answer("resp_1"))


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        (b"", "invalid_request_error", None, "not a JSON object"),
        (b"[]", "invalid_request_error", None, "not a JSON object"),
        (b'{"a":1', "invalid_request_error", None, "not a JSON object"),
        (b'{"a":"\xff"}', "invalid_request_error", None, "not valid UTF-8"),
        (b'{"stream":"yes"}', "invalid_type", "stream", "must be a boolean"),
        (b'{"store":0}', "invalid_type", "store", "must be a boolean"),
        (b'{"background":1}', "invalid_type", "background", "must be a boolean"),
        (b'{"background":true}', "unsupported_parameter", "background", "background mode is not supported"),
        (b'{"prompt":{"id":"p"}}', "unsupported_parameter", "prompt", "not supported"),
        (
            b'{"previous_response_id":"resp_1","conversation":"conv_1"}',
            "mutually_exclusive_parameters",
            "previous_response_id",
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'",
        ),
    ],
)
async def test_a_refusal_is_400_and_names_its_cause(
    validate: Validate, body: bytes, code: str, param: str | None, message: str
):
    played = await through(validate, body)
    assert played.error is not None
    assert (played.error.status, played.error.code, played.error.param) == (400, code, param)
    assert message in played.error.message
    assert played.turns == []


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"background":false,"store":null,"stream":null,"prompt":null}',
        b'{"previous_response_id":null,"conversation":"conv_1"}',
        b'{"previous_response_id":"resp_1","conversation":null}',
        b'{"temperature":"hot","tools":7,"model":[],"input":3,"unknown":{"a":1.50}}',
        b'{"input":"a","input":"b"}',
    ],
)
async def test_everything_else_passes_byte_for_byte(validate: Validate, body: bytes):
    played = await through(validate, body)
    assert played.error is None
    assert played.turn.body.raw == body


@pytest.mark.parametrize(("body", "stream"), [(b'{"stream":true}', True), (b'{"stream":false}', False), (b"{}", False)])
async def test_the_turn_knows_whether_it_streams(validate: Validate, body: bytes, stream: bool):
    assert (await through(validate, body)).turn.stream is stream


@pytest.mark.parametrize("operation", [Operation.INPUT_TOKENS, Operation.COMPACT])
async def test_its_relatives_are_judged_alike(validate: Validate, operation: Operation):
    played = await through(validate, b"[]", operation=operation)
    assert played.error is not None


async def test_what_is_not_ours_is_not_looked_at(validate: Validate):
    played = await through(validate, b"\xff[", operation=Operation.OTHER)
    assert played.error is None
    assert played.turn.body.raw == b"\xff["


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


async def test_the_depth_has_a_limit_that_the_message_names(closed: Services):
    validate = Validate(Config(max_depth=20), closed)
    assert (await through(validate, nested(20))).error is None
    refused = (await through(validate, nested(21))).error
    assert refused is not None
    assert refused.message == "The request body is nested deeper than 20 levels."


async def test_a_body_of_a_million_brackets_is_refused_not_a_crash(validate: Validate):
    assert (await through(validate, b"[" * 1_000_000)).error is not None


async def test_brackets_in_strings_are_no_depth(validate: Validate):
    body = b'{"a":"' + b"[" * 1000 + rb"\"[[\\" + b'"}'
    assert (await through(validate, body)).error is None


@given(st.integers(1, 40), st.text('[]{}"\\a,:', max_size=40))
def test_depth_counts_brackets_outside_strings(levels: int, text: str):
    import json

    raw = b"[" * levels + json.dumps(text).encode() + b"]" * levels
    assert depth(raw, 0) == levels


def test_few_brackets_are_not_even_counted():
    assert depth(b"[[[]]]", 3) == 0
    assert depth(b"[[[[]]]]", 3) == 4
