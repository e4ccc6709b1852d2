"""A hosted tool to play turns with: its answers, delays and approvals are what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.errors import ToolError
from proxy.protocol import jsonbytes
from proxy.protocol.hosting import (
    Finished,
    Function,
    Hosted,
    HostedCall,
    LocalEvent,
    Opening,
    Request,
    Started,
)

Run = Callable[[HostedCall], Awaitable[str]]


def function(name: str) -> Function:
    """A function without arguments."""
    tool = {"type": "function", "name": name, "description": "d", "parameters": {"type": "object", "properties": {}}}
    return Function(name, jsonbytes.encode(tool))


async def echo(call: HostedCall) -> str:
    """What a tool answers that has nothing better to say."""
    return f"{call.name} {call.arguments}"


@dataclass
class StandIn:
    """One server with these tools, as a turn sees it."""

    label: str = "srv"
    tools: Sequence[str] = ("look",)
    run_: Run = echo
    gated: Sequence[str] = ()  # tools that a person must approve
    fingerprint: str = "srv at home"  # of where the calls go
    lists: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)  # texts that earn an annotation, and its url
    prefix: str = "mcp_"
    calls: list[HostedCall] = field(default_factory=list)
    running: int = 0
    most: int = 0  # how many ran at once
    closed: int = 0

    @property
    def functions(self) -> Sequence[Function]:
        return [function(f"{self.label}__{tool}") for tool in self.tools]

    @property
    def opening(self) -> Sequence[Opening]:
        item = {"id": f"mcpl_{self.label}", "type": "mcp_list_tools", "server_label": self.label, "tools": []}
        begun = Started(item, (LocalEvent("response.mcp_list_tools.in_progress", {}),))
        done = Finished(item, (LocalEvent("response.mcp_list_tools.completed", {}),), "")
        return [Opening(begun, done)] if self.lists else []

    def start(self, call: HostedCall) -> Started:
        item = {
            "id": call.item_id,
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": None,
            "arguments": call.arguments,
            "error": None,
            "name": call.name.removeprefix(f"{self.label}__"),
            "output": None,
            "server_label": self.label,
        }
        return Started(item, (LocalEvent("response.mcp_call.in_progress", {}),))

    async def run(self, call: HostedCall) -> Finished:
        self.calls.append(call)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            said = await self.run_(call)
        finally:
            self.running -= 1
        item = {**self.start(call).item, "status": "completed", "output": said}
        return Finished(item, (LocalEvent("response.mcp_call.completed", {}),), said)

    def approval(self, call: HostedCall) -> str | None:
        return self.fingerprint if call.name.removeprefix(f"{self.label}__") in self.gated else None

    def target(self) -> str:
        return self.fingerprint

    def annotate(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        found = [
            {"type": "url_citation", "start_index": text.index(mark), "end_index": text.index(mark) + len(mark)}
            | {"url": url, "title": mark}
            for mark, url in self.marks.items()
            if mark in text
        ]
        return text, found

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


@dataclass
class StandInTool:
    """One kind of tool, whose declarations are servers by label."""

    servers: Mapping[str, StandIn]
    types: frozenset[str] = frozenset({"mcp"})
    opened: int = 0
    requests: list[Request] = field(default_factory=list)

    async def declare(self, declaration: Mapping[str, Any], request: Request) -> Hosted | None:
        self.requests.append(request)
        if declaration.get("server_label") == "down":
            raise ToolError("The MCP server 'down' could not be asked.", param="tools")
        return self.servers.get(str(declaration.get("server_label")))

    def check(self, all_of_a_turn: Sequence[Mapping[str, Any]]) -> None:
        """Nothing is wrong with any of them."""

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.opened -= 1


def declared(label: str = "srv", **more: Any) -> dict[str, Any]:
    """A server's declaration."""
    return {"type": "mcp", "server_label": label, "server_url": f"https://{label}.example/mcp", **more}
