"""What needs no state passes byte for byte, both ways."""

from __future__ import annotations

import gzip

import pytest
import zstandard

from tests.backend import ScriptedVLLM, faults
from tests.integration.gateway import Gateway, running

JSON = (b"Content-Type", b"application/json")

BODIES = [
    b'{"temperature":1.50,"seed":12345678901234567890,"x":"\\u00e9","input":"a","input":"b","store":false}',
    b' {\n\t"store" : false ,"input":"\xc3\xa9",  "n":1E+02, "big":123456789012345678901234567890.10 }\r\n',
    b'{"store":false,"input":[{"role":"user","content":"\\ud83d\\ude00 \\/"}],"previous_response_id":null,'
    b'"conversation":null}',
]

FRAMES = [
    b'event: response.created\r\ndata: {"type":"response.created",'
    b'"response":{"id":"resp_1","status":"in_progress"}}\r\n\r\n',
    b": a comment\r\n\r\n",
    b'event:response.output_text.delta\r\ndata:{"type":"response.output_text.delta","delta":"\\u00e9 1.50"}\r\n\r\n',
    b"id: 7\r\nretry: 10\r\n\r\n",
    b'data: {"type": "response.completed",\r\n'
    b'data:  "response": {"id":"resp_1","status":"completed","output":[]}}\r\n\r\n',
    b"data: [DONE]\r\n\r\n",
]


@pytest.mark.parametrize("body", BODIES)
async def test_request_body_goes_up_as_it_came(gateway: Gateway, body: bytes) -> None:
    await gateway.ask("POST", "/v1/responses", body)
    assert gateway.backend.requests[-1].body == body


async def test_stored_turn_without_history_goes_up_as_it_came(gateway: Gateway) -> None:
    body = b'{ "model":"smollm2",  "input" : "a" , "temperature":1.50 }'
    assert (await gateway.ask("POST", "/v1/responses", body)).status == 200
    assert gateway.backend.requests[-1].body == body


