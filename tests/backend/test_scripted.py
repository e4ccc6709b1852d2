"""The scripted backend against the recordings it stands for, and its faults."""

from __future__ import annotations

import asyncio
import gzip
import json
from itertools import groupby
from typing import Any

import aiohttp
import pytest

from tests import cassettes
from tests.backend import ScriptedVLLM, faults

pytestmark = pytest.mark.asyncio
TURN = {"model": "smollm2", "input": "Say yes.", "stream": True}
REFUSALS = [name for name in cassettes.names() if name.startswith("error_") and not name.endswith("_sse")]
STREAMS = ["sse_turn", "sse_second_turn", "sse_cut", "sse_call", "sse_call_cut", "sse_call_cut_early"]
ANSWERS = ["json_turn", "json_cut", "json_call", "json_call_cut", "json_format"]


async def replay(url: str, cassette: cassettes.Cassette) -> tuple[int, bytes, bool]:
    """Sends the recorded request and returns the status, the body, and whether the body was cut."""
    line, *headers = cassette.request_head.decode().split("\r\n")[:-2]
    method, path, _ = line.split(" ")
    sent = dict(header.split(": ", 1) for header in headers)
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + path, data=cassette.request_body, headers=sent) as answer,
    ):
        try:
            return answer.status, await answer.read(), False
        except aiohttp.ClientPayloadError:
            return answer.status, b"", True


async def post(session: aiohttp.ClientSession, url: str, **fields: Any) -> tuple[int, Any]:
    async with session.post(f"{url}/v1/responses", json=TURN | {"stream": False} | fields) as answer:
        return answer.status, await answer.json(content_type=None)


def shape(value: Any) -> Any:
    """Keys in order, and the kinds of scalars; free-form values stay as they are."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def kinds(events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [kind for kind, _ in groupby(kind for kind, _ in events)]


def shapes(events: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {kind: shape(data) for kind, data in events}


@pytest.mark.parametrize("name", STREAMS)
async def test_streams_have_the_recorded_sequence_and_keys(name: str) -> None:
    recorded = cassettes.load(name)
    async with ScriptedVLLM() as backend:
        status, body, was_cut = await replay(backend.url, recorded)
    events = cassettes.sse_events(body)
    assert (status, was_cut) == (200, False)
    assert kinds(events) == kinds(recorded.events())
    assert shapes(events) == shapes(recorded.events())
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(kind == data["type"] for kind, data in events)


@pytest.mark.parametrize("name", ANSWERS)
async def test_json_answers_have_the_recorded_keys(name: str) -> None:
    recorded = cassettes.load(name)
    async with ScriptedVLLM() as backend:
        status, body, _ = await replay(backend.url, recorded)
    assert status == 200
    assert shape(json.loads(body)) == shape(recorded.json())
    assert json.loads(body)["status"] == recorded.json()["status"]


@pytest.mark.parametrize("name", REFUSALS)
async def test_refusals_are_the_recorded_ones(name: str) -> None:
    recorded = cassettes.load(name)
    async with ScriptedVLLM() as backend:
        status, body, _ = await replay(backend.url, recorded)
    assert status == recorded.status
    assert refusal(json.loads(body)) == refusal(recorded.json())


def refusal(body: dict[str, Any]) -> Any:
    """What identifies a refusal; of the validation's long lists only that there is one."""
    if "error" not in body:
        return body
    error = dict(body["error"])
    if "validation error" in error["message"]:
        return error["type"], error["code"], str(error["param"]).split(".")[:2]
    return error


async def test_null_truncation_cuts_a_stream_without_an_event() -> None:
    recorded = cassettes.load("error_null_truncation_sse")
    async with ScriptedVLLM() as backend:
        status, body, was_cut = await replay(backend.url, recorded)
    assert (status, body, was_cut) == (recorded.status, b"", recorded.ended == "cut")


@pytest.mark.parametrize("name", ["models", "health", "version"])
async def test_probes(name: str) -> None:
    recorded = cassettes.load(name)
    async with ScriptedVLLM() as backend:
        status, body, _ = await replay(backend.url, recorded)
    assert status == recorded.status
    assert shape(json.loads(body or "{}")) == shape(json.loads(recorded.body or "{}"))


async def test_history_shows_in_the_text_and_in_the_usage() -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        _, first = await post(session, backend.url, input="hello " * 40)
        history = [{"role": "user", "content": "hello " * 40}, *first["output"], {"role": "user", "content": "again"}]
        _, second = await post(session, backend.url, input=history)
    assert second["output"][0]["content"][0]["text"] == "I got 3 items; the last user said: again"
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > first["usage"]["input_tokens"]
    assert second["id"] != first["id"]


async def test_calls_on_demand_and_after_them_words() -> None:
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]
    wish = 'call add {"a": 1} and call add {"a": {"b": 2}}'
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        _, asked = await post(session, backend.url, input=wish, tools=tools)
        calls = asked["output"]
        outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "3"} for call in calls]
        history = [{"role": "user", "content": wish}, *calls, *outputs]
        _, told = await post(session, backend.url, input=history, tools=tools)
    assert [(call["name"], call["arguments"]) for call in calls] == [("add", '{"a": 1}'), ("add", '{"a": {"b": 2}}')]
    assert told["output"][0]["content"][0]["text"] == "I got 5 items; the last tool said: 3"


