"""Requests as no proper client sends them: each is answered, none reaches the backend in another shape, none blocks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.backend import faults
from tests.integration.gateway import Answer, Gateway

BODY = b'{"model":"smollm2","input":"a"}'
HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


async def raw(gateway: Gateway, request: bytes, method: str = "POST") -> Answer:
    async with gateway.client() as client:
        client.writer.write(request)
        return await client.answer(method)


async def check_serves(gateway: Gateway) -> None:
    """The gateway is well."""
    assert (await gateway.create(input="after")).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 300 + b'"' + b'\\"' * 1_000_000,
        b"[" * 300 + b'"' + b"\\" * 1_000_001,
        b'{"model":"smollm2","input":"a","x":"' + b'\\"[{' * 500_000,
        b"[" * 2_000_000,
        b'{"a":' * 200_000,
        b"[]" * 500_000,
    ],
)
async def test_a_large_body_of_nonsense_is_refused_at_once(gateway: Gateway, body: bytes) -> None:
    answer = await gateway.ask("POST", "/v1/responses", body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert gateway.backend.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b'{"input":"a"}x',
        b"\xef\xbb\xbf" + BODY,
        b'{"input":"\xff"}',
        b'{"input":"\\ud800"}',
        b'{"\\ud800":1}',
        b'{"input":01}',
        b'{"store":"false"}',
        b'{"\\u0073tore":0}',
        b'{"input":"a","store":true,"store":1}',
        b'{"input":"a","previous_response_id":null,"previous\\u005fresponse_id":"resp_nobodys"}',
        b'{"input":"a","conversation":"conv_1","previous\\u005fresponse_id":"resp_1"}',
    ],
)
async def test_what_is_no_turn_is_refused_before_the_backend(gateway: Gateway, body: bytes) -> None:
    answer = await gateway.ask("POST", "/v1/responses", body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert gateway.backend.requests == []


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "store", "stream", "background"])
@pytest.mark.parametrize("value", [0, 1.5, [], {}, [None], "", {"id": 5}, {"id": None}, "x" * 100_000])
async def test_a_state_field_of_another_type_is_refused(gateway: Gateway, name: str, value: Any) -> None:
    answer = await gateway.create(**{"input": "a", name: value})
    assert answer.status in (400, 404)
    assert answer.error["type"] == "invalid_request_error"
    assert gateway.backend.requests == []


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + LENGTH + CHUNKED + b"\r\n" + IN_CHUNKS,
        HEAD + CHUNKED + b"Content-Length: 3\r\n\r\n" + IN_CHUNKS,
        HEAD + b"Content-Length: 3\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"Content-Length: 31, 31\r\n\r\n" + BODY,
        HEAD + b"Content-Length: +31\r\n\r\n" + BODY,
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + BODY,
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + IN_CHUNKS,
        HEAD + CHUNKED + b"\r\n" + IN_CHUNKS.replace(b"\r\n", b"\n"),
        HEAD + CHUNKED + b"\r\nZZ\r\n",
        HEAD + CHUNKED + b"\r\n-1\r\n",
        HEAD + b"X-A: 1\r\n folded\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"X-A : 1\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"X-A: 1\rX-B: 2\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"X-A: 1\0\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"Content-Type: text/plain\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"Host: y\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"Host: x\r\n", b"") + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"\r\n", b"\n") + LENGTH + b"\r\n" + BODY,
        HEAD + b"X-A: " + b"a" * 140_000 + b"\r\n" + LENGTH + b"\r\n" + BODY,
        b"GET /v1/models?a=\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"NONSENSE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_ambiguous_framing_ends_the_connection(gateway: Gateway, request_: bytes) -> None:
    hidden = b"GET /v1/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    async with gateway.client() as client:
        client.writer.write(request_ + hidden)
        answer = await client.answer()
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
        assert await client.rest() == b""
    assert gateway.backend.requests == []
    await check_serves(gateway)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/%72esponses", 200),
        ("/v1%2Fresponses", 200),
        ("/v1/responses%2F", 200),
        ("/v1/../v1/responses", 404),
        ("/v1/x/%2e%2E/responses", 404),
        ("/v1/./responses", 404),
    ],
)
async def test_another_spelling_of_a_path_is_no_way_around_the_chain(gateway: Gateway, path: str, status: int) -> None:
    unknown = json.dumps({"model": "smollm2", "input": "a", "previous_response_id": "resp_nobodys"}).encode()
    refused = await gateway.ask("POST", path, unknown)
    assert refused.status == (400 if status == 200 else 404)
    assert gateway.backend.requests == []


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    async with gateway.client() as client:
        one = HEAD + LENGTH + b"\r\n" + BODY
        client.writer.write(one + HEAD + b"Content-Length: 1\r\n\r\n{" + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [(await client.answer()).status for _ in range(3)] == [200, 400, 200]


@pytest.mark.parametrize("media", [b"application/json", b"text/plain"])
async def test_a_connection_lives_on_after_an_error_came_before_its_body(gateway: Gateway, media: bytes) -> None:
    size = 65 * 1024 * 1024
    async with gateway.client() as client:
        client.writer.write(HEAD.replace(b"application/json", media) + b"Content-Length: %d\r\n\r\n" % size)
        assert (await client.answer()).status in (413, 415)
        for _ in range(65):
            client.writer.write(b" " * 1024 * 1024)
            await client.writer.drain()
        await client.send("GET", "/healthz", b"", ())
        assert (await client.answer()).status == 200


async def test_what_http_1_0_asks_for_ends_with_its_connection(gateway: Gateway) -> None:
    body = b'{"model":"smollm2","input":"count to 5","stream":true}'
    old = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with gateway.client() as client:
        client.writer.write(old)
        answer = await client.answer()
    assert answer.headers(b"transfer-encoding") == []
    assert answer.final["type"] == "response.completed"


@pytest.mark.parametrize(
    "id_", ["%00", "a%2Fb", "%ff%fe", "%ED%A0%80", "a" * 5000, "..", "%2e%2e", "%", "%zz", "%0d%0a"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_an_id_that_nothing_has_is_not_found(both: Gateway, id_: str, method: str) -> None:
    for path in ("/v1/responses/", "/v1/conversations/"):
        answer = await both.ask(method, path + id_)
        assert (answer.status, answer.error["type"]) == (404, "invalid_request_error")
    assert both.backend.requests == []


async def test_a_client_that_leaves_between_two_events_is_no_error(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    stream = [b": one\n\n", gate, *[b": more\n\n" * 10_000] * 100]
    gateway.backend.script(faults.stream(stream, then="cut"))
    async with gateway.client() as client:
        await client.send("POST", "/v1/responses", b'{"input":"a","stream":true}', ())
        await client.until(b": one")
        gate.set()
    request = await gateway.backend.received(1)
    await asyncio.wait_for(request.gone.wait(), 5)
    await check_serves(gateway)
    assert [record.message for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("id_", ["a\0b", "\0", "\n", "a" * 513, "\u202e"])
async def test_a_turn_cannot_name_what_nothing_is_called(both: Gateway, name: str, id_: str) -> None:
    answer = await both.create(**{"input": "a", name: id_})
    assert (answer.status, answer.error["param"]) == (400 if name == "previous_response_id" else 404, name)


async def test_nothing_is_cancelled_under_such_a_name(both: Gateway) -> None:
    answer = await both.ask("POST", "/v1/responses/%00/cancel")
    assert answer.status == 404


@pytest.mark.parametrize("type_", ["item_reference", "function_call_output"])
async def test_more_names_than_a_statement_carries_are_looked_up(both: Gateway, type_: str) -> None:
    key = "id" if type_ == "item_reference" else "call_id"
    answer = await both.create(input=[{"type": type_, key: f"x_{number}", "output": ""} for number in range(33_000)])
    assert (answer.status, answer.error["param"]) == (400, "input")


async def test_a_turn_of_many_items_enters_its_conversation(both: Gateway) -> None:
    conversation = (await both.ask("POST", "/v1/conversations", b"{}")).json["id"]
    many = [{"role": "user", "content": ""}] * 9_000
    both.backend.engine.max_model_len = 1_000_000
    answer = await both.create(input=many, conversation=conversation, store=False)
    assert answer.status == 200, answer.body[:300]


async def test_a_connection_that_brings_no_head_is_closed(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.connection.HEAD_SECONDS", 0.2)
    async with gateway.client() as slow, gateway.client() as steady:
        slow.writer.write(b"GET /healthz HTTP/1.1\r\nHost:")
        await steady.send("GET", "/healthz", b"", ())
        assert (await steady.answer()).status == 200
        assert await asyncio.wait_for(slow.reader.read(), 5) == b""
        await steady.send("GET", "/healthz", b"", ())
        assert (await steady.answer()).status == 200