@pytest.mark.parametrize("eol", [b"\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("store", ["false", "true"])
async def test_stream_comes_down_as_it_was_at_every_cut(gateway: Gateway, eol: bytes, store: str) -> None:
    stream = b"".join(FRAMES).replace(b"\r\n", eol)
    request = b'{"input":"a","stream":true,"store":%s}' % store.encode()
    cuts = range(1, len(stream), 1 if store == "false" else 7)
    for number, cut in enumerate(cuts):
        unique = stream.replace(b"resp_1", b"resp_%d" % number)
        gateway.backend.script(faults.stream([unique[:cut], unique[cut:]]))
        answer = await gateway.ask("POST", "/v1/responses", request)
        assert answer.body == unique, f"cut at {cut}"


async def test_bytes_one_by_one(gateway: Gateway) -> None:
    stream = b"".join(FRAMES)
    gateway.backend.script(faults.stream([bytes([byte]) for byte in stream]))
    answer = await gateway.ask("POST", "/v1/responses", b'{"input":"a","stream":true}')
    assert answer.body == stream


async def test_answers_of_other_kinds_pass_untouched(gateway: Gateway) -> None:
    packed = gzip.compress(b'{"id":"resp_1","object":"response","status":"completed","output":[]}')
    cases = [
        (200, b"\x00\xff odd", [("Content-Type", "application/x-unknown; q=1"), ("X-A", "1"), ("x-a", "2")]),
        (200, packed, [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]),
        (418, b"teapot", [("Content-Type", "text/plain"), ("Retry-After", "3")]),
        (204, b"", []),
        (304, b"", [("ETag", '"x"')]),
    ]
    for status, body, headers in cases:
        gateway.backend.script(faults.status(status, body, headers))
        answer = await gateway.ask("POST", "/v1/responses", b'{"input":"a","store":false}')
        assert (answer.status, answer.body) == (status, body)
        for name, value in headers:
            assert value.encode() in answer.headers(name.lower().encode())


async def test_head_line_and_headers_are_the_backends_own(gateway: Gateway) -> None:
    raw = (
        b"HTTP/1.1 299 Very Fine\r\nX-OdD-CaSe: 1\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Latin: caf\xe9\r\n"
        b"Connection: X-Private, keep-alive\r\nX-Private: secret\r\nKeep-Alive: timeout=5\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )
    gateway.backend.script(faults.raw(raw))
    answer = await gateway.ask("POST", "/v1/x/responses", b"x", headers=((b"Content-Type", b"text/x"),))
    assert answer.raw == (
        b"HTTP/1.1 299 Very Fine\r\nX-OdD-CaSe: 1\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Latin: caf\xe9\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )


async def test_request_headers_go_up_less_hop_by_hop_and_credentials(gateway: Gateway) -> None:
    headers = (
        JSON,
        (b"X-Dup", b"1"),
        (b"x-dup", b"2"),
        (b"X-Latin", b"caf\xe9"),
        (b"Connection", b"X-Private"),
        (b"X-Private", b"1"),
        (b"TE", b"trailers"),
        (b"Authorization", b"Bearer secret"),
        (b"X-Gateway-Destination-Endpoint", b"10.0.0.1"),
    )
    await gateway.ask("POST", "/v1/responses?a=%2F&b=c%20d", b'{"input":"a","store":false}', headers=headers)
    head = gateway.backend.requests[-1].head
    assert head.startswith(b"POST /v1/responses?a=%2F&b=c%20d HTTP/1.1\r\n")
    assert b"\r\nX-Dup: 1\r\nx-dup: 2\r\nX-Latin: caf\xe9\r\n" in head
    for gone in (b"private", b"te:", b"secret", b"destination"):
        assert gone not in head.lower().replace(b"content-type", b"")


async def test_trailers_follow_the_body(gateway: Gateway) -> None:
    gateway.backend.script(faults.stream([b"abc"], headers=[("content-type", "text/x")], trailers=[("X-Sum", "1")]))
    answer = await gateway.ask("POST", "/v1/x/responses", b"x")
    assert (answer.body, answer.trailers) == (b"abc", b"X-Sum: 1\r\n"[:-2])


async def test_head_request(gateway: Gateway) -> None:
    answer = await gateway.ask("HEAD", "/v1/models")
    assert answer.body == b""
    assert gateway.backend.requests[-1].method == "HEAD"


async def test_models_list_is_the_backends(gateway: Gateway) -> None:
    answer = await gateway.ask("GET", "/v1/models")
    assert answer.json["data"][0]["id"] == "smollm2"


async def test_paths_outside_the_allow_list_are_not_there(gateway: Gateway) -> None:
    answer = await gateway.ask("GET", "/metrics/../v1x")
    assert (answer.status, gateway.backend.requests) == (404, [])


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_compressed_requests_go_up_decoded(gateway: Gateway, encoding: str) -> None:
    body = BODIES[0]
    packed = gzip.compress(body) if encoding == "gzip" else zstandard.compress(body)
    await gateway.ask("POST", "/v1/responses", packed, headers=(JSON, (b"Content-Encoding", encoding.encode())))
    received = gateway.backend.requests[-1]
    assert received.body == body
    assert received.header("content-encoding") is None


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_compressed_bombs_and_scraps_are_refused(backend: ScriptedVLLM, sqlite_url: str, encoding: str) -> None:
    async with running(backend, sqlite_url, listener={"max_body_bytes": 100_000}) as gateway:
        pack = gzip.compress if encoding == "gzip" else zstandard.compress
        headers = (JSON, (b"Content-Encoding", encoding.encode()))
        bomb = await gateway.ask("POST", "/v1/responses", pack(b" " * 10_000_000), headers=headers)
        assert (bomb.status, bomb.error["code"]) == (413, "request_too_large")
        scrap = await gateway.ask("POST", "/v1/responses", pack(b'{"input":"a"}')[:-3], headers=headers)
        assert scrap.status == 400
        plain = await gateway.ask("POST", "/v1/responses", b'{"input":"' + b"a" * 100_001 + b'"}')
        assert plain.status == 413
        assert backend.requests == []


async def test_unknown_encoding_and_media_type_are_refused(gateway: Gateway) -> None:
    br = await gateway.ask("POST", "/v1/responses", b"x", headers=(JSON, (b"Content-Encoding", b"br")))
    assert br.status == 415
    text = await gateway.ask("POST", "/v1/responses", b"{}", headers=((b"Content-Type", b"text/plain"),))
    assert text.status == 415


async def test_rebuild_keeps_the_bytes_of_what_it_does_not_own(gateway: Gateway) -> None:
    first = await gateway.create(input="one")
    body = (
        b'{"model":"smollm2","temperature":1.50,"seed":12345678901234567890,"x":"\\u00e9",'
        b'"previous_response_id":"%s","input":[{"role":"user","content":"two \\u00e9", "y":1.0}],'
        b'"metadata":{ "k": "v" }}' % first.json["id"].encode()
    )
    await gateway.ask("POST", "/v1/responses", body)
    sent = gateway.backend.requests[-1].body
    for kept in (b'"temperature":1.50', b'"seed":12345678901234567890', b'"x":"\\u00e9"', b'"metadata":{ "k": "v" }'):
        assert kept in sent
    assert b'{"role":"user","content":"two \\u00e9", "y":1.0}]' in sent
    assert b"previous_response_id" not in sent
    output = first.body[first.body.index(b'"output":[') + 10 :]
    assert output[: output.index(b'],"parallel')] in sent


async def test_a_kept_connection_serves_many_requests(gateway: Gateway) -> None:
    async with gateway.client() as client:
        for _ in range(3):
            await client.send("POST", "/v1/responses", gateway.body(input="a", store=False), (JSON,))
            assert (await client.answer()).status == 200
    assert [request.reused for request in gateway.backend.requests] == [False, True, True]


async def test_every_split_of_a_request(gateway: Gateway) -> None:
    request = (
        b"POST /v1/responses HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n"
        + b'{"input":"a","store":false}'
    )
    for cut in range(1, len(request), 5):
        async with gateway.client() as client:
            client.writer.write(request[:cut])
            await client.writer.drain()
            client.writer.write(request[cut:])
            assert (await client.answer()).status == 200


async def test_an_encoded_json_answer_is_stored_decoded_and_passed_on_encoded(gateway: Gateway) -> None:
    plain = b'{"id":"resp_z","object":"response","status":"completed","output":[]}'
    packed = gzip.compress(plain)
    headers = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]
    gateway.backend.script(faults.status(200, packed, headers))
    assert (await gateway.create(input="a")).body == packed
    assert gateway.backend.turns[-1].header("accept-encoding") is None
    assert (await gateway.ask("GET", "/v1/responses/resp_z")).body == plain


async def test_an_encoded_stream_that_should_be_stored_is_refused(gateway: Gateway) -> None:
    headers = [("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")]
    gateway.backend.script(faults.stream([gzip.compress(b"".join(FRAMES))], headers=headers))
    answer = await gateway.create(input="a", stream=True)
    assert (answer.status, answer.error["code"]) == (502, "upstream_protocol_error")
    gateway.backend.script(faults.stream([gzip.compress(b"".join(FRAMES))], headers=headers))
    answer = await gateway.create(input="a", stream=True, store=False)
    assert gzip.decompress(answer.body) == b"".join(FRAMES)


async def test_a_client_that_waits_to_be_asked_for_its_body(gateway: Gateway) -> None:
    async with gateway.client() as client:
        head = b"POST /v1/responses HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
        client.writer.write(head + b"Content-Length: 27\r\n\r\n")
        await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        client.received.clear()
        client.writer.write(b'{"input":"a","store":false}')
        assert (await client.answer()).status == 200
    assert gateway.backend.turns[-1].header("expect") is None


async def test_a_chunked_request_goes_up_with_a_length(gateway: Gateway) -> None:
    async with gateway.client() as client:
        head = b"POST /v1/responses HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        client.writer.write(head + b'9\r\n{"input":\r\n12\r\n"a","store":false}\r\n0\r\n\r\n')
        assert (await client.answer()).status == 200
    assert gateway.backend.turns[-1].body == b'{"input":"a","store":false}'
    assert gateway.backend.turns[-1].header("content-length") == "27"


async def test_what_is_not_http_gets_an_error_in_the_wires_shape(gateway: Gateway) -> None:
    async with gateway.client() as client:
        client.writer.write(b"GET / HTTP/9.x\r\nbad header\r\n\r\n")
        answer = await client.answer()
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


async def test_large_headers_pass(gateway: Gateway) -> None:
    headers = (JSON, (b"X-Codex-Turn-Metadata", b"m" * 40_000))
    answer = await gateway.ask("POST", "/v1/responses", b'{"input":"a","store":false}', headers=headers)
    assert answer.status == 200
    assert gateway.backend.turns[-1].header("x-codex-turn-metadata") == "m" * 40_000
