"""Web search as a turn sees it."""

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
from proxy.tools.web_search import Config, WebSearch
from tests.tools.endpoints import Endpoint, a_call, endpoint, kit, request, saying

SKY = {"title": "Sky", "url": "https://sky.example/today", "content": "clear"}
SEA = {"title": "Sea", "url": "https://sea.example/", "content": "calm"}
SOURCES = "web_search_call.action.sources"


@asynccontextmanager
async def tool(**options: Any) -> AsyncIterator[WebSearch]:
    made = WebSearch(Config(**options), kit())
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def searching(
    answer: Any = None, include: str = "", declaration: Any = None, **options: Any
) -> AsyncIterator[tuple[Hosted, Endpoint]]:
    """The declared search over a SearXNG that answers so."""
    saying_ = answer if callable(answer) else saying({"results": [SKY, SEA]} if answer is None else answer)
    async with (
        endpoint(saying_) as there,
        tool(provider="searxng", base_url=there.url, **options) as made,
    ):
        hosted = await made.declare({"type": "web_search", **(declaration or {})}, request(include))
        assert hosted is not None
        yield hosted, there
        await hosted.close()


async def run(hosted: Hosted, arguments: str = '{"query":"sky"}') -> Finished:
    return await hosted.run(a_call("web_search", arguments))


async def test_the_model_is_shown_one_function_of_the_same_bytes():
    async with searching() as (one, _), searching(declaration={"search_context_size": "low"}) as (two, _):
        (function,) = one.functions
        assert function == two.functions[0]
        assert json.loads(function.definition)["name"] == function.name == "web_search"
        assert (one.opening, one.prefix, one.approval(a_call("web_search", "{}")), one.target()) == (
            (),
            "ws_",
            None,
            "",
        )


async def test_a_search_is_shown_and_read():
    async with searching() as (hosted, there):
        started = hosted.start(a_call("web_search", '{"query":"sky"}'))
        finished = await run(hosted)
    action = {"type": "search", "query": "sky"}
    assert started.item == {"id": "item_1", "type": "web_search_call", "status": "in_progress", "action": action}
    assert [event.type for event in started.events] == [
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
    ]
    assert finished.item == {**started.item, "status": "completed"}, "no sources unless they are asked for"
    assert [event.type for event in finished.events] == ["response.web_search_call.completed"]
    assert finished.output == "Sky\nhttps://sky.example/today\nclear\n\nSea\nhttps://sea.example/\ncalm"
    assert there.requests[0].query["q"] == "sky"


async def test_sources_are_shown_where_they_are_asked_for():
    async with searching(include=SOURCES) as (hosted, _):
        sources = (await run(hosted)).item["action"]["sources"]
    assert sources == [{"type": "url", "url": each["url"]} for each in (SKY, SEA)]


@pytest.mark.parametrize(("size", "count"), [("low", 3), ("medium", 5), ("high", 10), (None, 5), ("absent", 10)])
async def test_the_context_size_is_a_number_of_results(size: str | None, count: int):
    pages = [{**SKY, "url": f"https://sky.example/{n}"} for n in range(20)]
    declaration = {} if size == "absent" else {"search_context_size": size}
    default = {"default_context_size": "high"} if size == "absent" else {}
    async with searching({"results": pages}, SOURCES, declaration, **default) as (hosted, _):
        assert len((await run(hosted)).item["action"]["sources"]) == count


async def test_only_allowed_domains_are_shown_whatever_the_provider_answers():
    odd = {"title": "odd", "url": "https://[", "content": ""}
    evil = {"title": "evil", "url": "https://sky.example.evil/", "content": ""}
    declaration = {"filters": {"allowed_domains": ["SKY.example"]}, "search_context_size": "low"}
    async with searching({"results": [odd, SEA, evil] * 4 + [SKY]}, SOURCES, declaration) as (hosted, there):
        finished = await run(hosted)
    assert [each["url"] for each in finished.item["action"]["sources"]] == [SKY["url"]]
    assert there.requests[0].query["q"] == "sky (site:sky.example)"


