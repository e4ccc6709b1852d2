"""Runs the tools that belong to the gateway, and asks the model again with what they found.

A turn that declares no such tool passes untouched. Otherwise the model is shown functions in the tools' place, and the
client sees one response whatever the number of rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from proxy.chain import Next, Send
from proxy.config import Model
from proxy.errors import ConfigError, InvalidRequest
from proxy.loader import tool
from proxy.protocol import jsonbytes
from proxy.protocol.hosting import Hosted, Kit, Request, Tool
from proxy.protocol.lowering import Tools
from proxy.protocol.turn import Operation, Turn
from proxy.rounds import Bounds, Offer, Rounds
from proxy.services import Services

AFTER = frozenset({"owner", "validate", "response_store", "rehydrate", "mcp_tools"})

log = logging.getLogger("rejoinder.agentic_loop")

_CLIENT_TYPES = frozenset({"function", "custom", "namespace"})


class Config(Model):
    """Options of the filter."""

    tools: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Tools that the gateway runs, by name (web_search, file_search, function), and their options.",
    )
    unconfigured_tools: str = Field(
        "forward",
        pattern="^(forward|reject)$",
        description="What becomes of a hosted tool that no configured tool serves: forwarded, or rejected by name.",
    )
    max_rounds: int = Field(10, ge=1, le=100, description="Most rounds of one turn.")
    on_round_limit: str = Field(
        "error",
        pattern="^(error|incomplete)$",
        description="What a turn ends with that wants more rounds: 508, or an incomplete response.",
    )
    max_parallel_calls: int = Field(8, ge=1, le=64, description="Most hosted calls of one turn that run at once.")
    max_calls_per_round: int = Field(32, ge=1, le=1024, description="Most hosted calls of one round.")
    tool_timeout_seconds: float = Field(60, gt=0, le=3600, description="Most time for one call of any tool.")
    max_retained_bytes: int = Field(
        64 * 1024 * 1024, ge=4096, description="Most bytes that the rounds of one turn may add to its input."
    )


class AgenticLoop:
    """Finds out which declared tools are the gateway's, and runs the rounds of the turns that have some."""

    def __init__(self, config: Config, services: Services) -> None:
        self._config = config
        self._services = services
        kit = Kit(services.new_id, services.now)
        self._tools = [tool(name, options, "agentic_loop.tools", kit) for name, options in config.tools.items()]
        self._by_type: dict[str, Tool] = {}
        for each in self._tools:
            for type_ in each.types:
                if type_ in self._by_type:
                    raise ConfigError(f"agentic_loop.tools: two tools serve the type '{type_}'")
                self._by_type[type_] = each
        self._warned: set[str] = set()
        self._bounds = Bounds(
            config.max_rounds,
            config.max_parallel_calls,
            config.max_calls_per_round,
            config.tool_timeout_seconds,
            config.max_retained_bytes,
            config.on_round_limit == "incomplete",
        )

    async def open(self) -> None:
        """Opens every tool."""
        for each in self._tools:
            await each.open()

    async def close(self) -> None:
        """Closes every tool."""
        for each in self._tools:
            await each.close()

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        declared = _declared(turn)
        if not declared and not turn.approved:
            await call_next(turn, send)
            return
        hosted = dict(turn.hosted)
        try:
            hosted.update(await self._hosted(turn, declared, hosted))
            offer = _offer(turn, declared, hosted)
            if offer is None:
                await call_next(turn, send)
            else:
                await Rounds(self._bounds, offer, turn, send, self._services.new_id).run(call_next)
        finally:
            for each in hosted.values():
                await each.close()

    async def _hosted(self, turn: Turn, declared: list[bytes], known: Mapping[int, Hosted]) -> dict[int, Hosted]:
        found: dict[int, Hosted] = {}
        for index, raw in enumerate(declared):
            if index in known:
                continue
            type_ = jsonbytes.text(_members(raw, index).get("type")) or ""
            mine = self._by_type.get(type_)
            hosted = await mine.declare(jsonbytes.value(raw), request(turn)) if mine is not None else None
            if hosted is not None:
                found[index] = hosted
            elif type_ not in _CLIENT_TYPES:
                self._unserved(type_, index)
        return found

    def _unserved(self, type_: str, index: int) -> None:
        if self._config.unconfigured_tools == "reject":
            raise InvalidRequest(f"The tool '{type_}' is not available here.", param=f"tools[{index}]")
        if type_ not in self._warned and len(self._warned) < 100:
            self._warned.add(type_)
            log.warning("tools of type %r are forwarded to the backend: no configured tool serves them", type_)


def _declared(turn: Turn) -> list[bytes]:
    raw = turn.body.fields.get("tools", b"") if turn.operation is Operation.CREATE else b""
    if not raw.startswith(b"["):
        return []  # none, or something that the backend will refuse
    return jsonbytes.elements(raw)


def _members(raw: bytes, index: int) -> jsonbytes.Fields:
    try:
        return jsonbytes.fields(raw)
    except jsonbytes.NotJSON:
        raise InvalidRequest(f"'tools[{index}]' must be an object", param=f"tools[{index}]") from None


def request(turn: Turn) -> Request:
    """What a tool may know of the turn."""
    raw = turn.body.fields.get("include", b"")
    include = [jsonbytes.text(part) for part in jsonbytes.elements(raw)] if raw.startswith(b"[") else []
    history: dict[str, list[bytes]] = {}
    for item in turn.draft.history.items if turn.draft and turn.draft.history else ():
        history.setdefault(item.type, []).append(item.body)
    return Request(turn.owner, frozenset(each for each in include if each), history)


def _client_function(raw: bytes) -> str:
    members = jsonbytes.fields(raw)
    named = jsonbytes.text(members.get("type")) == "function" and jsonbytes.text(members.get("name"))
    return named or ""


def _offered_twice(name: str, index: int) -> InvalidRequest:
    return InvalidRequest(f"Two tools offer the function '{name}'.", param=f"tools[{index}]")


def _offer(turn: Turn, declared: list[bytes], hosted: Mapping[int, Hosted]) -> Offer | None:
    """What the model may call; None when the gateway has no part in it."""
    owners: dict[str, Hosted] = {}
    for index in sorted(hosted):
        for function in hosted[index].functions:
            if function.name in owners:
                raise _offered_twice(function.name, index)
            owners[function.name] = hosted[index]
    for index, raw in enumerate(declared if owners else ()):
        name = _client_function(raw)
        if index not in hosted and name in owners:
            raise _offered_twice(name, index)
    grammars = any(b'"grammar"' in raw for raw in declared)
    if not hosted and not turn.approved and not grammars:
        return None
    tools = Tools(declared, {index: each.functions for index, each in hosted.items()})
    budget = turn.body.fields.get("max_tool_calls", b"")
    return Offer(
        tools,
        [hosted[index] for index in sorted(hosted)],
        owners,
        int(budget) if budget.isdigit() else None,
        turn.body.flag("parallel_tool_calls", True),
    )
