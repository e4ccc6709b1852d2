"""Many rounds as one response: hosted tools run by the gateway, streamed and not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.backend import ScriptedVLLM, faults
from tests.integration.gateway import Answer, Gateway, free_port, running

JSON = ((b"Content-Type", b"application/json"),)
DECLARED = [{"type": "function", "name": "weather"}, {"type": "function", "name": "mine", "parameters": {}}]
Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def looping(
    backend: ScriptedVLLM, store: str, endpoint: Endpoint, filters: Any = None, **loop: Any
) -> AsyncIterator[Gateway]:
    """A gateway that owns the function `weather`, answered by `endpoint`."""
    port = free_port()
    runner = web.ServerRunner(web.Server(endpoint, handler_cancellation=True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    tools = {"function": {"functions": {"weather": {"endpoint": f"http://127.0.0.1:{port}/", "description": "sky"}}}}
    entries = [
        {"filter": name, **({"tools": tools, **loop} if name == "agentic_loop" else {})}
        for name in ("owner", "validate", "response_store", "rehydrate", "agentic_loop", "repair", "upstream")
    ]
    try:
        async with running(backend, store, chains={"default": entries}) as gateway:
            yield gateway
    finally:
        await runner.cleanup()


async def sunny(request: web.Request) -> web.StreamResponse:
    asked = json.loads(await request.read())
    return web.json_response({"sky": "clear", "asked": asked})


def frame(type_: str, **members: Any) -> bytes:
    data = json.dumps({**members, "type": type_}, separators=(",", ":"))
    return f"event: {type_}\ndata: {data}\n\n".encode()


def call_item(name: str, call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def message_item(text: str, id_: str = "msg_1") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": id_, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def usage(tokens: int) -> dict[str, Any]:
    details = {"cached_tokens": 1}
    return {"input_tokens": tokens, "input_tokens_details": details, "output_tokens": 1, "total_tokens": tokens + 1}


def round_frames(
    response_id: str, items: list[dict[str, Any]], status: str = "completed", tokens: int = 5
) -> list[bytes]:
    """A round as vLLM streams it."""
    numbers = iter(range(1000))

    def event(type_: str, **members: Any) -> bytes:
        return frame(type_, sequence_number=next(numbers), **members)

    base = {"id": response_id, "object": "response", "created_at": 1, "model": "m", "tools": [], "output": []}
    chunks = [event(f"response.{t}", response={**base, "status": "in_progress"}) for t in ("created", "in_progress")]
    for index, item in enumerate(items):
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            chunks.append(event("response.output_item.added", output_index=index, item={**item, "content": []}))
            part = {"type": "output_text", "text": "", "annotations": []}
            chunks.append(event("response.content_part.added", **place, content_index=0, part=part))
            for piece in (text[:3], text[3:]):
                chunks.append(event("response.output_text.delta", **place, content_index=0, delta=piece))
            chunks.append(event("response.output_text.done", **place, content_index=0, text=text))
            chunks.append(event("response.content_part.done", **place, content_index=0, part=item["content"][0]))
        else:
            chunks.append(event("response.output_item.added", output_index=index, item={**item, "arguments": ""}))
            chunks.append(event("response.function_call_arguments.delta", **place, delta=item["arguments"]))
            chunks.append(event("response.function_call_arguments.done", **place, arguments=item["arguments"]))
        chunks.append(event("response.output_item.done", output_index=index, item=item))
    final = {**base, "status": status, "output": items, "usage": usage(tokens)}
    chunks.append(event("response.completed", response=final))
    return chunks


def streamed(*rounds: bytes | list[bytes]) -> Any:
    return [faults.stream(each) for each in rounds]


def check_composed(answer: Answer) -> list[dict[str, Any]]:
    """What must hold of every composed stream."""
    events = answer.events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ids = {event["response"]["id"] for event in events if "response" in event}
    assert len(ids) == 1
    assert sum(event["type"] == "response.created" for event in events) == 1
    current: str | None = None
    done: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            assert current is None, "items are never interleaved"
            current = event["item"]["id"]
            assert event["output_index"] == len(done)
        elif event["type"] == "response.output_item.done":
            assert event["item"]["id"] == current
            assert event["output_index"] == len(done)
            done.append(event["item"])
            current = None
        elif "item_id" in event:
            assert event["item_id"] == current
            assert event["output_index"] == len(done)
    assert current is None
    assert events[-1]["response"]["output"] == done
    return done


async def test_two_rounds_are_one_stream(backend: ScriptedVLLM, store_url: str) -> None:
    async with looping(backend, store_url, sunny) as gateway:
        first = round_frames("resp_a", [message_item("let me look"), call_item("weather", "c1", '{"at":"home"}')])
        second = round_frames("resp_b", [message_item("it is clear", "msg_2")], tokens=9)
        backend.script(*streamed(first, second))
        answer = await gateway.create(input="how is the weather", tools=DECLARED, stream=True, tool_choice="required")
        done = check_composed(answer)
        assert [item["type"] for item in done] == ["message", "mcp_call", "message"]
        assert done[1]["output"] == '{"sky": "clear", "asked": {"at": "home"}}'
        final = answer.final["response"]
        assert final["id"] == "resp_a"
        assert final["usage"] == {
            "input_tokens": 14,
            "input_tokens_details": {"cached_tokens": 2},
            "output_tokens": 2,
            "total_tokens": 16,
        }
        assert final["tools"] == DECLARED
        assert "function_call" not in {item["type"] for item in done}
        sent = [json.loads(turn.body) for turn in backend.turns]
        assert sent[0]["tools"][0]["description"] == "sky"
        assert sent[0]["tools"] == sent[1]["tools"]
        assert (sent[0]["tool_choice"], sent[1]["tool_choice"]) == ("required", "auto")
        assert backend.turns[1].body.index(b'"input"') > 0
        assert sent[1]["input"][-2:] == [
            call_item("weather", "c1", '{"at":"home"}'),
            {"type": "function_call_output", "call_id": "c1", "output": done[1]["output"]},
        ]
        stored = await gateway.ask("GET", "/v1/responses/resp_a")
        assert stored.json == final
        replay = await gateway.ask("GET", "/v1/responses/resp_a?stream=true")
        assert replay.body == answer.body
        await gateway.create(input="and tomorrow?", previous_response_id="resp_a")
        again = json.loads(backend.turns[2].body)["input"]
        assert again[: len(sent[1]["input"])] == sent[1]["input"], "the history is what the rounds were sent"
        assert [item["type"] for item in again[len(sent[1]["input"]) :]] == ["message", "message"]


async def test_two_rounds_are_one_json_answer(backend: ScriptedVLLM, store_url: str) -> None:
    def body(id_: str, items: list[dict[str, Any]]) -> Any:
        response = {"id": id_, "object": "response", "status": "completed", "output": items, "usage": usage(4)}
        return faults.status(200, json.dumps(response).encode(), [("content-type", "application/json")])

    async with looping(backend, store_url, sunny) as gateway:
        backend.script(body("resp_a", [call_item("weather", "c1")]), body("resp_b", [message_item("clear")]))
        answer = await gateway.create(input="x", tools=DECLARED)
        assert answer.status == 200, answer.body
        assert [item["type"] for item in answer.json["output"]] == ["mcp_call", "message"]
        assert (answer.json["id"], answer.json["usage"]["input_tokens"]) == ("resp_a", 8)
        assert (await gateway.ask("GET", "/v1/responses/resp_a")).json == answer.json
        await gateway.create(input="more", previous_response_id="resp_a")
        types = [item.get("type", "message") for item in json.loads(backend.turns[-1].body)["input"]]
        assert types == ["message", "function_call", "function_call_output", "message", "message"]


async def test_the_first_delta_of_round_two_comes_before_the_round_ends(backend: ScriptedVLLM, sqlite_url: str) -> None:
    gate = asyncio.Event()
    second = round_frames("resp_b", [message_item("it is clear", "msg_2")])
    delta = next(index for index, chunk in enumerate(second) if b"output_text.delta" in chunk)
    async with looping(backend, sqlite_url, sunny) as gateway, gateway.client() as client:
        backend.script(*streamed(round_frames("resp_a", [call_item("weather", "c1")])))
        backend.script(faults.stream([*second[: delta + 1], gate, *second[delta + 1 :]]))  # type: ignore[list-item]
        await client.send("POST", "/v1/responses", gateway.body(input="x", tools=DECLARED, stream=True), JSON)
        await client.until(b'"delta":"it ')
        assert b"output_text.done" not in client.received
        gate.set()
        check_composed(await client.answer())


async def test_a_round_with_a_clients_call_ends_the_response(backend: ScriptedVLLM, store_url: str) -> None:
    async with looping(backend, store_url, sunny) as gateway:
        backend.script(*streamed(round_frames("resp_a", [call_item("weather", "c1"), call_item("mine", "c2")])))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        done = check_composed(answer)
        assert [item["type"] for item in done] == ["function_call", "mcp_call"]
        assert len(backend.turns) == 1
        output = {"type": "function_call_output", "call_id": "c2", "output": "2"}
        await gateway.create(input=[output], previous_response_id="resp_a", tools=DECLARED)
        sent = json.loads(backend.turns[1].body)["input"]
        assert [(item.get("type"), item.get("call_id")) for item in sent[1:]] == [
            ("function_call", "c2"),
            ("function_call", "c1"),
            ("function_call_output", "c1"),
            ("function_call_output", "c2"),
        ]


async def test_calls_that_cannot_run_are_never_run(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        raise AssertionError(await request.text())

    async with looping(backend, sqlite_url, never) as gateway:
        cut = round_frames("resp_cut", [call_item("weather", "c1", '{"x":')], status="incomplete")
        backend.script(*streamed(cut))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        assert answer.final["type"] == "response.incomplete"
        assert check_composed(answer)[0]["status"] == "incomplete"
        bad = round_frames("resp_bad", [call_item("weather", "c1", '{"x":')])
        backend.script(*streamed(bad, round_frames("resp_b", [message_item("sorry")])))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        done = check_composed(answer)
        assert (done[0]["status"], done[1]["type"]) == ("failed", "message")
        assert "not a JSON object" in json.loads(backend.turns[-1].body)["input"][-1]["output"]


async def test_max_tool_calls_ends_the_loop(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async with looping(backend, sqlite_url, sunny) as gateway:
        backend.script(*streamed(round_frames("resp_a", [call_item("weather", "c1"), call_item("weather", "c2")])))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True, max_tool_calls=1)
        assert [item["status"] for item in check_composed(answer)] == ["completed", "incomplete"]
        assert len(backend.turns) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failing_tool_is_something_the_model_reads(
    backend: ScriptedVLLM, sqlite_url: str, stream: bool
) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="out of order")

    async with looping(backend, sqlite_url, broken) as gateway:
        backend.script(
            *streamed(
                round_frames("resp_a", [call_item("weather", "c1")]), round_frames("resp_b", [message_item("oh")])
            )
        )
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        assert check_composed(answer)[0]["error"].endswith("out of order")
        assert json.loads(backend.turns[-1].body)["input"][-1]["output"].startswith("Error: ")


async def test_a_tool_that_hangs_is_given_up(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async def hanging(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with looping(backend, sqlite_url, hanging, tool_timeout_seconds=0.2) as gateway:
        backend.script(
            *streamed(
                round_frames("resp_a", [call_item("weather", "c1")]), round_frames("resp_b", [message_item("oh")])
            )
        )
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        assert "within 0.2 seconds" in check_composed(answer)[0]["error"]


@pytest.mark.parametrize("ending", ["error", "incomplete"])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_round_limit(backend: ScriptedVLLM, sqlite_url: str, ending: str, stream: bool) -> None:
    async with looping(backend, sqlite_url, sunny, max_rounds=2, on_round_limit=ending) as gateway:
        for number in range(2):
            items = [call_item("weather", f"c{number}")]
            whole = {"id": f"resp_{number}", "object": "response", "status": "completed", "output": items}
            body = faults.status(200, json.dumps(whole).encode(), [("content-type", "application/json")])
            backend.script(streamed(round_frames(f"resp_{number}", items))[0] if stream else body)
        answer = await gateway.create(input="x", tools=DECLARED, stream=stream)
        stored = (await gateway.ask("GET", "/v1/responses/resp_0")).json
        assert (stored["status"], stored["incomplete_details"]) == ("incomplete", {"reason": "max_rounds"})
        assert [item["type"] for item in stored["output"]] == ["mcp_call", "mcp_call"]
        if ending == "incomplete":
            assert (answer.final["response"] if stream else answer.json) == stored
        elif stream:
            assert answer.final["code"] == "round_limit_exceeded"
        else:
            assert (answer.status, answer.error["code"]) == (508, "round_limit_exceeded")


async def test_the_backend_dies_in_round_two(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async with looping(backend, sqlite_url, sunny) as gateway:
        cut = faults.stream(round_frames("resp_b", [message_item("it is")])[:4], then="cut")
        for scripts in ([faults.cut, faults.cut], [cut]):  # a reused connection that is closed is tried once more
            backend.script(*streamed(round_frames("resp_a", [call_item("weather", "c1")])), *scripts)
            answer = await gateway.create(input="x", tools=DECLARED, stream=True)
            assert answer.final["type"] in ("response.failed", "error")
            stored = await gateway.ask("GET", "/v1/responses/resp_a")
            assert stored.json["status"] == "failed"
            assert stored.json["output"][0]["type"] == "mcp_call"
            await gateway.ask("DELETE", "/v1/responses/resp_a")
        backend.script(*streamed(round_frames("resp_a", [call_item("weather", "c1")])))
        refusal = b'{"error":{"message":"too long","type":"x","param":null,"code":"context_length_exceeded"}}'
        backend.script(faults.status(400, refusal, [("content-type", "application/json")]))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        assert answer.final["response"]["error"] == {"code": "context_length_exceeded", "message": "too long"}


async def test_a_client_that_leaves_stops_the_tool(backend: ScriptedVLLM, sqlite_url: str) -> None:
    called, stopped = asyncio.Event(), asyncio.Event()

    async def hanging(request: web.Request) -> web.StreamResponse:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    async with looping(backend, sqlite_url, hanging) as gateway:
        backend.script(*streamed(round_frames("resp_a", [call_item("weather", "c1")])))
        async with gateway.client() as client:
            await client.send("POST", "/v1/responses", gateway.body(input="x", tools=DECLARED, stream=True), JSON)
            await called.wait()
        await asyncio.wait_for(stopped.wait(), 0.5)
        assert (await gateway.ask("GET", "/v1/responses/resp_a")).status == 404


async def test_two_calls_of_one_call_id_are_a_fault(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async with looping(backend, sqlite_url, sunny) as gateway:
        backend.script(*streamed(round_frames("resp_a", [call_item("weather", "c1"), call_item("weather", "c1")])))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        assert answer.final["type"] == "response.failed"
        assert (await gateway.ask("GET", "/v1/responses/resp_a")).json["status"] == "failed"


async def test_turns_without_hosted_tools_pass_untouched(backend: ScriptedVLLM, sqlite_url: str) -> None:
    async with looping(backend, sqlite_url, sunny) as gateway:
        body = b'{"input":"a" , "stream":true,"tools":[{"type":"web_search"}, {"name":"mine","type":"function",'
        body += b'"parameters":{ }}]}'
        frames = round_frames("resp_a", [message_item("hi")])
        backend.script(faults.stream(frames))
        answer = await gateway.ask("POST", "/v1/responses", body)
        assert backend.turns[-1].body == body
        assert answer.body == b"".join(frames)
    async with looping(backend, sqlite_url, sunny, unconfigured_tools="reject") as gateway:
        answer = await gateway.ask("POST", "/v1/responses", body)
        assert (answer.status, answer.error["param"]) == (400, "tools[0]")
