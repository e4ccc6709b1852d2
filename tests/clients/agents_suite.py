"""The OpenAI Agents SDK: the runner's ways of keeping state, its conversation session, a function tool."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from tests.clients import SHORT

QUIET = RunConfig(tracing_disabled=True)


def make_agent(client: AsyncOpenAI, model: str) -> Agent[Any]:
    settings = ModelSettings(temperature=0, extra_body=SHORT)
    return Agent(name="Guide", model=OpenAIResponsesModel(model, client), model_settings=settings)


def given(result: Any) -> int:
    return int(result.raw_responses[-1].usage.input_tokens)


def total(result: Any) -> int:
    return int(result.raw_responses[-1].usage.total_tokens)


async def run_streamed(agent: Agent[Any], text: str, **options: Any) -> Any:
    result = Runner.run_streamed(agent, text, run_config=QUIET, **options)
    kinds = [event.type async for event in result.stream_events()]
    assert "raw_response_event" in kinds
    return result


async def run(agent: Agent[Any], text: str, **options: Any) -> Any:
    return await Runner.run(agent, text, run_config=QUIET, **options)


async def test_previous_response(async_client: AsyncOpenAI, model: str) -> None:
    agent = make_agent(async_client, model)
    first = await run(agent, "Is Oslo in Norway?")
    second = await run_streamed(agent, "And Bergen?", previous_response_id=first.last_response_id)
    third = await run(agent, "And Rome?", previous_response_id=second.last_response_id)
    assert given(second) > total(first)
    assert given(third) > total(second)
    assert third.final_output


async def test_conversation_id(async_client: AsyncOpenAI, model: str) -> None:
    agent = make_agent(async_client, model)
    conversation = await async_client.conversations.create()
    first = await run(agent, "Is Oslo in Norway?", conversation_id=conversation.id)
    second = await run_streamed(agent, "And Bergen?", conversation_id=conversation.id)
    assert given(second) > total(first)
    assert len([item async for item in async_client.conversations.items.list(conversation.id)]) == 4


async def test_conversations_session(async_client: AsyncOpenAI, model: str) -> None:
    agent = make_agent(async_client, model)
    session = OpenAIConversationsSession(openai_client=async_client)
    first = await run(agent, "Is Oslo in Norway?", session=session)
    second = await run_streamed(agent, "And Bergen?", session=session)
    assert given(second) > total(first)
    items: list[Any] = list(await session.get_items())
    assert [item["role"] for item in items] == ["user", "assistant", "user", "assistant"]
    assert list(await session.get_items(limit=1)) == items[-1:]
    popped: Any = await session.pop_item()
    assert popped["content"][0]["text"] == second.final_output
    assert list(await session.get_items()) == items[:-1]
    await session.clear_session()
    assert await session.get_items() == []


class Weather:
    """A function tool that counts its calls."""

    def __init__(self) -> None:
        self.cities: list[str] = []

    def tool(self) -> Any:
        @function_tool(name_override="weather")
        def weather(city: str) -> str:
            """The weather of a city.

            Args:
                city: Oslo or Bergen.
            """
            self.cities.append(city)
            return "Rain"

        return weather


def tool_agent(client: AsyncOpenAI, model: str, weather: Weather) -> Agent[Any]:
    """Its first round must call the tool; the runner itself lifts that in the second."""
    settings = ModelSettings(temperature=0, tool_choice="required")
    responses_model = OpenAIResponsesModel(model, client)
    return Agent(name="Weather", model=responses_model, tools=[weather.tool()], model_settings=settings)


async def test_tool_with_automatic_previous_response(async_client: AsyncOpenAI, model: str) -> None:
    weather = Weather()
    agent = tool_agent(async_client, model, weather)
    result = await run(agent, "What is the weather in Oslo?", auto_previous_response_id=True)
    assert len(weather.cities) == 1
    asked, answered = result.raw_responses
    assert answered.usage.input_tokens > asked.usage.input_tokens
    kept = await async_client.responses.retrieve(answered.response_id)
    assert kept.previous_response_id == asked.response_id


async def test_tool_in_a_conversation(async_client: AsyncOpenAI, model: str) -> None:
    weather = Weather()
    conversation = await async_client.conversations.create()
    agent = tool_agent(async_client, model, weather)
    await run_streamed(agent, "What is the weather in Oslo?", conversation_id=conversation.id)
    assert len(weather.cities) == 1
    kinds = [item.type async for item in async_client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


async def test_tool_with_a_session(async_client: AsyncOpenAI, model: str) -> None:
    """The runner replays the items itself, with the ids they were given."""
    weather = Weather()
    session = OpenAIConversationsSession(openai_client=async_client)
    await run(tool_agent(async_client, model, weather), "What is the weather in Oslo?", session=session)
    assert len(weather.cities) == 1
    again = await run(make_agent(async_client, model), "Is that good weather?", session=session)
    assert again.final_output
    assert len(await session.get_items()) == 6
