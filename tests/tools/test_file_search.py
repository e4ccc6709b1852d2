"""File search as a turn sees it: over folders, and over a vector store API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from proxy.errors import InvalidRequest
from proxy.protocol.hosting import Finished, Hosted
from proxy.tools.file_search import Config, FileSearch, query
from tests.tools.endpoints import Endpoint, a_call, endpoint, kit, request, saying

RESULTS = "file_search_call.results"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "guide.md").write_text("# Guide\n\nThe password of the cellar is plum.\n")
    (tmp_path / "notes.txt").write_text("Plum cake: flour, plum, sugar.\n")
    return tmp_path


@asynccontextmanager
async def tool(**options: Any) -> AsyncIterator[FileSearch]:
    made = FileSearch(Config(**options), kit())
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def hosted(made: FileSearch, *include: str, **declaration: Any) -> Hosted:
    found = await made.declare({"type": "file_search", "vector_store_ids": ["house"], **declaration}, request(*include))
    assert found is not None
    return found


async def run(found: Hosted, arguments: str = '{"query":"plum"}') -> Finished:
    return await found.run(a_call("file_search", arguments))


async def test_the_model_is_shown_one_function_of_the_same_bytes(folder: Path):
    async with tool(folders={"house": folder}) as made:
        one, two = await hosted(made), await hosted(made, RESULTS, max_num_results=3)
        (function,) = one.functions
        assert function == two.functions[0]
        assert json.loads(function.definition)["name"] == function.name == "file_search"
        assert (one.opening, one.prefix, one.approval(a_call("f", "{}")), one.target()) == ((), "fs_", None, "")


async def test_a_search_is_shown_and_read(folder: Path):
    async with tool(folders={"house": folder}) as made:
        found = await hosted(made)
        started = found.start(a_call("file_search", '{"query":"cellar"}'))
        finished = await run(found, '{"query":"cellar"}')
    assert started.item == {
        "id": "item_1",
        "type": "file_search_call",
        "status": "searching",
        "queries": ["cellar"],
        "results": None,
    }
    assert [event.type.rpartition(".")[2] for event in started.events] == ["in_progress", "searching"]
    assert finished.item == {**started.item, "status": "completed"}
    assert [event.type for event in finished.events] == ["response.file_search_call.completed"]
    assert finished.output == "[guide.md]\n# Guide\n\nThe password of the cellar is plum."


async def test_results_are_shown_where_they_are_asked_for(folder: Path):
    async with tool(folders={"house": folder}) as made:
        shown = (await run(await hosted(made, RESULTS))).item["results"]
        assert {each["filename"] for each in shown} == {"guide.md", "notes.txt"}
        for each in shown:
            assert sorted(each) == ["attributes", "file_id", "filename", "score", "text"]
            assert 0 <= each["score"] < 1
        assert shown == sorted(shown, key=lambda each: -each["score"])
        (one,) = (await run(await hosted(made, RESULTS, max_num_results=1))).item["results"]
        assert one == shown[0]


async def test_several_stores_are_one_list(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    other = tmp_path_factory.mktemp("other")
    (other / "tree.txt").write_text("plum plum plum")
    async with tool(folders={"house": folder, "garden": other}) as made:
        found = await run(await hosted(made, RESULTS, vector_store_ids=["house", "garden"]))
        assert {each["filename"] for each in found.item["results"]} == {"guide.md", "notes.txt", "tree.txt"}
        twice = await run(await hosted(made, RESULTS, vector_store_ids=["house", "house"]))
        assert len(twice.item["results"]) == 2, "a store that is named twice is searched once"


async def test_nothing_found_is_said(folder: Path):
    async with tool(folders={"house": folder}) as made:
        finished = await run(await hosted(made), '{"query":"zebra"}')
    assert (finished.output, finished.item["status"]) == ("No results.", "completed")


@pytest.mark.parametrize(
    "arguments", ["{}", '{"query":""}', '{"query":1}', "[]", "", '{"query":"%s"}' % ("x" * 70_000)]
)
async def test_a_call_without_a_proper_query_is_incomplete(folder: Path, arguments: str):
    async with tool(folders={"house": folder}) as made:
        finished = await run(await hosted(made), arguments)
    assert (finished.item["status"], finished.item["results"], finished.events) == ("incomplete", None, ())
    assert finished.output.startswith("Error: ")


@pytest.mark.parametrize(
    ("arguments", "asked"), [('{"query":"x"}', "x"), ('{"query":null}', ""), ("nope", ""), ('"x"', ""), ("\ud800", "")]
)
def test_the_query_of_a_call(arguments: str, asked: str):
    assert query(arguments) == asked


# A vector store API


def a_result(name: str, score: float, **more: Any) -> dict[str, Any]:
    text = [{"type": "text", "text": f"about {name}"}]
    return {"file_id": f"file-{name}", "filename": f"{name}.txt", "score": score, "content": text, **more}


@asynccontextmanager
async def remote(answer: Any, **options: Any) -> AsyncIterator[tuple[FileSearch, Endpoint]]:
    async with (
        endpoint(answer if callable(answer) else saying(answer)) as there,
        tool(vector_store_url=there.url, **options) as made,
    ):
        yield made, there


async def test_the_api_is_asked_for_each_store():
    declaration = {
        "vector_store_ids": ["vs_1", "vs_2"],
        "max_num_results": 3,
        "filters": {"type": "eq", "key": "a", "value": 1},
        "ranking_options": {"score_threshold": 0.5},
    }
    page = {"data": [a_result("low", 0.25), a_result("high", 0.75, attributes={"a": 1})]}
    async with remote(page, api_key="k3y") as (made, there):
        finished = await run(await hosted(made, RESULTS, **declaration))
    assert sorted(each.path for each in there.requests) == [f"/v1/vector_stores/vs_{n}/search" for n in (1, 2)]
    sent = {"query": "plum", "max_num_results": 3, **{key: declaration[key] for key in ("filters", "ranking_options")}}
    assert [json.loads(body) for body in there.bodies] == [sent, sent]
    assert {each.headers["authorization"] for each in there.requests} == {"Bearer k3y"}
    assert [each["score"] for each in finished.item["results"]] == [0.75, 0.75, 0.25]
    assert finished.item["results"][0] == {
        "attributes": {"a": 1},
        "file_id": "file-high",
        "filename": "high.txt",
        "score": 0.75,
        "text": "about high",
    }
    assert "k3y" not in str(finished)


async def test_folders_and_the_api_side_by_side(folder: Path):
    async with remote({"data": [a_result("far", 0.99)]}, folders={"house": folder}) as (made, there):
        finished = await run(await hosted(made, RESULTS, vector_store_ids=["house", "vs_1"]))
    assert {each["filename"] for each in finished.item["results"]} == {"guide.md", "notes.txt", "far.txt"}
    assert [each.path for each in there.requests] == ["/v1/vector_stores/vs_1/search"]


@pytest.mark.parametrize("content", [[], None, [{"type": "image"}], [{"text": None}]])
async def test_a_result_without_text_is_one(content: Any):
    async with remote({"data": [a_result("a", 0.5, content=content)]}) as (made, _):
        finished = await run(await hosted(made))
    assert finished.output == "[a.txt]\n"


async def _hang(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(("mode", "status"), [("open", "incomplete"), ("closed", "failed")])
@pytest.mark.parametrize(
    "answer",
    [
        "nope",
        {},
        {"data": None},
        {"data": [1]},
        {"data": [{"file_id": "a"}]},
        {"data": [a_result("a", 0.5) | {"score": "high"}]},
        {"data": [a_result("a", 0.5, content=["x"])]},
        {"data": [a_result("a", 0.5, content=5)]},
        [],
        saying({"data": []}, 500),
        saying("x" * 5000),
        _hang,
    ],
)
async def test_a_store_that_fails_is_told_to_the_model(answer: Any, mode: str, status: str):
    options = {"on_failure": mode, "timeout_seconds": 0.2, "max_response_bytes": 4096}
    async with remote(answer, **options) as (made, there):
        finished = await run(await hosted(made))
        assert there.url.removeprefix("http://") not in finished.output
    assert (finished.item["status"], finished.item["results"], finished.events) == (status, None, ())
    assert finished.output.startswith("Error: ")


# Citations


async def cited(text: str, *names: str) -> list[tuple[str, str, int]]:
    async with remote({"data": [a_result(name, 0.5) for name in names]}) as (made, _):
        found = await hosted(made)
        assert found.annotate(text) == (text, [])
        await run(found)
        same, marks = found.annotate(text)
    assert same == text
    assert all(each["type"] == "file_citation" for each in marks)
    return [(each["filename"], each["file_id"], each["index"]) for each in marks]


async def test_a_file_is_cited_after_its_name_in_brackets():
    assert await cited("x [b.txt] and [a.txt].", "a", "b") == [("b.txt", "file-b", 9), ("a.txt", "file-a", 21)]
    assert await cited("a.txt [c.txt] (a.txt)", "a") == []
    assert await cited("é [a.txt]", "a") == [("a.txt", "file-a", 9)], "in characters, not bytes"


# Declarations


@pytest.mark.parametrize(
    "declaration",
    [
        {"vector_store_ids": None},
        {"vector_store_ids": []},
        {"vector_store_ids": "house"},
        {"vector_store_ids": [1]},
        {"vector_store_ids": ["../secret"]},
        {"vector_store_ids": ["a/b"]},
        {"vector_store_ids": ["house\n"]},
        {"vector_store_ids": ["nowhere"]},
        {"vector_store_ids": ["house", "nowhere"]},
        {"vector_store_ids": [f"house{n}" for n in range(65)]},
        {"max_num_results": 0},
        {"max_num_results": 51},
        {"max_num_results": "5"},
        {"max_num_results": True},
    ],
)
async def test_a_declaration_that_is_wrong_is_refused(folder: Path, declaration: dict[str, Any]):
    async with tool(folders={"house": folder}) as made:
        with pytest.raises(InvalidRequest) as caught:
            await hosted(made, **declaration)
    assert caught.value.param == "tools"


async def test_too_many_stores_are_refused_as_such():
    async with tool(vector_store_url="http://127.0.0.1:9") as made:
        with pytest.raises(InvalidRequest, match="64"):
            await hosted(made, vector_store_ids=[f"vs_{n}" for n in range(65)])


@pytest.mark.parametrize("empty", ["max_num_results", "filters", "ranking_options"])
async def test_what_clients_leave_empty_means_nothing(empty: str):
    async with remote({"data": []}) as (made, there):
        await run(await hosted(made, **{empty: None}))
    assert json.loads(there.bodies[0]) == {"query": "plum", "max_num_results": 10}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"folders": {}},
        {"vector_store_url": "store"},
        {"vector_store_url": "http://x", "on_failure": "maybe"},
        {"vector_store_url": "http://x", "timeout_seconds": 0},
    ],
)
def test_options_are_checked(options: dict[str, Any]):
    with pytest.raises(ValidationError):
        Config(**options)