async def test_requests_are_recorded_verbatim_with_their_connection() -> None:
    body = b'{"temperature":1.50,"input":"a","input":"b"}'
    head = b"POST /v1/responses HTTP/1.1\r\nhOsT: x\r\nX-Twice: 1\r\nX-Twice: 2\r\nContent-Type: application/json\r\n"
    async with ScriptedVLLM() as backend:
        port = int(backend.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        full = head + b"Content-Length: %d\r\n\r\n" % len(body)
        for _ in range(2):
            writer.write(full + body)
            answer_head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(answer_head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()
    assert [(seen.head, seen.body) for seen in backend.requests] == [(full, body)] * 2
    assert [seen.reused for seen in backend.requests] == [False, True]
    assert [seen.gone.is_set() for seen in backend.requests] == [False, False]


async def test_an_idle_connection_is_closed() -> None:
    async with ScriptedVLLM(keep_alive=0.05) as backend:
        port = int(backend.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        rest = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_client_that_leaves_is_noticed_and_stops_the_answer() -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        backend.script(faults.pause_after(6))
        async with session.post(f"{backend.url}/v1/responses", json=TURN) as answer:
            await answer.content.readuntil(b"output_text.delta")
            answer.close()
        request = await backend.received(1)
        await asyncio.wait_for(request.gone.wait(), 5)
    assert not request.answered


async def test_a_gate_holds_the_stream_until_the_test_opens_it() -> None:
    gate = asyncio.Event()
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        backend.script(faults.pause_after(3, gate))
        async with session.post(f"{backend.url}/v1/responses", json=TURN) as answer:
            early = await answer.content.readuntil(b"response.in_progress\ndata")
            gate.set()
            late = await answer.read()
    assert b"response.completed" not in early
    assert b"response.completed" in late


@pytest.mark.parametrize("script", [faults.cut, faults.reset])
async def test_no_answer_at_all(script: Any) -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        backend.script(script, script)
        with pytest.raises(aiohttp.ClientConnectionError):
            await post(session, backend.url)


async def test_cut_after_a_number_of_bytes_by_header() -> None:
    async with ScriptedVLLM() as backend:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(backend.url.rpartition(":")[2]))
        body = json.dumps(TURN).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"x-script: cut_after 700\r\n\r\n" + body)
        seen = await reader.read()
        writer.close()
    assert len(seen) == 700
    assert backend.requests[0].written == 700


async def test_a_reused_connection_is_dropped_and_a_fresh_one_served() -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        await post(session, backend.url)
        backend.script(faults.drop_reused, faults.drop_reused)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await post(session, backend.url, input="again")
        status, _ = await post(session, backend.url, input="again")
    assert status == 200
    assert [seen.reused for seen in backend.turns] == [False, True, False]


async def test_an_error_in_the_band_ends_the_stream() -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        backend.script(faults.in_band_error(5))
        async with session.post(f"{backend.url}/v1/responses", json=TURN) as answer:
            events = cassettes.sse_events(await answer.read())
    assert len(events) == 6
    assert events[-1][0] == "error"


async def test_items_without_ids_in_both_modes() -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        backend.script(faults.edited(faults.without_ids), faults.edited(faults.without_ids))
        _, whole = await post(session, backend.url)
        async with session.post(f"{backend.url}/v1/responses", json=TURN) as answer:
            events = cassettes.sse_events(await answer.read())
    assert "id" not in whole["output"][0]
    assert not any("item_id" in data or "id" in data.get("item", {}) for _, data in events)
    assert "id" not in events[-1][1]["response"]["output"][0]


async def test_raw_bytes_gzip_trailers_and_bodiless_answers() -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession(auto_decompress=False) as session:
        backend.script(
            faults.raw(faults.answer_bytes(b"{}")),
            faults.gzip(b'{"a":1}'),
            faults.stream([b": comment\r\n\r\n"], trailers=[("x-checksum", "1")]),
            faults.status(204),
            faults.status(304),
        )
        bodies = []
        for _ in range(5):
            async with session.post(f"{backend.url}/v1/responses", json=TURN) as answer:
                bodies.append((answer.status, await answer.read()))
        async with session.head(f"{backend.url}/v1/nowhere") as nothing:
            assert (nothing.status, nothing.content_length) == (404, 22)
    assert gzip.decompress(bodies[1][1]) == b'{"a":1}'
    assert [bodies[0], *bodies[2:]] == [(200, b"{}"), (200, b": comment\r\n\r\n"), (204, b""), (304, b"")]
    assert [seen.connection for seen in backend.requests] == [0] * 6


async def test_a_huge_stream_stops_with_its_reader() -> None:
    """The reader takes the head and no more: what was written is what the buffers between the two hold."""
    total = 50_000_000
    async with ScriptedVLLM() as backend, aiohttp.ClientSession(read_bufsize=1024) as session:
        backend.script(faults.huge(total))
        async with session.post(f"{backend.url}/v1/responses", json=TURN) as answer:
            request = await backend.received(1)
            held = await settled(request)
            assert 0 < held < total / 2
            size = sum([len(chunk) async for chunk in answer.content.iter_any()])
    assert size > total


async def settled(request: Any) -> int:
    """The bytes written once they no longer grow: the writer is blocked."""
    before = -1
    while before != request.written:
        before = request.written
        await asyncio.sleep(0.05)
    return int(before)


async def test_a_huge_stream_is_a_proper_stream() -> None:
    async with ScriptedVLLM() as backend, aiohttp.ClientSession() as session:
        backend.script(faults.huge(200_000, 1000))
        async with session.post(f"{backend.url}/v1/responses", json=TURN) as answer:
            events = cassettes.sse_events(await answer.read())
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert kinds(events) == kinds(cassettes.load("sse_turn").events())
