"""Web and file search through whole turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.backend import ScriptedVLLM
from tests.integration.gateway import Gateway, free_port, running
from tests.integration.test_loop import call_item, check_composed, message_item, round_frames, streamed

PAGE = {"title": "Sky", "url": "https://sky.example/today", "content": "clear all day"}
OTHER = {"title": "Sea", "url": "https://sea.example/", "content": "calm"}


@asynccontextmanager
async def searching(backend: ScriptedVLLM, store: str, **tools: Any) -> AsyncIterator[Gateway]:
    names = ("owner", "validate", "response_store", "rehydrate", "agentic_loop", "repair", "upstream")
    entries = [{"filter": name, **({"tools": tools} if name == "agentic_loop" else {})} for name in names]
    async with running(backend, store, chains={"default": entries}) as gateway:
        yield gateway


@asynccontextmanager
async def searxng(asked: list[web.BaseRequest]) -> AsyncIterator[str]:
    """An endpoint in SearXNG's shape."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request)
        return web.json_response({"query": request.query["q"], "results": [PAGE, OTHER]})

    port = free_port()
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_a_web_search_shows_its_call_its_sources_and_what_the_text_cites(
    backend: ScriptedVLLM, sqlite_url: str
) -> None:
    asked: list[web.BaseRequest] = []
    tool = {
        "type": "web_search",
        "search_context_size": "low",
        "filters": {"allowed_domains": ["sky.example"]},
        "user_location": {"type": "approximate", "country": "FR", "city": "Lyon"},
    }
    text = "It is clear, says [Sky](https://sky.example/today)."
    async with (
        searxng(asked) as url,
        searching(backend, sqlite_url, web_search={"provider": "searxng", "base_url": url}) as gateway,
    ):
        search = call_item("web_search", "c1", '{"query":"sky today"}')
        backend.script(*streamed(round_frames("resp_a", [search]), round_frames("resp_b", [message_item(text)])))
        include = ["web_search_call.action.sources"]
        answer = await gateway.create(input="x", tools=[tool], stream=True, include=include)
        call, message = check_composed(answer)
        assert call["action"] == {
            "type": "search",
            "query": "sky today",
            "sources": [{"type": "url", "url": PAGE["url"]}],
        }
        assert message["content"][0]["annotations"] == [
            {"type": "url_citation", "start_index": 18, "end_index": 50, "url": PAGE["url"], "title": "Sky"}
        ]
        kinds = [
            event["type"] for event in answer.events if "web_search" in event["type"] or "annotation" in event["type"]
        ]
        assert kinds == [
            "response.web_search_call.in_progress",
            "response.web_search_call.searching",
            "response.web_search_call.completed",
            "response.output_text.annotation.added",
        ]
        assert asked[0].query["q"] == "sky today Lyon (site:sky.example)"
        sent = json.loads(backend.turns[1].body)
        assert sent["input"][-1]["output"] == "Sky\nhttps://sky.example/today\nclear all day"
        assert "include" not in sent or sent["include"] == []
        await gateway.create(input="more", previous_response_id="resp_a")
        again = json.loads(backend.turns[2].body)["input"]
        assert again[: len(sent["input"])] == sent["input"]


async def test_without_the_web_only_the_offline_index_answers(
    backend: ScriptedVLLM, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "sky.txt").write_text("url: https://sky.example/\n# The sky\n\nIt is blue by day.\n")
    tool = {"type": "web_search", "external_web_access": False}
    asked: list[web.BaseRequest] = []
    search = call_item("web_search", "c1", '{"query":"blue sky"}')
    async with searxng(asked) as url:
        online = {"provider": "searxng", "base_url": url}
        async with searching(backend, sqlite_url, web_search={**online, "offline_folder": str(tmp_path)}) as gateway:
            backend.script(*streamed(round_frames("resp_a", [search]), round_frames("resp_b", [message_item("blue")])))
            await gateway.create(input="x", tools=[tool], stream=True)
            assert "It is blue by day." in json.loads(backend.turns[1].body)["input"][-1]["output"]
        async with searching(backend, sqlite_url, web_search=online) as gateway:
            answer = await gateway.create(input="x", tools=[tool])
            assert json.loads(backend.turns[2].body)["tools"] == []
            assert answer.json["tools"] == [tool]
    assert asked == []


