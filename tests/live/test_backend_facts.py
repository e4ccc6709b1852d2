"""What only a real engine can show: its prefix cache, its aborts, its limits, and what the gateway makes of them."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import Response

from tests.clients import LONG_PROMPT
from tests.clients.openai_suite import TOOL, ask_streamed
from tests.live.progress import say

BLOCK = 128  # tokens in a block of the prefix cache of vLLM on a CPU
# 767 tokens, one short of a block, so that only a block with generated tokens can be the next one met.
PROMPT = " ".join(f"Red number {number} of the list;" for number in range(82)) + " Thank you. What is two plus two?"


def two_turns(client: OpenAI, model: str, *, stored: bool) -> list[tuple[int, int]]:
    """Cached and given tokens of both turns. A salt of its own makes the engine's cache cold for each pair."""
    fields: dict[str, Any] = {"model": model, "temperature": 0, "extra_body": {"cache_salt": uuid4().hex}}
    first = client.responses.create(input=PROMPT, **fields)
    assert isinstance(first, Response)
    if stored:
        second = client.responses.create(input="Go on.", previous_response_id=first.id, **fields)
    else:
        replay: Any = [{"role": "user", "content": PROMPT}, *first.output, {"role": "user", "content": "Go on."}]
        second = client.responses.create(input=replay, **fields)
    return [cached_and_given(first), cached_and_given(second)]


def cached_and_given(response: Response) -> tuple[int, int]:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens, response.usage.input_tokens


def test_a_stored_turn_meets_the_prefix_cache_as_a_verbatim_replay_does(
    client: OpenAI, backend_url: str, model: str
) -> None:
    direct = OpenAI(base_url=f"{backend_url}/v1", api_key="test", max_retries=0)
    through = two_turns(client, model, stored=True)
    say(f"prefix cache: {through[1][0]} of {through[1][1]} tokens cached in the second turn")
    assert through == two_turns(direct, model, stored=False)
    (cold, first_given), (cached, _) = through
    assert cold == 0
    assert cached > first_given // BLOCK * BLOCK, "the block with generated tokens must be among those met"


def running(backend_url: str) -> float:
    with urllib.request.urlopen(f"{backend_url}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    return sum(float(value) for value in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", metrics, re.MULTILINE))


def wait_until_running(backend_url: str, count: int) -> None:
    end = time.monotonic() + 10
    while running(backend_url) != count:
        assert time.monotonic() < end, f"the engine never came to run {count} requests"
        time.sleep(0.02)


async def until_running(backend_url: str, count: int) -> None:
    await asyncio.to_thread(wait_until_running, backend_url, count)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(
    gateway_url: str, backend_url: str, model: str, stream: bool
) -> None:
    await until_running(backend_url, 0)
    body = {"model": model, "input": LONG_PROMPT, "stream": stream, "temperature": 0, "min_tokens": 3000}
    async with aiohttp.ClientSession() as session:
        waiting = asyncio.ensure_future(session.post(f"{gateway_url}/v1/responses", json=body))
        if stream:
            await (await waiting).content.readuntil(b"output_text.delta")
        await until_running(backend_url, 1)
        waiting.cancel() if not stream else waiting.result().close()
        began = asyncio.get_running_loop().time()
        await until_running(backend_url, 0)
    assert asyncio.get_running_loop().time() - began < 3, "the engine would have needed far longer for 3000 tokens"


def test_a_truncated_stream_ends_incomplete(client: OpenAI, model: str) -> None:
    last = ask_streamed(client, model, input=LONG_PROMPT, max_output_tokens=5, extra_body={"min_tokens": 5})[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in last.response.output if item.type == "message"] == ["incomplete"]
    kept = client.responses.retrieve(last.response.id)
    assert kept.to_dict() == last.response.to_dict()


def test_a_truncated_call_is_incomplete(client: OpenAI, model: str) -> None:
    wanted: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "extra_body": {}, "max_output_tokens": 32}
    last = ask_streamed(client, model, input="The weather in Oslo?", **wanted)[-1]
    assert last.type == "response.incomplete"
    [call] = last.response.output
    assert call.type == "function_call"
    assert call.status == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
def test_context_overflow_has_openais_code(client: OpenAI, model: str, stream: bool) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=model, input="hi " * 4200, stream=stream)
    assert caught.value.code == "context_length_exceeded"


NULLS = ("truncation", "background", "tools", "tool_choice", "service_tier", "include_reasoning")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", NULLS)
def test_explicit_nulls_are_accepted(client: OpenAI, model: str, field: str, stream: bool) -> None:
    choice = {"structured_outputs": {"choice": ["Yes.", "No."]}, field: None}
    if stream:
        assert ask_streamed(client, model, input="Yes or no?", extra_body=choice)[-1].type == "response.completed"
    else:
        assert turn_with(client, model, choice).status == "completed"


def turn_with(client: OpenAI, model: str, extra: dict[str, Any]) -> Response:
    return client.responses.create(model=model, input="Yes or no?", temperature=0, extra_body=extra)
