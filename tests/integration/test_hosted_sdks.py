"""Real SDKs over composed streams: the OpenAI Python SDK's state machine, and the Agents SDK's hosted MCP tool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI

from tests.backend import ScriptedVLLM, faults
from tests.integration.gateway import Gateway
from tests.integration.test_loop import call_item, message_item, round_frames, streamed
from tests.integration.test_mcp import ADD, before, declared
from tests.tools.servers import Seen, real, serving

QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture
async def server() -> AsyncIterator[Seen]:
    async with serving(real().streamable_http_app()) as seen:
        yield seen


@pytest.fixture
async def gateway(backend: ScriptedVLLM, sqlite_url: str, server: Seen) -> AsyncIterator[Gateway]:
    async with before(server, backend, sqlite_url) as started:
        yield started


@pytest.fixture
async def sdk(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="x", max_retries=0) as client:
        yield client


def agent(sdk: AsyncOpenAI, tool: dict[str, Any], **more: Any) -> Agent[Any]:
    hosted = HostedMCPTool(tool_config=tool, **more)  # type: ignore[arg-type]  # a TypedDict of the SDK's
    return Agent(name="a", model=OpenAIResponsesModel("smollm2", openai_client=sdk), tools=[hosted])


async def test_the_stream_helper_takes_a_composed_stream(
    gateway: Gateway, backend: ScriptedVLLM, sdk: AsyncOpenAI, server: Seen
) -> None:
    mine = {"type": "function", "name": "mine", "parameters": {}, "strict": False}
    calls = [message_item("let me see", "msg_0"), ADD]
    later = [message_item("five", "msg_2"), call_item("mine", "c2")]
    backend.script(*streamed(round_frames("resp_a", calls), round_frames("resp_b", later)))
    tools: Any = [declared(server), mine]
    async with sdk.responses.stream(model="smollm2", input="2+3?", tools=tools) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["mcp_list_tools", "message", "mcp_call", "message", "function_call"]
    assert kinds.index("response.mcp_call.completed") < len(kinds) - 1
    again = await sdk.responses.retrieve(final.id)
    assert [item.id for item in again.output] == [item.id for item in final.output]


@pytest.mark.parametrize("stream", [True, False])
async def test_agents_sdk_never_asks(
    gateway: Gateway, backend: ScriptedVLLM, sdk: AsyncOpenAI, server: Seen, stream: bool
) -> None:
    frames = (round_frames("resp_a", [ADD]), round_frames("resp_b", [message_item("five")]))
    if stream:
        backend.script(*streamed(*frames))
        run = Runner.run_streamed(agent(sdk, declared(server)), "2+3?", run_config=QUIET)
        async for _ in run.stream_events():
            pass
        assert run.final_output == "five"
    else:
        backend.script(*whole([ADD]), *whole([message_item("five")], "resp_b"))
        result = await Runner.run(agent(sdk, declared(server)), "2+3?", run_config=QUIET)
        assert result.final_output == "five"


def whole(items: list[dict[str, Any]], id_: str = "resp_a") -> list[Any]:
    usage = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1, "total_tokens": 2}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    response = {"id": id_, "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": items}
    response |= {"usage": usage, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    return [faults.status(200, json.dumps(response).encode(), [("content-type", "application/json")])]


@pytest.mark.parametrize("approve", [True, False])
async def test_agents_sdk_asks_its_callback(
    gateway: Gateway, backend: ScriptedVLLM, sdk: AsyncOpenAI, server: Seen, approve: bool
) -> None:
    asked = []

    def decide(request: Any) -> Any:
        asked.append(request.data.name)
        return {"approve": approve, "reason": None if approve else "no"}

    backend.script(*streamed(round_frames("resp_a", [ADD]), round_frames("resp_b", [message_item("done")])))
    tool = declared(server, require_approval="always")
    run = Runner.run_streamed(agent(sdk, tool, on_approval_request=decide), "2+3?", run_config=QUIET)
    async for _ in run.stream_events():
        pass
    assert asked == ["add"]
    assert run.final_output == "done"
    said = [item["output"] for item in json.loads(backend.turns[1].body)["input"] if "output" in item]
    assert said == ["5"] if approve else "did not approve" in said[0]


async def test_agents_sdk_is_interrupted_and_resumed(
    gateway: Gateway, backend: ScriptedVLLM, sdk: AsyncOpenAI, server: Seen
) -> None:
    backend.script(*whole([ADD]), *whole([message_item("five")], "resp_b"))
    asking = agent(sdk, declared(server, require_approval="always"))
    first = await Runner.run(asking, "2+3?", run_config=QUIET)
    assert len(first.interruptions) == 1
    state = first.to_state()
    state.approve(first.interruptions[0])
    second = await Runner.run(asking, state, run_config=QUIET)
    assert second.final_output == "five"