async def test_a_place_narrows_the_question():
    place = {"type": "approximate", "country": "fr", "region": "Rhône", "city": "Lyon", "timezone": "Europe/Paris"}
    async with searching(declaration={"user_location": place}) as (hosted, there):
        await run(hosted)
    assert there.requests[0].query == {"q": "sky Lyon Rhône", "format": "json", "language": "all-FR"}


async def test_nothing_found_is_said():
    async with searching({"results": []}) as (hosted, _):
        finished = await run(hosted)
    assert (finished.output, finished.item["status"]) == ("No results.", "completed")


async def test_a_page_is_quoted_up_to_a_length():
    async with searching({"results": [{**SKY, "content": "x" * 5000}]}) as (hosted, _):
        assert len((await run(hosted)).output) < 2100


@pytest.mark.parametrize(
    "arguments", ["{}", '{"query":""}', '{"query":1}', '{"query":null}', "[]", "", '{"query":"%s"}' % ("x" * 3000)]
)
async def test_a_call_without_a_proper_query_asks_nobody(arguments: str):
    async with searching() as (hosted, there):
        finished = await run(hosted, arguments)
    assert (finished.item["status"], finished.events, there.requests) == ("failed", (), [])
    assert finished.output.startswith("Error: ")
    assert isinstance(finished.item["action"]["query"], str)


async def _hang(request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    "answer",
    [saying("nope"), saying({}), saying({"results": [SKY]}, 500), saying("x" * (1024 * 1024 + 1)), _hang],
    ids=["no json", "no results", "error", "too much", "hangs"],
)
async def test_a_provider_that_fails_is_told_to_the_model(answer: Any):
    async with searching(answer, timeout_seconds=0.2) as (hosted, there):
        finished = await run(hosted)
        address = there.url.removeprefix("http://")
    assert (finished.item["status"], finished.events) == ("failed", ())
    assert finished.output.startswith("Error: ")
    assert address not in finished.output


async def test_a_key_is_shown_to_nobody():
    async with tool(provider="brave", base_url="http://127.0.0.1:9", api_key="k3y") as made:
        hosted = await made.declare({"type": "web_search"}, request())
        assert hosted is not None
        assert "k3y" not in str(await run(hosted))
        assert "k3y" not in repr(made._config)


# Offline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sky.md").write_text("url: https://sky.example/\n# The sky\n\nIt is blue.\n")
    (tmp_path / "sea.md").write_text("# The sea\n\nIt is blue, too.\n")
    return tmp_path


@pytest.mark.parametrize("declaration", [{"external_web_access": False}, {}])
async def test_the_offline_index_answers(folder: Path, declaration: dict[str, Any]):
    options = {"provider": "searxng", "base_url": "http://127.0.0.1:9"} if declaration else {}
    async with tool(offline_folder=folder, **options) as made:
        hosted = await made.declare({"type": "web_search", **declaration}, request(SOURCES))
        assert hosted is not None
        finished = await run(hosted, '{"query":"blue"}')
        assert finished.item["status"] == "completed"
        assert {each["url"] for each in finished.item["action"]["sources"]} == {"https://sky.example/", "sea.md"}
        narrow = {"filters": {"allowed_domains": ["sky.example"]}, **declaration}
        hosted = await made.declare({"type": "web_search", **narrow}, request())
        assert hosted is not None
        assert "sea" not in (await run(hosted, '{"query":"blue"}')).output


async def test_without_an_index_nothing_is_offered_and_nobody_is_asked():
    async with searching(declaration={"external_web_access": False}) as (hosted, there):
        assert hosted.functions == ()
        assert (await run(hosted)).item["status"] == "failed"
        assert hosted.start(a_call("web_search", "{}")).events == ()
        assert hosted.annotate("x") == ("x", ())
    assert there.requests == []


@pytest.mark.parametrize("access", [True, None])
async def test_other_words_about_access_change_nothing(access: Any):
    async with searching(declaration={"external_web_access": access}) as (hosted, there):
        await run(hosted)
    assert len(there.requests) == 1


# Citations


