"""A stream for a turn that never reached the backend, because an MCP server could not be asked for its tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy.protocol import jsonbytes
from proxy.protocol.composer import Composer
from proxy.protocol.events import Event, Head, Message
from proxy.protocol.lowering import Tools
from proxy.protocol.turn import Body

_HEADERS = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)


@dataclass(frozen=True, slots=True)
class Unlisted:
    """What went wrong with which server, and the ids of what is said about it."""

    response_id: str
    item_id: str
    created_at: int  # seconds since the epoch
    server_label: str
    message: str


def stream(unlisted: Unlisted, body: Body) -> list[Message]:
    """The whole answer: a response that begins, lists no tools, and fails."""
    composer = Composer((), {})
    started = _response(unlisted, body)
    item = {"id": unlisted.item_id, "type": "mcp_list_tools", "server_label": unlisted.server_label, "tools": []}
    done = {**item, "error": unlisted.message}
    place = {"output_index": 0}
    error = {"code": "server_error", "message": unlisted.message}
    failed = {**started, "status": "failed", "error": error, "output": [done]}
    events: list[Event] = [
        composer.local("response.created", {"response": started}),
        composer.local("response.in_progress", {"response": started}),
        composer.local("response.output_item.added", {**place, "item": item}),
        composer.local("response.mcp_list_tools.in_progress", {**place, "item_id": unlisted.item_id}),
        composer.local("response.mcp_list_tools.failed", {**place, "item_id": unlisted.item_id}),
        composer.local("response.output_item.done", {**place, "item": done}),
        composer.local("response.failed", {"response": failed}),
    ]
    return [Head(200, b"OK", _HEADERS, events=True, composed=True), *events]


def _response(unlisted: Unlisted, body: Body) -> dict[str, Any]:
    declared = jsonbytes.elements(body.fields.get("tools", b"[]"))
    return {
        "id": unlisted.response_id,
        "object": "response",
        "created_at": unlisted.created_at,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": jsonbytes.text(body.fields.get("model")) or "",
        "output": [],
        "parallel_tool_calls": body.flag("parallel_tool_calls", True),
        "previous_response_id": None,
        "tool_choice": jsonbytes.value(body.get("tool_choice") or b'"auto"'),
        "tools": jsonbytes.value(Tools(declared, {}).public()),
        "usage": None,
    }
