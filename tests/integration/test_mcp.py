"""MCP servers through whole turns: listing, calls, approvals, secrets, safety."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backend import ScriptedVLLM
from tests.integration.gateway import Gateway, running
from tests.integration.test_loop import call_item, check_composed, message_item, round_frames, streamed
from tests.tools.servers import Seen, real, serving

NAMES = ("owner", "validate", "response_store", "rehydrate", "mcp_tools", "agentic_loop", "repair", "upstream")


@asynccontextmanager
async def before(server: Seen | None, backend: ScriptedVLLM, store: str, owner: Any = None) -> AsyncIterator[Gateway]:
    allowed = {"allowed_private_origins": [server.origin]} if server else {}
    options = {"mcp_tools": allowed, "owner": owner or {}}
    entries = [{"filter": name, **options.get(name, {})} for name in NAMES]
    async with running(backend, store, chains={"default": entries}) as gateway:
        yield gateway


@pytest.fixture
async def server() -> AsyncIterator[Seen]:
    async with serving(real().streamable_http_app()) as seen:
        yield seen


def declared(server: Seen, **more: Any) -> dict[str, Any]:
    url = f"{server.origin}/mcp"
    return {"type": "mcp", "server_label": "calc", "server_url": url, "require_approval": "never", **more}


ADD = call_item("calc__add", "c1", '{"a":2,"b":3}')


async def test_a_servers_tools_are_listed_called_and_remembered(
    backend: ScriptedVLLM, store_url: str, server: Seen
) -> None:
    tool = declared(server, allowed_tools=["add"])
    async with before(server, backend, store_url) as gateway:
        rounds = (round_frames("resp_a", [ADD]), round_frames("resp_b", [message_item("five")]))
        backend.script(*streamed(*rounds))
        answer = await gateway.create(input="2+3?", tools=[tool], stream=True)
        listed, call, message = check_composed(answer)
        assert (listed["type"], [each["name"] for each in listed["tools"]]) == ("mcp_list_tools", ["add"])
        assert "error" not in listed
        assert (call["type"], call["name"], call["output"], call["status"]) == ("mcp_call", "add", "5", "completed")
        assert message["content"][0]["text"] == "five"
        sent = [json.loads(turn.body) for turn in backend.turns]
        assert [each["name"] for each in sent[0]["tools"]] == ["calc__add"]
        assert sent[1]["input"][1:] == [ADD, {"type": "function_call_output", "call_id": "c1", "output": "5"}]
        backend.script(*streamed(round_frames("resp_c", [message_item("bye")])))
        again = await gateway.create(input="bye", tools=[tool], stream=True, previous_response_id="resp_a")
        assert again.final["type"] == "response.completed"
        later = json.loads(backend.turns[-1].body)
        assert later["input"][: len(sent[1]["input"])] == sent[1]["input"]
        assert later["tools"] == sent[0]["tools"]


def contents(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.glob("store.db*"))


async def test_secrets_are_sent_to_the_server_and_shown_to_nobody(
    backend: ScriptedVLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    async with (
        serving(real().streamable_http_app(), token="hush-hush") as server,
        before(server, backend, f"sqlite:///{path}") as gateway,
    ):
        tool = declared(server, authorization="hush-hush", headers={"X-Also": "very-secret"})
        backend.script(*streamed(round_frames("resp_a", [ADD]), round_frames("resp_b", [message_item("five")])))
        answer = await gateway.create(input="2+3?", tools=[tool], stream=True)
        assert check_composed(answer)[1]["output"] == "5"
        assert server.headers("authorization") == {"Bearer hush-hush"}
        shown = answer.body + (await gateway.ask("GET", "/v1/responses/resp_a")).body
        shown += b"".join(turn.head + turn.body for turn in backend.turns)
    files = contents(tmp_path)
    for secret in (b"hush-hush", b"very-secret"):
        assert secret not in shown
        assert secret not in files
        assert secret.decode() not in caplog.text


async def test_private_addresses_are_refused_by_default(backend: ScriptedVLLM, sqlite_url: str, server: Seen) -> None:
    async with before(None, backend, sqlite_url) as gateway:
        for url in (f"{server.origin}/mcp", "http://169.254.169.254/mcp", "http://[::ffff:127.0.0.1]/mcp"):
            tool = {"type": "mcp", "server_label": "x", "server_url": url}
            answer = await gateway.create(input="a", tools=[tool], stream=True)
            assert answer.status == 400, answer.body
            assert answer.error["param"].startswith("tools")
    assert server.requests == []
    assert backend.turns == []


async def asked(gateway: Gateway, backend: ScriptedVLLM, tool: dict[str, Any]) -> str:
    """A response that ends with a request for approval; gives its id."""
    backend.script(*streamed(round_frames("resp_a", [ADD])))
    answer = await gateway.create(input="2+3?", tools=[tool], stream=True)
    request = check_composed(answer)[-1]
    assert (request["type"], request["name"], request["arguments"]) == ("mcp_approval_request", "add", '{"a":2,"b":3}')
    assert answer.final["type"] == "response.completed"
    id_: str = request["id"]
    return id_


def approval(id_: str, approve: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": id_, "approve": approve, **more}


@pytest.mark.parametrize("by_reference", [False, True])
async def test_an_approved_call_runs_once(
    backend: ScriptedVLLM, store_url: str, server: Seen, by_reference: bool
) -> None:
    tool = declared(server, require_approval="always")
    async with before(server, backend, store_url) as gateway:
        id_ = await asked(gateway, backend, tool)
        asks: dict[str, Any] = {"input": [approval(id_)], "previous_response_id": "resp_a"}
        if by_reference:  # as the Vercel AI SDK sends it
            asks = {
                "input": [{"role": "user", "content": "2+3?"}, {"type": "item_reference", "id": id_}, approval(id_)]
            }
        backend.script(*streamed(round_frames("resp_b", [message_item("five")])))
        answer = await gateway.create(tools=[tool], stream=True, **asks)
        call = next(item for item in check_composed(answer) if item["type"] == "mcp_call")
        assert (call["output"], call["approval_request_id"]) == ("5", id_)
        pair = json.loads(backend.turns[-1].body)["input"][-2:]
        assert [each["type"] for each in pair] == ["function_call", "function_call_output"]
        again = await gateway.create(tools=[tool], **asks)
        assert (again.status, "already been used" in again.error["message"]) == (400, True)
        await gateway.create(input="thanks", previous_response_id="resp_b", tools=[tool])
        sent = json.loads(backend.turns[-1].body)["input"]
        assert pair == [each for each in sent if each.get("call_id") == pair[0]["call_id"]]


async def test_a_refused_call_is_told_to_the_model_and_stays_told(
    backend: ScriptedVLLM, store_url: str, server: Seen
) -> None:
    tool = declared(server, require_approval="always")
    async with before(server, backend, store_url) as gateway:
        id_ = await asked(gateway, backend, tool)
        calls = server.methods().count("POST")
        backend.script(*streamed(round_frames("resp_b", [message_item("a pity")])))
        denied = [approval(id_, False, reason="too expensive"), {"role": "user", "content": "why?"}]
        await gateway.create(input=denied, tools=[tool], stream=True, previous_response_id="resp_a")
        sent = json.loads(backend.turns[-1].body)["input"]
        assert "too expensive" in sent[2]["output"]
        await gateway.create(input="ok", previous_response_id="resp_b")
        assert json.loads(backend.turns[-1].body)["input"][: len(sent)] == sent
        assert server.methods().count("POST") <= calls + 3, "nothing was called, at most listed"


async def test_two_replicas_use_an_approval_once(backend: ScriptedVLLM, store_url: str, server: Seen) -> None:
    tool = declared(server, require_approval="always")
    async with before(server, backend, store_url) as one, before(server, backend, store_url) as two:
        id_ = await asked(one, backend, tool)
        asks = {"input": [approval(id_)], "previous_response_id": "resp_a", "tools": [tool]}
        answers = await asyncio.gather(*((one, two)[n % 2].create(**asks) for n in range(4)))
        assert sorted(answer.status for answer in answers) == [200, 400, 400, 400]


async def test_an_approval_holds_for_its_own_target_and_owner_only(
    backend: ScriptedVLLM, store_url: str, server: Seen
) -> None:
    tool = declared(server, require_approval="always")
    async with before(server, backend, store_url, {"mode": "trusted_header"}) as gateway:
        backend.script(*streamed(round_frames("resp_a", [ADD])))
        answer = await gateway.create(owner="ann", input="2+3?", tools=[tool], stream=True)
        id_ = check_composed(answer)[-1]["id"]
        other = {**tool, "headers": {"X-Other": "1"}}
        asks = {"input": [approval(id_)], "previous_response_id": "resp_a"}
        changed = await gateway.create(owner="ann", tools=[other], **asks)
        assert (changed.status, "another target" in changed.error["message"]) == (400, True)
        foreign = await gateway.create(owner="bob", tools=[tool], input=[approval(id_)])
        assert foreign.status == 400
        assert (await gateway.create(owner="ann", tools=[tool], **asks)).status == 200


async def test_an_approval_needs_a_stored_response(backend: ScriptedVLLM, sqlite_url: str, server: Seen) -> None:
    async with before(server, backend, sqlite_url) as gateway:
        backend.script(*streamed(round_frames("resp_a", [ADD])))
        answer = await gateway.create(
            input="2+3?", tools=[declared(server, require_approval="always")], stream=True, store=False
        )
        assert answer.final["type"] in ("error", "response.failed")


async def test_a_server_that_is_away_is_told_of_in_a_stream_or_by_status(
    backend: ScriptedVLLM, store_url: str, server: Seen
) -> None:
    async with before(server, backend, store_url) as gateway:
        tool = {**declared(server), "server_url": f"{server.origin}/nowhere"}
        whole = await gateway.create(input="a", tools=[tool])
        assert (whole.status, whole.error["code"]) == (502, "tool_error")
        answer = await gateway.create(input="a", tools=[tool], stream=True)
        listed = check_composed(answer)[0]
        assert (listed["type"], listed["server_label"]) == ("mcp_list_tools", "calc")
        assert answer.final["type"] == "response.failed"
        id_ = answer.final["response"]["id"]
        assert (await gateway.ask("GET", f"/v1/responses/{id_}")).json == answer.final["response"]
    assert backend.turns == []
