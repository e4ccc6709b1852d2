"""Composed streams at the listener: heartbeats, and what is left of a response that a later round fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backend import ScriptedVLLM, faults
from tests.integration.gateway import Gateway, running
from tests.integration.test_loop import call_item, check_composed, message_item, round_frames, streamed
from tests.tools.endpoints import Answering, endpoint, saying

DECLARED = [{"type": "function", "name": "weather"}]


@asynccontextmanager
async def composing(
    backend: ScriptedVLLM, store: str, answer: Answering, repaired: bool = True, **heartbeat: float
) -> AsyncIterator[Gateway]:
    """A gateway that owns the function `weather`."""
    async with endpoint(answer) as there:
        tools = {"function": {"functions": {"weather": {"endpoint": there.url}}}}
        names = ["owner", "validate", "response_store", "rehydrate", "agentic_loop", "repair", "upstream"]
        entries = [{"filter": name, **({"tools": tools} if name == "agentic_loop" else {})} for name in names]
        chain = [entry for entry in entries if repaired or entry["filter"] != "repair"]
        async with running(backend, store, chains={"default": chain}, listener={"heartbeat": heartbeat}) as gateway:
            yield gateway


@pytest.mark.parametrize(
    ("heartbeat", "beats"), [({"composed_seconds": 0.05}, True), ({"verbatim_seconds": 0.05}, False)]
)
async def test_a_silent_tool_is_bridged_by_the_composed_heartbeat(
    backend: ScriptedVLLM, sqlite_url: str, heartbeat: dict[str, float], beats: bool
) -> None:
    async def slow(request: Any) -> Any:
        await asyncio.sleep(0.4)
        return await saying("clear")(request)

    async with composing(backend, sqlite_url, slow, **heartbeat) as gateway:
        call = call_item("weather", "c1")
        backend.script(*streamed(round_frames("resp_a", [call]), round_frames("resp_b", [message_item("ok")])))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        kinds = [event["type"] for event in answer.events]
        begun = kinds.index("response.mcp_call.in_progress")
        assert (kinds[begun + 1] == "keepalive") is beats
        assert answer.final["type"] == "response.completed"
        assert (await gateway.ask("GET", "/v1/responses/resp_a?stream=true")).body.count(b"keepalive") == 0


@pytest.mark.parametrize("repaired", [True, False])
@pytest.mark.parametrize("begun", [0, 1, 2, 5, 7])
async def test_a_response_that_a_later_round_fails_is_stored_with_the_items_that_were_done(
    backend: ScriptedVLLM, store_url: str, begun: int, repaired: bool
) -> None:
    async with composing(backend, store_url, saying("clear"), repaired) as gateway:
        first = round_frames("resp_a", [message_item("wait"), call_item("weather", "c1")])
        second = round_frames("resp_b", [message_item("it is", "msg_2")])
        backend.script(*streamed(first), faults.stream(second[:begun], then="cut"))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        final = answer.final
        assert final["type"] == "response.failed"
        assert [event["sequence_number"] for event in answer.events] == list(range(len(answer.events)))
        response = final["response"]
        assert (response["id"], response["status"]) == ("resp_a", "failed")
        done = [event["item"] for event in answer.events if event["type"] == "response.output_item.done"]
        assert response["output"] == done
        assert [item["type"] for item in done][:2] == ["message", "mcp_call"]
        assert (await gateway.ask("GET", "/v1/responses/resp_a")).json == response
        refused = await gateway.create(input="more", previous_response_id="resp_a")
        assert (refused.status, refused.error["param"]) == (400, "previous_response_id")


async def test_the_items_of_a_composed_response_are_listed_and_replayed(backend: ScriptedVLLM, store_url: str) -> None:
    async with composing(backend, store_url, saying("clear")) as gateway:
        call = call_item("weather", "c1", '{"city": "Oslo"}')
        backend.script(*streamed(round_frames("resp_a", [call]), round_frames("resp_b", [message_item("ok")])))
        answer = await gateway.create(input="x", tools=DECLARED, stream=True)
        done = check_composed(answer)
        # A client that keeps no id replays what it saw; the store knows what the model read.
        replayed = [{"role": "user", "content": "x"}, *done, {"role": "user", "content": "more"}]
        await gateway.create(input=replayed, tools=DECLARED)
        sent = json.loads(backend.turns[-1].body)["input"]
        assert [item.get("type", "message") for item in sent] == [
            *("message", "function_call", "function_call_output", "message", "message"),
        ]
        assert sent[1:3] == json.loads(backend.turns[1].body)["input"][1:3]
