"""MCP servers on loopback: the library's own, and ones that do wrong by script."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import uvicorn
from aiohttp import web
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.types import Image

PIXEL = bytes.fromhex("89504e470d0a1a0a")


@dataclass
class Seen:
    """What a server was asked, and by whom."""

    origin: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def methods(self) -> list[str]:
        return [method for method, _ in self.requests]

    def headers(self, name: str) -> set[str | None]:
        return {headers.get(name) for _, headers in self.requests}


def recorded(app: Any, seen: Seen, token: str | None) -> Any:
    """The application, behind a door that writes down who came, and may ask for a token."""

    async def door(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {k.decode(): v.decode("latin-1") for k, v in scope["headers"]}
            seen.requests.append((scope["method"], headers))
            if token is not None and headers.get("authorization") != f"Bearer {token}":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await app(scope, receive, send)

    return door


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def serving(app: Any, *, token: str | None = None) -> AsyncIterator[Seen]:
    """Serves an ASGI application on a free port."""
    seen = Seen()
    config = uvicorn.Config(
        recorded(app, seen, token), port=0, lifespan="on", ws="none", log_level="critical", timeout_graceful_shutdown=1
    )
    server = _Quiet(config)
    task = asyncio.get_running_loop().create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
        assert not task.done()
    seen.origin = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.should_exit = True
        await task


def real() -> MCPServer:
    """A server with tools of every kind."""
    server = MCPServer("tools")

    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool()
    def fail(why: str) -> str:
        raise ToolError(why)

    @server.tool()
    def lines() -> list[str]:
        return ["one", "two"]

    @server.tool(structured_output=False)
    def picture() -> list[Any]:
        return ["a pixel", Image(data=PIXEL, format="png")]

    @server.tool()
    def big(size: int) -> str:
        return "x" * size

    return server


Reply = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def result(message: dict[str, Any], value: dict[str, Any]) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": value})


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}, **more}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


@contextlib.asynccontextmanager
async def scripted(**replies: Reply) -> AsyncIterator[Seen]:
    """A server that answers as it should, but for the methods given (`tools_call`); others are 404 and so on."""
    seen = Seen()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return await replies["other"](request, {}) if "other" in replies else web.Response(status=405)
        message = json.loads(await request.text())
        seen.requests.append((message["method"], {k.lower(): v for k, v in request.headers.items()}))
        reply = replies.get(message["method"].replace("/", "_"))
        if reply is not None:
            return await reply(request, message)
        if message["method"] == "initialize":
            info = {"name": "scripted", "version": "1"}
            return result(message, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
        if message["method"] == "tools/list":
            return result(message, {"tools": [tool("t")]})
        if message["method"] == "tools/call":
            return result(message, text("done"))
        return web.Response(status=202)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    seen.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield seen
    finally:
        await runner.cleanup()
