"""Servers that do wrong, and clients that leave: each ends as an outcome, soon, and with bounded memory."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from proxy.errors import ToolError
from proxy.protocol.hosting import Finished
from tests.tools.servers import Seen, result, scripted, text, tool
from tests.tools.stage import a_call, declared, hosted, request, run
from tests.tools.stage import tool as the_tool

ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
Reply = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def raw(body: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> Reply:
    async def reply(request: web.Request, message: dict[str, Any]) -> web.Response:
        return web.Response(body=body, status=status, headers={"content-type": kind, **headers})

    return reply


async def dropped(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"jsonrpc":')
    assert request.transport is not None
    request.transport.abort()
    return response


async def dropped_stream(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"event: message\n")
    assert request.transport is not None
    request.transport.abort()
    return response


async def wrong_result(request: web.Request, message: dict[str, Any]) -> web.Response:
    return result(message, {"content": [{"type": "text"}]})


async def rpc_error(request: web.Request, message: dict[str, Any]) -> web.Response:
    return web.json_response(
        {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32050, "message": "out of ink"}}
    )


COMPLETE = {"resultType": "complete"}
CACHED = {"ttlMs": 0, "cacheScope": "private"}

FAULTS: dict[str, tuple[Reply, str, str, int]] = {
    "drops": (dropped, "broke off", "mcp_protocol_error", -32000),
    "drops its stream": (dropped_stream, "SSE stream ended without a response", "mcp_protocol_error", -32000),
    "talks nonsense": (raw(b"<html>"), "not JSON-RPC", "mcp_protocol_error", -32700),
    "answers a list": (raw(b"[]"), "not JSON-RPC", "mcp_protocol_error", -32700),
    "answers another kind": (raw(b"hello", "text/plain"), "Unexpected content type", "mcp_protocol_error", -32600),
    "answers with a wrong result": (wrong_result, "not what the protocol asks for", "mcp_protocol_error", -32700),
    "answers with an error": (rpc_error, "out of ink", "mcp_protocol_error", -32050),
    "is broken": (raw(b"<html>", "text/html", 503), "HTTP status 503", "http_error", 503),
    "forgot the session": (raw(b"", status=404), "HTTP status 404", "http_error", 404),
    "redirects": (raw(b"", status=307, location="http://127.0.0.1:1/x"), "redirect", "http_error", 307),
    "redirects to itself": (raw(b"", status=308, location="/else"), "redirect", "http_error", 308),
    "encodes": (raw(b"x" * 50, **{"content-encoding": "gzip"}), "in an encoding", "http_error", 200),
}


def check_failed(finished: Finished, says: str) -> None:
    assert says in finished.output
    assert finished.output.startswith("Error: ")
    assert finished.item["status"] == "failed"
    assert finished.item["output"] is None
    assert [each.type for each in finished.events] == ["response.mcp_call.failed"]
    ITEM.validate_python(finished.item)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_server_that_fails_in_a_call(name: str):
    reply, says, kind, code = FAULTS[name]
    async with (
        scripted(tools_call=reply) as seen,
        the_tool(seen.origin) as mcp,
        hosted(mcp, declared(seen.origin)) as srv,
    ):
        finished = await run(srv, "srv__t")
        check_failed(finished, says)
        assert (finished.item["error"]["type"], finished.item["error"]["code"]) == (kind, code)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_server_that_fails_to_list_is_502(name: str):
    reply, says, *_ = FAULTS[name]
    async with scripted(tools_list=reply) as seen, the_tool(seen.origin) as mcp:
        with pytest.raises(ToolError, match=rf"'srv' could not be asked for its tools: .*{says}") as caught:
            await mcp.declare(declared(f"{seen.origin}/?key=hidden"), request())
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_server_that_fails_at_hello_is_502(name: str):
    async with scripted(initialize=FAULTS[name][0]) as seen, the_tool(seen.origin) as mcp:
        with pytest.raises(ToolError, match="'srv' could not be asked"):
            await mcp.declare(declared(seen.origin), request())


async def test_a_fault_of_one_call_is_not_anothers():
    together = asyncio.Barrier(2)

    async def reply(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await together.wait()
        if message["params"]["arguments"]["drop"]:
            return await dropped(request, message)
        return result(message, text("fine"))

    async with (
        scripted(tools_call=reply) as seen,
        the_tool(seen.origin) as mcp,
        hosted(mcp, declared(seen.origin)) as srv,
    ):
        bad, good = await asyncio.gather(run(srv, "srv__t", drop=True), run(srv, "srv__t", drop=False))
        check_failed(bad, "broke off")
        assert good.output == "fine"
        assert seen.methods().count("initialize") == 1


async def test_a_server_that_is_gone():
    async with scripted() as seen:
        origin = seen.origin
    async with the_tool(origin) as mcp:
        with pytest.raises(ToolError, match="could not be reached"):
            await mcp.declare(declared(origin), request())


async def test_a_server_that_goes_between_list_and_call():
    async with scripted() as seen, the_tool(seen.origin) as mcp:
        async with hosted(mcp, declared(seen.origin)):
            pass
        declaration = declared(seen.origin)
        server = await mcp.declare(declaration, request())
    assert server is not None
    check_failed(await server.run(a_call("srv__t")), "could not be reached")
    await server.close()
    await mcp.close()


async def test_a_server_that_is_silent_takes_no_longer_than_allowed():
    entered = asyncio.Event()

    async def silent(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        scripted(tools_call=silent) as seen,
        the_tool(seen.origin, timeout_seconds=0.2) as mcp,
        hosted(mcp, declared(seen.origin)) as srv,
    ):
        begun = time.monotonic()
        finished = await run(srv, "srv__t")
        assert time.monotonic() - begun < 1
        check_failed(finished, "did not answer within 0.2 seconds")
        assert finished.item["error"]["code"] == -32001
    async with scripted(tools_list=silent) as seen, the_tool(seen.origin, list_timeout_seconds=0.2) as mcp:
        with pytest.raises(ToolError, match=r"did not answer within 0\.2 seconds"):
            await mcp.declare(declared(seen.origin), request())


async def test_a_dripping_answer_is_bounded_by_time():
    async def drip(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b": still there\n\n")
            await asyncio.sleep(0.01)

    async with (
        scripted(tools_call=drip) as seen,
        the_tool(seen.origin, timeout_seconds=0.3) as mcp,
        hosted(mcp, declared(seen.origin)) as srv,
    ):
        check_failed(await run(srv, "srv__t"), "did not answer within")


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/event-stream without lines"])
async def test_a_huge_answer_is_cut_off_with_bounded_memory(kind: str):
    written = 0

    async def huge(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(headers={"content-type": kind.partition(" ")[0]})
        await response.prepare(request)
        chunk = b"x" * 65536 if "without" in kind or "json" in kind else b"data: " + b"x" * 65530 + b"\n"
        for _ in range(1600):  # 100 MB
            await response.write(chunk)
            written += len(chunk)
        return response

    async with (
        scripted(tools_call=huge) as seen,
        the_tool(seen.origin, max_result_bytes=100_000) as mcp,
        hosted(mcp, declared(seen.origin)) as srv,
    ):
        tracemalloc.start()
        finished = await run(srv, "srv__t")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        check_failed(finished, "too large")
        assert peak < 12_000_000
    assert written < 50_000_000


async def test_tools_that_change_between_rounds_change_nothing_but_their_answers():
    gone = False

    async def lists(request: web.Request, message: dict[str, Any]) -> web.Response:
        return result(message, {"tools": [tool("new")] if gone else [tool("t")]})

    async def calls(request: web.Request, message: dict[str, Any]) -> web.Response:
        if gone:
            error = {"code": -32602, "message": "Unknown tool: t"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return result(message, text("done"))

    async with scripted(tools_list=lists, tools_call=calls) as seen, the_tool(seen.origin, cache_seconds=0) as mcp:
        async with hosted(mcp, declared(seen.origin)) as srv:
            assert (await run(srv, "srv__t")).output == "done"
            gone = True
            check_failed(await run(srv, "srv__t"), "Unknown tool")
            assert [each.name for each in srv.functions] == ["srv__t"]
            check_failed(await run(srv, "srv__new"), "no such tool")
        async with hosted(mcp, declared(seen.origin)) as srv:
            assert [each.name for each in srv.functions] == ["srv__new"]


async def test_a_server_that_forgot_the_session_is_greeted_anew():
    calls = 0

    async def forgets(request: web.Request, message: dict[str, Any]) -> web.Response:
        nonlocal calls
        calls += 1
        return web.Response(status=404) if calls == 1 else result(message, text("done"))

    async with (
        scripted(tools_call=forgets) as seen,
        the_tool(seen.origin) as mcp,
        hosted(mcp, declared(seen.origin)) as srv,
    ):
        check_failed(await run(srv, "srv__t"), "HTTP status 404")
        assert (await run(srv, "srv__t")).output == "done"
        assert seen.methods().count("initialize") == 2


async def test_a_server_that_knows_only_the_newest_protocol():
    async def initialize(request: web.Request, message: dict[str, Any]) -> web.Response:
        error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"], "requested": "2025-11-25"}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=400)

    async def discover(request: web.Request, message: dict[str, Any]) -> web.Response:
        found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        return result(message, {**COMPLETE, **CACHED, **found})

    async def lists(request: web.Request, message: dict[str, Any]) -> web.Response:
        return result(message, {**COMPLETE, **CACHED, "tools": [tool("t")]})

    async def calls(request: web.Request, message: dict[str, Any]) -> web.Response:
        return result(message, {**COMPLETE, **text("done")})

    methods = {"initialize": initialize, "server_discover": discover, "tools_list": lists, "tools_call": calls}
    async with scripted(**methods) as seen, the_tool(seen.origin) as mcp, hosted(mcp, declared(seen.origin)) as srv:
        assert (await run(srv, "srv__t")).output == "done"
        assert seen.methods() == ["initialize", "server/discover", "tools/list", "tools/call"]


async def test_arguments_that_are_none_are_not_sent():
    async with scripted() as seen, the_tool(seen.origin) as mcp, hosted(mcp, declared(seen.origin)) as srv:
        call = a_call("srv__t")
        for arguments in ("", "[]", '{"a":'):
            check_failed(await srv.run(type(call)("c", "mcp_1", "srv__t", arguments)), "not a JSON object")
        assert "tools/call" not in seen.methods()


# Clients that leave


def watched(seen: Seen) -> Reply:
    """Hangs, and notes when the client is gone."""

    async def hang(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        seen.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.left.set()
        raise AssertionError

    return hang


async def test_a_call_that_is_cancelled_is_over_at_once_for_the_server_too():
    noted = Seen()
    async with (
        scripted(tools_call=watched(noted), notifications_cancelled=watched(Seen())) as seen,
        the_tool(seen.origin) as mcp,
    ):
        server = await mcp.declare(declared(seen.origin), request())
        assert server is not None
        calls = [asyncio.ensure_future(server.run(a_call("srv__t", n=n))) for n in range(3)]
        await noted.entered.wait()
        begun = time.monotonic()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await server.close()
        await asyncio.wait_for(noted.left.wait(), 1)
        assert time.monotonic() - begun < 0.1
        assert all(call.cancelled() for call in calls)


async def test_closing_ends_a_call_that_still_runs():
    noted = Seen()
    async with scripted(tools_call=watched(noted)) as seen, the_tool(seen.origin) as mcp:
        server = await mcp.declare(declared(seen.origin), request())
        assert server is not None
        call = asyncio.ensure_future(server.run(a_call("srv__t")))
        await noted.entered.wait()
        begun = time.monotonic()
        await server.close()
        check_failed(await call, "was closed")
        await noted.left.wait()
        assert time.monotonic() - begun < 0.1


@pytest.mark.parametrize("when", ["initialize", "tools_list"])
async def test_a_declaration_that_is_cancelled_leaves_no_session(when: str):
    noted = Seen()
    async with scripted(**{when: watched(noted)}) as seen, the_tool(seen.origin) as mcp:
        declaring = asyncio.ensure_future(mcp.declare(declared(seen.origin), request()))
        await noted.entered.wait()
        begun = time.monotonic()
        declaring.cancel()
        await asyncio.wait({declaring})
        await noted.left.wait()
        assert time.monotonic() - begun < 0.1
        assert not [each for each in mcp.sessions._tasks if not each.done()]


async def test_a_server_that_will_not_hear_goodbye_holds_nobody_up():
    async def silent(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def hello(request: web.Request, message: dict[str, Any]) -> web.Response:
        info = {"name": "s", "version": "1"}
        answer = result(message, {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info})
        answer.headers["mcp-session-id"] = "one"
        return answer

    async with scripted(initialize=hello, other=silent) as seen, the_tool(seen.origin) as mcp:
        async with hosted(mcp, declared(seen.origin)) as srv:
            assert (await run(srv, "srv__t")).output == "done"
            begun = time.monotonic()
        assert time.monotonic() - begun < 0.1
        await mcp.close()
        assert time.monotonic() - begun < 2


# The older transport


async def sse(request: web.Request, *events: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for each in events:
        await response.write(each)
    return response


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        (b"event: endpoint\ndata: http://127.0.0.1:1/else\n\n", "could not be asked"),
        (b"event: endpoint\ndata: /post\n\n", "HTTP status 500"),
        (b"", "could not be asked"),
    ],
)
async def test_an_sse_server_that_does_wrong(endpoint: bytes, says: str):
    async def other(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = await sse(request, endpoint)
        if b"/post" in endpoint:
            await asyncio.Event().wait()
        return response

    bounded = {"list_timeout_seconds": 0.5}
    async with scripted(other=other, initialize=raw(b"", status=500)) as seen, the_tool(seen.origin, **bounded) as mcp:
        with pytest.raises(ToolError, match=says):
            await mcp.declare(declared(f"{seen.origin}/sse"), request())
        assert "/else" not in str(seen.requests)


async def test_an_sse_server_that_hangs_up_is_asked_anew():
    posts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def take(request: web.Request, message: dict[str, Any]) -> web.Response:
        await posts.put(message)
        return web.Response(status=202)

    async def stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await sse(request, b"event: endpoint\ndata: /post\n\n")
        while True:
            message = await posts.get()
            if message["method"] == "tools/call" and message["params"]["arguments"].get("drop"):
                return response
            info = {"name": "s", "version": "1"}
            answers = {
                "initialize": {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": info},
                "tools/list": {"tools": [tool("t")]},
                "tools/call": text("done"),
            }
            answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": answers.get(message["method"])}
            if answer["result"] is not None:
                await response.write(b"event: message\ndata: " + json.dumps(answer).encode() + b"\n\n")

    methods = {"initialize": take, "tools_list": take, "tools_call": take}
    async with (
        scripted(other=stream, **methods) as seen,
        the_tool(seen.origin) as mcp,
        hosted(mcp, declared(f"{seen.origin}/sse")) as srv,
    ):
        assert (await run(srv, "srv__t")).output == "done"
        check_failed(await run(srv, "srv__t", drop=True), "was closed")
        assert (await run(srv, "srv__t")).output == "done"
