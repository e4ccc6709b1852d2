"""A backend that answers as nobody should: its client gets a whole answer or an error, and the next one is served."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.backend import faults
from tests.integration.gateway import Answer, Gateway

ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": []}


def response(**members: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "created_at": 1, "output": [ITEM], **members}


def frame(type_: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), json.dumps({"type": type_, **members}).encode())


CREATED = frame("response.created", response=response(status="in_progress", output=[]), sequence_number=0)
COMPLETED = frame("response.completed", response=response(), sequence_number=1)


def whole(**members: Any) -> bytes:
    return faults.answer_bytes(json.dumps(response(**members)).encode())


async def streamed(gateway: Gateway, *chunks: bytes) -> Answer:
    gateway.backend.script(faults.stream(chunks))
    return await gateway.create(input="a", stream=True)


async def check_serves(gateway: Gateway) -> None:
    """The gateway is well: the next request gets its own answer."""
    after = await gateway.create(input="after")
    assert (after.status, b"after" in after.body) == (200, True)


async def check_no_completion(gateway: Gateway, answer: Answer) -> None:
    """Nothing in the stream may pass for a completion; what is kept of it has failed."""
    assert answer.final["type"] in ("response.failed", "error")
    assert "The gateway failed" not in json.dumps(answer.final)
    kept = await gateway.ask("GET", "/v1/responses/resp_1")
    assert kept.status == 404 or kept.json["status"] == "failed"


@pytest.mark.parametrize(
    "surplus",
    [
        whole(id="resp_2"),
        b"HTTP/1.1 500 No\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"garbage",
    ],
)
async def test_of_several_answers_only_the_first_counts(gateway: Gateway, surplus: bytes) -> None:
    gateway.backend.script(faults.raw(whole() + surplus))
    answer = await gateway.create(input="a")
    assert (answer.status, answer.head.split(b"\r\n")[0]) == (200, b"HTTP/1.1 200 OK")
    assert answer.json == response()
    await check_serves(gateway)


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(gateway: Gateway) -> None:
    gate, sent = asyncio.Event(), asyncio.Event()

    async def stray(exchange: Any) -> None:
        await exchange.write(whole())
        await gate.wait()
        await exchange.write(whole(id="resp_2")[:60])
        sent.set()

    gateway.backend.script(stray)
    assert (await gateway.create(input="a")).json == response()
    gate.set()
    await sent.wait()
    await check_serves(gateway)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nfoo",
        b"HTTP/1.1 000 None\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: 1\rSet-Cookie: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"\x16\x03\x01",
    ],
)
async def test_what_is_not_http_is_a_bad_gateway(gateway: Gateway, answer: bytes) -> None:
    gateway.backend.script(faults.raw(answer, then="cut"))
    refused = await gateway.create(input="a")
    assert (refused.status, refused.error["code"]) == (502, "upstream_protocol_error")
    await check_serves(gateway)


async def test_interludes_are_passed_over(gateway: Gateway) -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    gateway.backend.script(faults.raw(hints + whole()))
    answer = await gateway.create(input="a")
    assert (answer.status, answer.json, answer.headers(b"link")) == (200, response(), [])


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"",
        b"{}",
        b"{",
        b'{"id":"resp_1","output":{}}',
        b'{"id":"resp_1","output":[5]}',
        b'{"id":"a\\u0000"}',
        b'{"id":"' + b"a" * 513 + b'"}',
        b'{"id":5}',
        b'{"id":"\\ud800"}',
        b'{"id":"resp_1","output":[{"type":5}]}',
        b'{"id":"resp_1","output":[{"id":"a\\u0000"}]}',
        b'{"id":"resp_1","output":[{"id":"' + b"a" * 513 + b'"}]}',
        b'{"id":"resp_1","x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_json_that_is_no_response_is_a_bad_gateway(gateway: Gateway, body: bytes, stream: bool) -> None:
    gateway.backend.script(faults.raw(faults.answer_bytes(body)))
    answer = await gateway.create(input="a", stream=stream)
    assert (answer.status, answer.error["code"]) == (502, "upstream_protocol_error")
    await check_serves(gateway)


@pytest.mark.parametrize(
    "end",
    [
        frame("response.completed", sequence_number=1),
        frame("response.completed", response=None, sequence_number=1),
        frame("response.completed", response=[], sequence_number=1),
        frame("response.completed", response="x", sequence_number=1),
        frame("response.completed", response=response(output={}), sequence_number=1),
        frame("response.completed", response=response(output=[5]), sequence_number=1),
        frame("response.completed", response=response(status="incomplete", output=[5]), sequence_number=1),
        frame("response.completed", response=response(id="a\0"), sequence_number=1),
        frame("response.created", response=None, sequence_number=1),
        b"event: response.completed\ndata: {oops\n\n",
        COMPLETED[:-1],
        b": cut here\n\n",
    ],
)
async def test_an_end_without_a_response_is_a_failure(gateway: Gateway, end: bytes) -> None:
    answer = await streamed(gateway, CREATED, end)
    await check_no_completion(gateway, answer)
    await check_serves(gateway)


async def test_an_item_that_is_none_is_not_kept(gateway: Gateway) -> None:
    answer = await streamed(gateway, CREATED, frame("response.output_item.done", item=5, output_index=0))
    await check_no_completion(gateway, answer)
    assert answer.final["response"]["output"] == []


@pytest.mark.parametrize("name", ["sequence_number", "output_index"])
async def test_a_number_of_thousands_of_digits_is_none(gateway: Gateway, name: str) -> None:
    odd = b'event: response.output_item.done\ndata: {"item":{},"%b":%b}\n\n' % (name.encode(), b"9" * 5000)
    answer = await streamed(gateway, CREATED + odd + COMPLETED)
    assert answer.body.endswith(COMPLETED)


async def test_members_of_a_vendors_own_event_are_its_own(gateway: Gateway) -> None:
    odd = frame("vendor.note", response="hello", item=5, sequence_number=1)
    answer = await streamed(gateway, CREATED, odd, COMPLETED)
    assert answer.body == CREATED + odd + COMPLETED


@pytest.mark.parametrize(
    "late",
    [
        frame("response.output_text.delta", delta="x", sequence_number=2),
        frame("error", message="late", sequence_number=2),
        COMPLETED,
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_nothing_but_the_mark_of_the_end_follows_a_terminal(
    gateway: Gateway, late: bytes, together: bool
) -> None:
    chunks = [COMPLETED + late, b"data: [DONE]\n\n"] if together else [COMPLETED, late, b"data: [DONE]\n\n"]
    answer = await streamed(gateway, CREATED, *chunks)
    assert answer.body == CREATED + COMPLETED + b"data: [DONE]\n\n"
    assert (await gateway.ask("GET", "/v1/responses/resp_1")).json["status"] == "completed"


@pytest.mark.parametrize("newline", [b"\r", b"\r\n"])
async def test_a_last_frame_of_other_newlines_is_whole(gateway: Gateway, newline: bytes) -> None:
    stream = (CREATED + COMPLETED).replace(b"\n", newline)
    answer = await streamed(gateway, stream)
    assert answer.body == stream
    assert (await gateway.ask("GET", "/v1/responses/resp_1")).json["status"] == "completed"


async def test_an_event_called_message_has_the_type_of_its_data(gateway: Gateway) -> None:
    stream = [each.replace(b"event: response.c", b"event: message\nx: response.c") for each in (CREATED, COMPLETED)]
    answer = await streamed(gateway, *stream)
    assert answer.body == b"".join(stream)
    assert (await gateway.ask("GET", "/v1/responses/resp_1")).json["status"] == "completed"


@pytest.mark.parametrize("filling", [b"\n" * 1_000_000, b"\r\n" * 500_000, b": x\n\n" * 10_000])
async def test_a_heap_of_nothing_is_passed_on(gateway: Gateway, filling: bytes) -> None:
    answer = await streamed(gateway, CREATED, filling, COMPLETED)
    assert answer.body == CREATED + filling + COMPLETED
    await check_serves(gateway)