async def cited(text: str, *urls: str) -> list[tuple[str, str]]:
    pages = [{"title": f"page {n}", "url": url, "content": ""} for n, url in enumerate(urls)]
    async with searching({"results": pages}) as (hosted, _):
        await run(hosted)
        same, found = hosted.annotate(text)
    assert same == text
    assert all(each["type"] == "url_citation" for each in found)
    assert [each["start_index"] for each in found] == sorted(each["start_index"] for each in found)
    return [(text[each["start_index"] : each["end_index"]], each["title"]) for each in found]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("see [the sky](https://a.example/x) now", [("[the sky](https://a.example/x)", "page 0")]),
        ("see https://a.example/x.", [("https://a.example/x", "page 0")]),
        ("see https://a.example/x, then", [("https://a.example/x", "page 0")]),
        ("see <https://a.example/x>", [("https://a.example/x", "page 0")]),
        ("见https://a.example/x的天气", [("https://a.example/x", "page 0")]),
        ("https://a.example/x/ says: https://a.example/x", [("https://a.example/x", "page 0")]),
        ("é [ü](https://a.example/x)", [("[ü](https://a.example/x)", "page 0")]),
        ("nothing", []),
        ("https://b.example/", []),
        # A longer address is another page.
        ("see https://a.example/xyz", []),
        ("see https://a.example/x/y", []),
        ("see https://a.example/x?q=1", []),
        ("see https://a.example/xyz and https://a.example/x", [("https://a.example/x", "page 0")]),
    ],
)
async def test_a_page_is_cited_where_the_text_names_it(text: str, marks: list[tuple[str, str]]):
    assert await cited(text, "https://a.example/x") == marks


async def test_several_pages_are_cited_in_the_order_of_the_text():
    text = "[b](https://a.example/x/y) and https://a.example/x"
    assert await cited(text, "https://a.example/x", "https://a.example/x/y") == [
        ("[b](https://a.example/x/y)", "page 1"),
        ("https://a.example/x", "page 0"),
    ]


async def test_nothing_is_cited_before_anything_was_found():
    async with searching() as (hosted, _):
        assert hosted.annotate(SKY["url"]) == (SKY["url"], [])


# Declarations


@pytest.mark.parametrize(
    "declaration",
    [
        {"search_context_size": "huge"},
        {"search_context_size": ["low"]},
        {"filters": {"allowed_domains": "sky.example"}},
        {"filters": {"allowed_domains": ["https://sky.example"]}},
        {"filters": {"allowed_domains": ["sky"]}},
        {"filters": {"allowed_domains": ["a.example OR site:b.example"]}},
        {"filters": {"allowed_domains": [1]}},
        {"filters": {"allowed_domains": ["a.example"] * 101}},
        {"user_location": "here"},
        {"user_location": {"country": "France"}},
        {"user_location": {"country": 1}},
    ],
)
async def test_a_declaration_that_is_wrong_is_refused(declaration: dict[str, Any]):
    async with tool(provider="searxng", base_url="http://127.0.0.1:9") as made:
        with pytest.raises(InvalidRequest) as caught:
            await made.declare({"type": "web_search", **declaration}, request())
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "declaration",
    [
        {"filters": None},
        {"filters": {}},
        {"filters": {"allowed_domains": None}},
        {"filters": {"allowed_domains": []}},
        {"user_location": None},
        {"user_location": {"type": "approximate", "city": 1, "country": None}},
        {"search_context_size": None},
        {"unknown": 1},
    ],
)
async def test_what_clients_leave_empty_means_nothing(declaration: dict[str, Any]):
    async with searching(declaration=declaration) as (hosted, there):
        assert (await run(hosted)).item["status"] == "completed"
    assert there.requests[0].query == {"q": "sky", "format": "json"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"provider": "searxng"},
        {"provider": "brave"},
        {"provider": "tavily"},
        {"provider": "else", "api_key": "x"},
        {"provider": "searxng", "base_url": "search.example"},
        {"provider": "searxng", "base_url": "http://x", "timeout_seconds": 0},
    ],
)
def test_options_are_checked(options: dict[str, Any]):
    with pytest.raises(ValidationError):
        Config(**options)
