"""Streams: each event as it comes, backpressure from end to end, cancellation, time-outs, repair of what is cut."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.backend import Exchange, ScriptedVLLM, faults
from tests.integration.gateway import Gateway, chain, running

JSON = ((b"Content-Type", b"application/json"),)


def frame(type_: str, **members: Any) -> bytes:
    data = json.dumps({"type": type_, **members}, separators=(",", ":"))
    return f"event: {type_}\ndata: {data}\n\n".encode()


def response(status: str, **members: Any) -> dict[str, Any]:
    return {"id": "resp_s", "object": "response", "created_at": 1, "status": status, "output": [], **members}


CREATED = frame("response.created", sequence_number=0, response=response("in_progress"))
DELTA = frame("response.output_text.delta", sequence_number=1, item_id="msg_1", output_index=0, delta="hi")
COMPLETED = frame("response.completed", sequence_number=2, response=response("completed"))


async def test_each_event_arrives_before_the_next_is_made(gateway: Gateway) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    gateway.backend.script(faults.stream([CREATED, gates[0], DELTA, gates[1], COMPLETED, gates[2], b": end\n\n"]))
    async with gateway.client() as client:
        await client.send("POST", "/v1/responses", gateway.body(input="a", stream=True), JSON)
        for gate, part in zip(gates, (CREATED, DELTA, COMPLETED), strict=True):
            await client.until(part)
            gate.set()
        answer = await client.answer()
    assert answer.body == CREATED + DELTA + COMPLETED + b": end\n\n"


async def test_completed_is_withheld_until_it_is_stored(gateway: Gateway) -> None:
    saving, allowed = asyncio.Event(), asyncio.Event()
    real = gateway.app.store.save

    async def slow(record: Any) -> None:
        saving.set()
        await allowed.wait()
        await real(record)

    gateway.app.store.save = slow  # type: ignore[method-assign]  # the real one, later
    gateway.backend.script(faults.stream([CREATED, DELTA, COMPLETED]))
    async with gateway.client() as client:
        await client.send("POST", "/v1/responses", gateway.body(input="a", stream=True), JSON)
        await saving.wait()
        await client.until(DELTA)
        assert b"response.completed" not in client.received
        assert await gateway.app.store.head("default", "resp_s") is None  # type: ignore[arg-type]
        allowed.set()
        assert (await client.answer()).body == CREATED + DELTA + COMPLETED


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_a_slow_client_slows_the_backend_and_costs_no_memory(gateway: Gateway) -> None:
    """200 MB are on offer; the client takes 1 KB at a time, and then leaves."""
    total = 200 * 1024 * 1024
    big = frame("response.output_text.delta", delta="x" * 4000)

    async def flood(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.chunk(CREATED)
        while exchange.request.written < total:
            await exchange.chunk(big)
        await exchange.end()

    gateway.backend.script(flood)
    before = resident()
    async with gateway.client() as client:
        client.reader._limit = 1024  # type: ignore[attr-defined]  # the test's own reader must not read ahead
        await client.send("POST", "/v1/responses", gateway.body(input="a", stream=True), JSON)
        read = 0
        for _ in range(50):
            read += len(await client.reader.read(1024))
            await asyncio.sleep(0.02)
        written = gateway.backend.turns[-1].written
        assert read >= 50
        assert written < 12 * 1024 * 1024, "only what sockets and bounded buffers hold has left the backend"
        assert resident() - before < 48 * 1024 * 1024
    await asyncio.wait_for(gateway.backend.turns[-1].gone.wait(), 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_backend_at_once(gateway: Gateway, stream: bool) -> None:
    gateway.backend.script(faults.pause_after(2) if stream else faults.hang)
    async with gateway.client() as client:
        await client.send("POST", "/v1/responses", gateway.body(input="a", stream=stream), JSON)
        request = await gateway.backend.received(1)
        if stream:
            await client.until(b"response.created")
    left = asyncio.get_running_loop().time()
    await asyncio.wait_for(request.gone.wait(), 5)
    assert request.gone_at is not None
    assert request.gone_at - left < 0.1


async def test_a_cut_stream_at_every_byte_is_never_completed(gateway: Gateway) -> None:
    whole = await gateway.create(input="a b", stream=True)
    size = gateway.backend.turns[-1].written
    assert whole.final["type"] == "response.completed"
    for count in [*range(1, 400, 13), *range(400, size - 6, 97), size - 6]:
        gateway.backend.script(faults.cut_after(count))
        answer = await gateway.create(input="a b", stream=True)
        if answer.status != 200:
            assert (answer.status, answer.error["type"]) == (502, "server_error")
            continue
        completed = any(event["type"] == "response.completed" for event in answer.events)
        assert completed == (b"event: response.completed" in answer.body)
        last = answer.final
        if completed:
            assert count >= size - 6
            continue
        assert last["type"] in ("response.failed", "error"), count
        if last["type"] == "response.failed":
            numbers = [event["sequence_number"] for event in answer.events]
            assert numbers == list(range(len(numbers)))
            assert last["response"]["error"]["code"] == "server_error", "a code that clients know"
            stored = (await gateway.ask("GET", f"/v1/responses/{last['response']['id']}")).json
            assert stored == last["response"]
            again = await gateway.create(input="x", previous_response_id=stored["id"])
            assert again.status == 400


@pytest.mark.parametrize(
    "event",
    [
        frame("error", code="boom", message="it broke", param=None, sequence_number=2),
        b'data: {"error":{"message":"it broke","type":"x","code":"boom"}}\n\n',
    ],
)
async def test_an_in_band_error_ends_a_begun_response(gateway: Gateway, event: bytes) -> None:
    gateway.backend.script(faults.stream([CREATED, DELTA, event]))
    answer = await gateway.create(input="a", stream=True)
    assert answer.final["type"] == "response.failed"
    assert answer.final["response"]["error"] == {"code": "boom", "message": "it broke"}
    assert (await gateway.ask("GET", "/v1/responses/resp_s")).json["status"] == "failed"


async def test_an_error_before_any_response_is_passed_on(gateway: Gateway) -> None:
    event = frame("error", code="boom", message="it broke", param=None, sequence_number=0)
    gateway.backend.script(faults.stream([event]))
    answer = await gateway.create(input="a", stream=True)
    assert answer.body == event


TIMES = {"timeouts": {"connect": 0.3, "first_byte": 0.3, "idle": 0.3, "total": 30}}


async def test_each_time_limit_has_its_own_error(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async with running(backend, sqlite_url, backend=TIMES) as gateway:
        backend.script(faults.hang)
        first = await gateway.create(input="a")
        assert (first.status, first.error["code"]) == (504, "upstream_first_byte_timeout")
        backend.script(faults.pause_after(2))
        idle = await gateway.create(input="a", stream=True)
        assert "sent nothing for 0.3 seconds" in idle.final["response"]["error"]["message"]
    limits = {"timeouts": {**TIMES["timeouts"], "first_byte": 20, "idle": 20, "total": 0.3}}
    async with running(backend, sqlite_url, backend=limits) as gateway:
        backend.script(faults.pause_after(2))
        total = await gateway.create(input="a", stream=True)
        assert "did not finish its answer within 0.3 seconds" in total.final["response"]["error"]["message"]
        backend.script(faults.hang)
        assert (await gateway.create(input="a")).error["code"] == "upstream_total_timeout"


async def test_a_backend_that_does_not_listen(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async with running(backend, sqlite_url, backend={"endpoints": ["http://127.0.0.1:9"]}) as gateway:
        for stream in (False, True):
            answer = await gateway.create(input="a", stream=stream)
            assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")


async def test_a_reused_connection_that_was_closed_is_retried_once(gateway: Gateway) -> None:
    await gateway.create(input="a")
    gateway.backend.script(faults.drop_reused)
    answer = await gateway.create(input="b")
    assert answer.status == 200
    assert [turn.reused for turn in gateway.backend.turns] == [False, True, False]


async def test_no_retry_on_a_fresh_connection_or_after_the_first_byte(gateway: Gateway) -> None:
    gateway.backend.script(faults.cut)
    answer = await gateway.create(input="a")
    assert (answer.status, answer.error["code"]) == (502, "upstream_dropped")
    assert len(gateway.backend.turns) == 1
    await gateway.create(input="a")
    gateway.backend.script(faults.cut_after(5))
    assert (await gateway.create(input="b")).status == 502
    assert len(gateway.backend.turns) == 3


async def test_heartbeats_fill_a_silence(backend: ScriptedVLLM, sqlite_url: str) -> None:
    gate = asyncio.Event()
    backend.script(faults.stream([CREATED, gate, DELTA, COMPLETED]))
    listener = {"heartbeat": {"verbatim_seconds": 0.05}}
    async with running(backend, sqlite_url, listener=listener) as gateway, gateway.client() as client:
        await client.send("POST", "/v1/responses", gateway.body(input="a", stream=True), JSON)
        beat = b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n'
        await client.until(beat)
        gate.set()
        answer = await client.answer()
        assert answer.body.replace(beat, b"") == CREATED + DELTA + COMPLETED
        logged = await gateway.ask("GET", "/v1/responses/resp_s?stream=true")
        assert logged.body == CREATED + DELTA + COMPLETED


async def test_a_stream_can_be_cancelled_by_its_id(gateway: Gateway) -> None:
    gateway.backend.script(faults.pause_after(4))
    async with gateway.client() as client:
        await client.send("POST", "/v1/responses", gateway.body(input="a", stream=True), JSON)
        created = (await client.until(b"response.in_progress")).partition(b'"id":"')[2]
        id_ = created.partition(b'"')[0].decode()
        cancelled = await gateway.ask("POST", f"/v1/responses/{id_}/cancel")
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
        answer = await client.answer()
    assert answer.final["type"] == "response.incomplete"
    assert answer.final["response"] == cancelled.json
    assert (await gateway.ask("POST", f"/v1/responses/{id_}/cancel")).json == cancelled.json
    await asyncio.wait_for(gateway.backend.turns[0].gone.wait(), 1)


async def test_what_is_over_or_unknown_is_not_cancelled(gateway: Gateway) -> None:
    done = (await gateway.create(input="a")).json["id"]
    over = await gateway.ask("POST", f"/v1/responses/{done}/cancel")
    assert (over.status, over.error["message"]) == (400, "Cannot cancel a response with status 'completed'.")
    asked = len(gateway.backend.requests)
    unknown = await gateway.ask("POST", "/v1/responses/resp_none/cancel")
    assert unknown.status == 404
    assert len(gateway.backend.requests) == asked + 1


async def test_items_without_ids_get_stable_ones(gateway: Gateway) -> None:
    gateway.backend.script(faults.edited(faults.without_ids))
    stream = await gateway.create(input="a", stream=True)
    named = {e["item"]["id"] for e in stream.events if "item" in e}
    named |= {e["item_id"] for e in stream.events if "item_id" in e or "delta" in e}
    named |= {item["id"] for item in stream.final["response"]["output"]}
    assert len(named) == 1
    gateway.backend.script(faults.edited(faults.without_ids))
    answer = await gateway.create(input="a")
    assert answer.json["output"][0]["id"].startswith("msg_")
    stored = await gateway.ask("GET", f"/v1/responses/{answer.json['id']}")
    assert stored.json == answer.json


async def test_repairs_can_be_switched_off(backend: ScriptedVLLM, sqlite_url: str) -> None:
    off = dict.fromkeys(["incomplete_status", "missing_terminal", "null_fields", "context_length"], False)
    async with running(backend, sqlite_url, **chain(repair=off)) as gateway:
        cut = await gateway.create(input="one two three four", max_output_tokens=2, stream=True)
        assert cut.final["type"] == "response.completed"
        assert cut.final["response"]["status"] == "incomplete"
        backend.script(faults.cut_after(3000))
        failed = await gateway.create(input="one", stream=True)
        assert (failed.final["type"], failed.final["code"]) == ("error", "upstream_stream_cut")
        assert (await gateway.create(input="a", truncation=None)).status == 400
        assert (await gateway.create(input="word " * 5000)).error["code"] == 400
        id_ = failed.events[0]["response"]["id"]
        assert (await gateway.ask("GET", f"/v1/responses/{id_}")).json["status"] == "failed"


async def test_context_overflow_has_a_code_that_clients_know(gateway: Gateway) -> None:
    for stream in (True, False):
        answer = await gateway.create(input="word " * 5000, stream=stream)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


async def test_many_streams_at_once(gateway: Gateway) -> None:
    began = time.perf_counter()
    answers = await asyncio.gather(*(gateway.create(input=f"turn {n}", stream=True) for n in range(100)))
    assert {answer.final["type"] for answer in answers} == {"response.completed"}
    assert len({answer.final["response"]["id"] for answer in answers}) == 100
    assert time.perf_counter() - began < 60
