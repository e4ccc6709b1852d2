"""A tool's result as the item that the client is shown, and as the text that the model reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import msgspec

from proxy.tools import Finished, HostedCall, LocalEvent
from proxy.tools._mcp_http import Fault


@dataclass(frozen=True, slots=True)
class Results:
    """Makes items of one server's results."""

    label: str
    most_bytes: int
    redact: Callable[[str], str]

    def item(self, call: HostedCall, tool: str, **members: Any) -> dict[str, Any]:
        """The public item; OpenAI's keys in OpenAI's order."""
        return {
            "id": call.item_id,
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": None,
            "arguments": call.arguments,
            "error": None,
            "name": tool,
            "output": None,
            "server_label": self.label,
        } | members

    def of(self, call: HostedCall, tool: str, result: types.CallToolResult) -> Finished:
        """What the server answered, be it a failure of the tool."""
        output = self.redact(_text(result))
        size = len(output.encode("utf-8", "surrogatepass"))
        if size > self.most_bytes:
            message = f"the result of {size} bytes is larger than {self.most_bytes} bytes, and was left out"
            return self.failed(call, tool, Fault(message))
        if result.is_error:
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": output}]}
            return self._failure(call, tool, error, output)
        item = self.item(call, tool, status="completed", output=output)
        return Finished(item, (LocalEvent("response.mcp_call.completed", {}),), output)

    def failed(self, call: HostedCall, tool: str, fault: Fault) -> Finished:
        """The server did not answer as it should."""
        message = self.redact(fault.message)
        return self._failure(call, tool, {**fault.error, "message": message}, message)

    def _failure(self, call: HostedCall, tool: str, error: Mapping[str, Any], text: str) -> Finished:
        item = self.item(call, tool, status="failed", error=error)
        return Finished(item, (LocalEvent("response.mcp_call.failed", {}),), f"Error: {text}")


def _text(result: types.CallToolResult) -> str:
    """Text as it is; anything else as the protocol spells it."""
    blocks = result.content
    if blocks and all(isinstance(each, types.TextContent) for each in blocks):
        return "\n".join(each.text for each in blocks if isinstance(each, types.TextContent))
    if blocks:
        return _json([each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in blocks])
    return "" if result.structured_content is None else _json(result.structured_content)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
