"""The MCP tool as a turn sees it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from proxy.protocol.hosting import Finished, Hosted, HostedCall, Kit, Request
from proxy.protocol.records import Owner
from proxy.tools.mcp import Config, Mcp

ANN = Owner("ann")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def tool(*origins: str, clock: Clock | None = None, **options: Any) -> AsyncIterator[Mcp]:
    """The tool, with these origins allowed."""
    ids = count()
    kit = Kit(lambda prefix: f"{prefix}{next(ids):032x}", clock or Clock())
    mcp = Mcp(Config(allowed_private_origins=origins, **options), kit)
    await mcp.open()
    try:
        yield mcp
    finally:
        await mcp.close()


def request(owner: Owner = ANN, *listed: dict[str, Any]) -> Request:
    history = [json.dumps(each).encode() for each in listed]
    return Request(owner, frozenset(), {"mcp_list_tools": history} if history else {})


def declared(url: str | None, **more: Any) -> dict[str, Any]:
    found = {"type": "mcp", "server_label": "srv", "require_approval": "never", **more}
    return found if url is None else {**found, "server_url": url}


@contextlib.asynccontextmanager
async def hosted(mcp: Mcp, declaration: dict[str, Any], asked: Request | None = None) -> AsyncIterator[Hosted]:
    server = await mcp.declare(declaration, asked or request())
    assert server is not None
    try:
        yield server
    finally:
        await server.close()


def a_call(name: str, **arguments: Any) -> HostedCall:
    return HostedCall("call_1", "mcp_1", name, json.dumps(arguments))


async def run(server: Hosted, name: str, **arguments: Any) -> Finished:
    return await server.run(a_call(name, **arguments))


def listed(server: Hosted) -> dict[str, Any]:
    """The `mcp_list_tools` item that the client was shown."""
    (opening,) = server.opening
    return dict(opening.finished.item)
