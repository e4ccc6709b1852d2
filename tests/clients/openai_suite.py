"""The OpenAI Python SDK: turns, streams, the lifecycle of a response, tools, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent
from pydantic import BaseModel

from tests.clients import LONG_PROMPT, SHORT

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class City(BaseModel):
    """A structured answer so narrow that any model is forced into it."""

    name: Literal["Oslo", "Bergen"]


def ask(client: OpenAI, model: str, **fields: Any) -> Response:
    wanted: dict[str, Any] = {"model": model, "temperature": 0, "extra_body": SHORT} | fields
    response = client.responses.create(**wanted)
    assert isinstance(response, Response)
    return response


def ask_streamed(client: OpenAI, model: str, **fields: Any) -> list[ResponseStreamEvent]:
    wanted: dict[str, Any] = {"model": model, "temperature": 0, "extra_body": SHORT, "stream": True} | fields
    return list(client.responses.create(**wanted))


def text_of(item: Any) -> str:
    """The text of a message's first part, whichever of the SDK's many item types it is."""
    return str(item.content[0].text)


def given_tokens(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens


def all_tokens(response: Response) -> int:
    assert response.usage is not None
    return response.usage.total_tokens


def not_found(error: NotFoundError) -> str:
    assert error.status_code == 404
    assert isinstance(error.body, dict)
    return str(error.body["type"])


def test_create(client: OpenAI, model: str) -> None:
    response = ask(client, model, input="Is Oslo in Norway?", metadata={"k": "v"})
    assert response.status == "completed"
    assert response.output_text
    assert response.metadata == {"k": "v"}
    assert response.id.startswith("resp_")


def test_create_stream(client: OpenAI, model: str) -> None:
    events = ask_streamed(client, model, input="Is Oslo in Norway?")
    assert [events[0].type, events[1].type, events[-1].type] == [
        "response.created", "response.in_progress", "response.completed"]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert text == events[-1].response.output_text
    assert text
    assert events[0].response.id == events[-1].response.id


def test_stream_helper(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input="Is Oslo in Norway?", temperature=0, extra_body=SHORT) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text
    assert final.output_text == text
    assert final.status == "completed"


def test_parse(client: OpenAI, model: str) -> None:
    parsed = client.responses.parse(model=model, input="Name a city of Norway.", text_format=City, temperature=0)
    assert parsed.output_parsed is not None
    assert parsed.output_parsed.name in ("Oslo", "Bergen")
    kept = client.responses.retrieve(parsed.id)
    assert json.loads(kept.output_text) == parsed.output_parsed.model_dump()


def test_retrieve(client: OpenAI, model: str) -> None:
    response = ask(client, model, input="Is Oslo in Norway?")
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_retrieve_what_was_streamed(client: OpenAI, model: str) -> None:
    last = ask_streamed(client, model, input="Is Oslo in Norway?")[-1]
    assert last.type == "response.completed"
    assert client.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


@pytest.mark.parametrize("after", [None, 0, 3])
def test_replay(client: OpenAI, model: str, after: int | None) -> None:
    events = ask_streamed(client, model, input="Is Oslo in Norway?")
    assert events[0].type == "response.created"
    starting: dict[str, Any] = {} if after is None else {"starting_after": after}
    replayed = list(client.responses.retrieve(events[0].response.id, stream=True, **starting))
    seen = [event.to_dict() for event in events]
    assert [event.to_dict() for event in replayed] == seen[0 if after is None else after + 1 :]


async def test_cancel_a_running_stream(async_client: AsyncOpenAI, model: str) -> None:
    """The stream is cancelled by another request while it runs; the response stays, marked as cancelled."""
    stream = await async_client.responses.create(model=model, input=LONG_PROMPT, stream=True, temperature=0)
    seen: list[ResponseStreamEvent] = []
    cancelled: Response | None = None
    async with asyncio.timeout(60):
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta" and cancelled is None:
                assert seen[0].type == "response.created"
                cancelled = await async_client.responses.cancel(seen[0].response.id)
    assert cancelled is not None
    assert cancelled.status == "cancelled"
    assert not any(event.type == "response.completed" for event in seen)
    assert (await async_client.responses.retrieve(cancelled.id)).status == "cancelled"


def test_delete(client: OpenAI, model: str) -> None:
    response = ask(client, model, input="Is Oslo in Norway?")
    client.responses.delete(response.id)
    for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(NotFoundError) as caught:
            gone(response.id)
        assert not_found(caught.value) == "invalid_request_error"


def test_descendants_outlive_a_deleted_response(client: OpenAI, model: str) -> None:
    first = ask(client, model, input="Is Oslo in Norway?")
    second = ask(client, model, input="And Bergen?", previous_response_id=first.id)
    client.responses.delete(first.id)
    third = ask(client, model, input="And Rome?", previous_response_id=second.id)
    assert given_tokens(third) > all_tokens(second)


def test_input_items(client: OpenAI, model: str) -> None:
    texts = [f"Text number {number}" for number in range(5)]
    response = ask(client, model, input=[{"role": "user", "content": text} for text in texts])

    def read(**query: Any) -> list[str]:
        return [text_of(item) for item in client.responses.input_items.list(response.id, **query)]

    assert read(order="asc") == texts
    assert read() == read(order="desc") == texts[::-1]
    assert read(order="asc", limit=2) == texts  # the SDK turns the pages
    page = client.responses.input_items.list(response.id, order="asc", limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    assert page.data[1].id is not None
    rest = client.responses.input_items.list(response.id, order="asc", after=page.data[1].id)
    assert [text_of(item) for item in rest.data] == texts[2:]
    again = client.responses.input_items.list(response.id, order="asc")
    assert [item.id for item in again.data][:2] == [item.id for item in page.data]


def test_previous_response(client: OpenAI, model: str) -> None:
    first = ask(client, model, input="Is Oslo in Norway?")
    second = ask(client, model, input="And Bergen?", previous_response_id=first.id)
    third = ask_streamed(client, model, input="And Rome?", previous_response_id=second.id)[-1]
    assert third.type == "response.completed"
    assert second.previous_response_id == first.id
    assert third.response.previous_response_id == second.id
    assert given_tokens(second) > all_tokens(first)
    assert given_tokens(third.response) > all_tokens(second)


def test_two_branches_from_one_response(client: OpenAI, model: str) -> None:
    root = ask(client, model, input="Is Oslo in Norway?")
    branches = [ask(client, model, input="And Bergen?", previous_response_id=root.id) for _ in range(2)]
    assert given_tokens(branches[0]) == given_tokens(branches[1]) > all_tokens(root)


def test_output_fed_back_as_input(client: OpenAI, model: str) -> None:
    """The loop of the SDK's own documentation, three times, also with the ids already known to the store."""
    given: list[Any] = [{"role": "user", "content": "Is Oslo in Norway?"}]
    sizes = []
    for _ in range(3):
        response = ask(client, model, input=given)
        sizes.append(given_tokens(response))
        given += response.output
        given.append({"role": "user", "content": "And Bergen?"})
    assert sizes == sorted(set(sizes))
    assert len(client.responses.input_items.list(response.id).data) == 5