async def test_file_search_over_a_folder(backend: ScriptedVLLM, sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text("# Guide\n\nThe password of the cellar is plum.\n\nNothing else.\n")
    (tmp_path / "ignored.bin").write_bytes(b"plum cellar")
    tool = {"type": "file_search", "vector_store_ids": ["house"]}
    search = call_item("file_search", "c1", '{"query":"cellar password"}')
    text = "It is plum [guide.md]."
    async with searching(backend, sqlite_url, file_search={"folders": {"house": str(tmp_path)}}) as gateway:
        for include in ([], ["file_search_call.results"]):
            rounds = (round_frames(f"resp_{len(include)}", [search]), round_frames("resp_b", [message_item(text)]))
            backend.script(*streamed(*rounds))
            answer = await gateway.create(input="x", tools=[tool], stream=True, include=include)
            call, message = check_composed(answer)
            assert (call["status"], call["queries"]) == ("completed", ["cellar password"])
            assert [each["filename"] for each in call["results"] or []] == ["guide.md"] * len(include)
            cited = message["content"][0]["annotations"]
            assert [(each["filename"], each["index"]) for each in cited] == [("guide.md", 21)]
        unknown = await gateway.create(input="x", tools=[{"type": "file_search", "vector_store_ids": ["vs_none"]}])
        assert (unknown.status, unknown.error["param"]) == (400, "tools")


async def test_file_search_through_a_vector_store_api(backend: ScriptedVLLM, sqlite_url: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append((request.path, json.loads(await request.read())))
        found = {"file_id": "file-1", "filename": "a.txt", "score": 0.5, "content": [{"type": "text", "text": "plum"}]}
        return web.json_response({"object": "vector_store.search_results.page", "data": [found]})

    port = free_port()
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    tool = {"type": "file_search", "vector_store_ids": ["vs_1", "vs_2"], "max_num_results": 1}
    search = call_item("file_search", "c1", '{"query":"q"}')
    try:
        async with searching(
            backend, sqlite_url, file_search={"vector_store_url": f"http://127.0.0.1:{port}"}
        ) as gateway:
            backend.script(*streamed(round_frames("resp_a", [search]), round_frames("resp_b", [message_item("plum")])))
            check_composed(await gateway.create(input="x", tools=[tool], stream=True))
            assert json.loads(backend.turns[1].body)["input"][-1]["output"] == "[a.txt]\nplum"
    finally:
        await runner.cleanup()
    assert sorted(asked) == [
        (f"/v1/vector_stores/{name}/search", {"query": "q", "max_num_results": 1}) for name in ("vs_1", "vs_2")
    ]


async def test_several_calls_of_a_round_run_at_once_and_keep_their_order(
    backend: ScriptedVLLM, sqlite_url: str
) -> None:
    both = asyncio.Barrier(2)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await both.wait()
        return web.json_response({"results": [{**PAGE, "content": request.query["q"]}]})

    port = free_port()
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    calls = [call_item("web_search", f"c{n}", json.dumps({"query": f"q{n}"})) for n in range(2)]
    options = {"provider": "searxng", "base_url": f"http://127.0.0.1:{port}"}
    try:
        async with searching(backend, sqlite_url, web_search=options) as gateway:
            backend.script(*streamed(round_frames("resp_a", calls), round_frames("resp_b", [message_item("x")])))
            answer_ = await gateway.create(input="x", tools=[{"type": "web_search"}], stream=True)
            assert [item.get("action", {}).get("query") for item in check_composed(answer_)] == ["q0", "q1", None]
            outputs = [each.get("output") for each in json.loads(backend.turns[1].body)["input"]]
            assert [each.rpartition("\n")[2] for each in outputs if each] == ["q0", "q1"]
    finally:
        await runner.cleanup()
