"""Functions that an HTTP endpoint answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from proxy.protocol.hosting import Finished, Hosted
from proxy.tools.function import Config, Function
from tests.tools.endpoints import a_call, endpoint, kit, request, saying

NOWHERE = "http://127.0.0.1:9/"


@asynccontextmanager
async def tool(url: str = NOWHERE, **options: Any) -> AsyncIterator[Function]:
    weather = {"endpoint": url, "description": "sky", **options.pop("weather", {})}
    made = Function(Config(functions={"weather": weather}, **options), kit())
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def hosted(made: Function, **declaration: Any) -> Hosted | None:
    return await made.declare({"type": "function", "name": "weather", **declaration}, request())


async def ran(url: str, arguments: str = '{"city":"Oslo"}', **options: Any) -> Finished:
    async with tool(url, **options) as made:
        found = await hosted(made)
        assert found is not None
        finished = await found.run(a_call("weather", arguments))
        await found.close()
        return finished


@pytest.mark.parametrize(
    ("declaration", "ours"),
    [
        ({}, True),
        ({"strict": True}, True),
        ({"parameters": None}, True),
        ({"parameters": {}}, False),
        ({"parameters": {"type": "object"}, "description": "mine"}, False),
        ({"name": "other"}, False),
        ({"name": None}, False),
        ({"name": ["weather"]}, False),
    ],
)
async def test_a_name_alone_means_ours(declaration: dict[str, Any], ours: bool):
    async with tool() as made:
        assert (await hosted(made, **declaration) is not None) is ours


async def test_the_model_is_shown_what_the_operator_wrote():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b"]}
    async with tool(weather={"parameters": schema}) as made:
        one, two = [await hosted(made) for _ in range(2)]
        assert one is not None
        assert two is not None
        (shown,) = one.functions
        assert shown.definition == two.functions[0].definition
        assert json.loads(shown.definition) == {
            "type": "function",
            "name": "weather",
            "description": "sky",
            "parameters": schema,
        }
        assert b'"b":{},"a":{}' in shown.definition
        assert (one.approval(a_call("weather", "{}")), one.target(), one.opening) == (None, "", ())
        assert one.annotate("text") == ("text", ())


async def test_the_endpoint_gets_the_arguments_as_the_model_wrote_them():
    async with endpoint(saying("clear")) as there:
        finished = await ran(
            f"{there.url}/sky", '{"city": "\u00c5l", "n": 1.50}', weather={"authorization": "Bearer k3y"}
        )
    (asked,) = there.requests
    assert (asked.method, asked.path_qs) == ("POST", "/sky")
    assert there.bodies == ['{"city": "\u00c5l", "n": 1.50}'.encode()]
    assert (asked.headers["authorization"], asked.content_type) == ("Bearer k3y", "application/json")
    assert finished.output == "clear"
    assert finished.item == {
        "id": "item_1",
        "type": "mcp_call",
        "status": "completed",
        "approval_request_id": None,
        "arguments": '{"city": "\u00c5l", "n": 1.50}',
        "error": None,
        "name": "weather",
        "output": "clear",
        "server_label": "functions",
    }
    assert [event.type for event in finished.events] == ["response.mcp_call.completed"]
    assert "k3y" not in str(finished)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("clear", "clear"),
        ('"cle\\u0061r"', "clear"),
        ('{"sky": "clear"}', '{"sky": "clear"}'),
        ("[1]", "[1]"),
        ("1.50", "1.50"),
        ("", ""),
        ('"half', '"half'),
    ],
)
async def test_the_model_reads_the_answer(body: str, read: str):
    async with endpoint(saying(body)) as there:
        finished = await ran(there.url)
    assert (finished.output, finished.item["output"]) == (read, read)


@pytest.mark.parametrize("status", [201, 204])
async def test_any_2xx_is_an_answer(status: int):
    async with endpoint(saying("", status)) as there:
        assert (await ran(there.url)).item["status"] == "completed"


async def test_bytes_that_are_no_text_are_still_read():
    async def odd(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"\xff\xfe!")

    async with endpoint(odd) as there:
        assert (await ran(there.url)).output == "\ufffd\ufffd!"


@pytest.mark.parametrize("status", [301, 400, 404, 503])
async def test_an_error_of_the_endpoint_is_told_to_the_model(status: int):
    async with endpoint(saying("out of order " + "x" * 5000, status)) as there:
        finished = await ran(there.url)
    assert finished.item["status"] == "failed"
    assert finished.item["error"].startswith(f"the endpoint answered {status}: out of order")
    assert finished.output == f"Error: {finished.item['error']}"
    assert len(finished.output) < 2200
    assert [event.type for event in finished.events] == ["response.mcp_call.failed"]


async def test_an_endpoint_that_is_not_there_or_says_too_much_or_nothing_is_told_so():
    async def hanging(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    assert (await ran(NOWHERE)).item["status"] == "failed"
    async with endpoint(saying("x" * 2000)) as there:
        assert (await ran(there.url, max_result_bytes=1000)).item["output"] is None
        assert (await ran(there.url, max_result_bytes=2000)).item["status"] == "completed"
    async with endpoint(hanging) as there:
        finished = await ran(there.url, timeout_seconds=0.1)
        assert finished.output.startswith("Error: ")
        assert "127.0.0.1" not in finished.output


async def test_a_call_that_begins_is_shown():
    async with tool() as made:
        found = await hosted(made)
        assert found is not None
        started = found.start(a_call("weather", "{}"))
    assert (started.item["status"], started.item["id"]) == ("in_progress", "item_1")
    assert [event.type for event in started.events] == ["response.mcp_call.in_progress"]


@pytest.mark.parametrize(
    "options",
    [
        {"functions": {}},
        {"functions": {"f": {}}},
        {"functions": {"f": {"endpoint": "ftp://x"}}},
        {"functions": {"f": {"endpoint": NOWHERE}}, "timeout_seconds": 0},
    ],
)
def test_options_are_checked(options: dict[str, Any]):
    with pytest.raises(ValidationError):
        Config(**options)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "é"])
def test_a_function_has_a_name_that_backends_take(name: str):
    with pytest.raises(ValidationError):
        Config(functions={name: {"endpoint": NOWHERE}})