def weather_call(response: Response) -> ResponseFunctionToolCall:
    [call] = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert json.loads(call.arguments) == {"city": "Oslo"}
    return call


def told(call: ResponseFunctionToolCall) -> list[Any]:
    return [{"type": "function_call_output", "call_id": call.call_id, "output": "Rain, 7 degrees"}]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_loop(client: OpenAI, model: str, stream: bool) -> None:
    wanted: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "extra_body": {}}
    if stream:
        last = ask_streamed(client, model, input="The weather in Oslo?", **wanted)[-1]
        assert last.type == "response.completed"
        asked = last.response
    else:
        asked = ask(client, model, input="The weather in Oslo?", **wanted)
    call = weather_call(asked)
    answered = ask(client, model, input=told(call), previous_response_id=asked.id)
    assert answered.output_text
    assert given_tokens(answered) > given_tokens(ask(client, model, input="The weather in Oslo?"))


def test_an_unanswered_call_is_refused(client: OpenAI, model: str) -> None:
    asked = ask(client, model, input="The weather?", tools=[TOOL], tool_choice="required", extra_body={})
    with pytest.raises(BadRequestError, match=weather_call(asked).call_id):
        ask(client, model, input="Never mind.", previous_response_id=asked.id)


def test_an_answer_to_no_call_is_refused(client: OpenAI, model: str) -> None:
    with pytest.raises(BadRequestError, match="call_of_nobody"):
        ask(client, model, input=[{"type": "function_call_output", "call_id": "call_of_nobody", "output": "x"}])


def test_both_selectors_are_refused(client: OpenAI, model: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, model, input="x", previous_response_id="resp_1", conversation="conv_1")
    assert caught.value.code == "mutually_exclusive_parameters"


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_previous_response_is_refused(client: OpenAI, model: str, stream: bool) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask_streamed(client, model, input="x", previous_response_id="resp_nowhere", stream=stream)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize("stream", [False, True])
def test_store_false_leaves_nothing(client: OpenAI, model: str, stream: bool) -> None:
    if stream:
        first = ask_streamed(client, model, input="Is Oslo in Norway?", store=False)[0]
        assert first.type == "response.created"
        response = first.response
    else:
        response = ask(client, model, input="Is Oslo in Norway?", store=False)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(BadRequestError) as caught:
        ask(client, model, input="x", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"


def test_the_backends_own_errors_come_through(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="The model `nope` does not exist"):
        ask(client, "nope", input="x")


def test_models_are_the_backends(client: OpenAI, model: str) -> None:
    assert [served.id for served in client.models.list()] == [model]
