"""What the backend is sent instead of what it does not know: hosted items, hosted tools, and choices between them.

Everything here gives the same bytes for the same input, so that a prompt grows only at its end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from proxy.errors import InvalidRequest
from proxy.protocol import jsonbytes
from proxy.protocol.hosting import Function
from proxy.protocol.records import Item

# Items that a backend without tools of its own refuses (vLLM: 400).
LOWERED = frozenset(
    {
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "web_search_call",
        "file_search_call",
    }
)
# `include` values that only hosted tools understand.
_OWN_INCLUDES = frozenset({"web_search_call.action.sources", "web_search_call.results"})
_LONGEST_NAME = 64
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_NOT_KEPT = "The results of this earlier call were not kept."


def upstream_bytes(item: Item) -> bytes:
    """What stands for the item in the backend's input: items joined by commas, or nothing."""
    if item.upstream is not None:
        return item.upstream
    if item.type not in LOWERED:
        return item.body
    try:
        return _stand_in(item, jsonbytes.fields(item.body))
    except jsonbytes.NotJSON:
        return b""


def _stand_in(item: Item, members: jsonbytes.Fields) -> bytes:
    """For a hosted item of which only the public form is known."""
    if item.type == "mcp_call":
        name = function_name(*(jsonbytes.text(members.get(key)) or "" for key in ("server_label", "name")))
        output = jsonbytes.text(members.get("output"))  # "" where the tool had nothing to say
        said = f"Error: {_error(members.get('error'))}" if output is None else output
        return pair(item.id, name, jsonbytes.text(members.get("arguments")) or "{}", said)
    if item.type == "web_search_call":
        action = members.get("action", b"{}")
        query = jsonbytes.fields(action).get("query") if action.startswith(b"{") else None
        return pair(item.id, "web_search", _arguments("query", query), _NOT_KEPT)
    if item.type == "file_search_call":
        results = members.get("results")
        said = results.decode() if jsonbytes.present(results) and results is not None else _NOT_KEPT
        return pair(item.id, "file_search", _arguments("queries", members.get("queries")), said)
    return b""


def function_name(label: str, name: str) -> str:
    """What the function is called that stands for a server's tool."""
    return _ODD.sub("_", f"{label}__{name}")[:_LONGEST_NAME]


def _error(raw: bytes | None) -> str:
    """The message of an `mcp_call`'s error, a string or an object."""
    if raw is None or not raw.startswith(b"{"):
        return jsonbytes.text(raw) or "it failed"
    members = jsonbytes.fields(raw)
    return jsonbytes.text(members.get("message")) or members.get("content", b"it failed").decode("utf-8", "replace")


def _arguments(name: str, raw: bytes | None) -> str:
    return jsonbytes.join_object({name: raw} if raw is not None else {}).decode()


def pair(call_id: str, name: str, arguments: str, output: str) -> bytes:
    """A call and its output, as two items."""
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    return jsonbytes.encode(call) + b"," + output_item(call_id, output)


def output_item(call_id: str, output: str) -> bytes:
    """The output of a call, as an item."""
    return jsonbytes.encode({"type": "function_call_output", "call_id": call_id, "output": output})


class Tools:
    """A turn's `tools` and what each became: kept, or the functions of a hosted tool."""

    def __init__(self, declared: Sequence[bytes], hosted: Mapping[int, Sequence[Function]]) -> None:
        self._declared = declared
        self._hosted = hosted
        self._labels = {_label(declared[index]): index for index in hosted}

    def lowered(self, only: Collection[str] | None = None) -> bytes:
        """The backend's `tools`; with `only`, less the functions that are not allowed."""
        parts: list[bytes] = []
        for index, raw in enumerate(self._declared):
            functions = self._hosted.get(index)
            if functions is not None:
                parts += [each.definition for each in functions if only is None or each.name in only]
            elif only is None or _name(raw) in only:
                parts.append(_without_grammar(raw))
        return jsonbytes.join_array(parts)

    def public(self) -> bytes:
        """`tools` as the client is shown it again: as declared, less an MCP server's credentials."""
        return jsonbytes.join_array(_without_secrets(raw) for raw in self._declared)

    def choice(self, raw: bytes | None) -> tuple[bytes | None, frozenset[str] | None]:
        """The backend's `tool_choice`, and the only functions that may be called (None: all)."""
        if raw is None or not raw.startswith(b"{"):
            return raw, None
        members = jsonbytes.fields(raw)
        type_ = jsonbytes.text(members.get("type"))
        if type_ == "allowed_tools":
            return self._allowed(members)
        if type_ in ("function", "custom") or type_ is None:
            return raw, None
        names = self._named(members)
        if names is None:
            return raw, None  # a tool of the backend's own
        if len(names) == 1:
            return jsonbytes.encode({"type": "function", "name": next(iter(names))}), None
        if not names:
            raise InvalidRequest("'tool_choice' names a tool that offers no function", param="tool_choice")
        return b'"required"', names

    def _allowed(self, members: jsonbytes.Fields) -> tuple[bytes, frozenset[str]]:
        mode = jsonbytes.text(members.get("mode")) or "auto"
        names: set[str] = set()
        for raw in jsonbytes.elements(members.get("tools", b"[]")):
            named = self._named(jsonbytes.fields(raw))
            names |= {_name(raw)} if named is None else named
        if mode == "required" and not names:
            raise InvalidRequest("'tool_choice' requires a tool, but allows none", param="tool_choice")
        return jsonbytes.encode(mode if names else "none"), frozenset(names)

    def _named(self, members: jsonbytes.Fields) -> frozenset[str] | None:
        """The functions that a reference to a hosted tool means; None when no hosted tool is meant."""
        type_ = jsonbytes.text(members.get("type")) or ""
        label = jsonbytes.text(members.get("server_label")) or type_
        index = self._labels.get(label)
        if index is None or type_ in ("function", "custom"):
            return None
        wanted = jsonbytes.text(members.get("name"))
        functions = self._hosted[index]
        return frozenset(f.name for f in functions if wanted is None or f.name == function_name(label, wanted))


def without_own_includes(raw: bytes | None) -> bytes | None:
    """`include` less the values that only the gateway's tools understand; the same bytes where there are none."""
    if raw is None or b"web_search_call" not in raw or not raw.startswith(b"["):
        return raw
    parts = jsonbytes.elements(raw)
    return jsonbytes.join_array(part for part in parts if jsonbytes.text(part) not in _OWN_INCLUDES)


def _label(raw: bytes) -> str:
    members = jsonbytes.fields(raw)
    return jsonbytes.text(members.get("server_label")) or jsonbytes.text(members.get("type")) or ""


def _name(raw: bytes) -> str:
    return jsonbytes.text(jsonbytes.fields(raw).get("name")) or ""


def _without_grammar(raw: bytes) -> bytes:
    # vLLM takes custom tools of free text only; the model still reads the description.
    if b'"grammar"' not in raw or jsonbytes.text(jsonbytes.fields(raw).get("type")) != "custom":
        return raw
    return jsonbytes.with_members(raw, {"format": None})


def _without_secrets(raw: bytes) -> bytes:
    members = jsonbytes.fields(raw)
    if jsonbytes.text(members.get("type")) != "mcp" or not {"headers", "authorization"} & set(members):
        return raw
    return jsonbytes.with_members(raw, {"headers": None, "authorization": None})
