"""MCP servers: asks each one that a turn names what it offers, and carries out what a person has approved.

The calls themselves are the agentic loop's to run; this filter only tells it what may be called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from msgspec.structs import replace

from proxy.chain import Next, Send
from proxy.errors import InvalidRequest, ToolError
from proxy.protocol import jsonbytes
from proxy.protocol.history import upstream_input
from proxy.protocol.hosting import Approved, Hosted, HostedCall, Kit, Request
from proxy.protocol.lowering import pair
from proxy.protocol.records import Approval, Item
from proxy.protocol.turn import Draft, Operation, Turn
from proxy.protocol.unlisted import Unlisted, stream
from proxy.services import Services
from proxy.store import ApprovalRefused
from proxy.tools.mcp import Config as McpConfig
from proxy.tools.mcp import Mcp

AFTER = frozenset({"owner", "validate", "response_store", "rehydrate"})
NEEDS = frozenset({"agentic_loop"})

_MODELS = frozenset(
    {"reasoning", "function_call", "custom_tool_call", "mcp_call", "web_search_call", "file_search_call"}
)


class Config(McpConfig):
    """Options of the filter: those of the MCP tool."""


class McpTools:
    """Sets `turn.hosted` and `turn.approved`."""

    def __init__(self, config: Config, services: Services) -> None:
        self._services = services
        self._mcp = Mcp(config, Kit(services.new_id, services.now))

    async def open(self) -> None:
        """Opens the tool."""
        await self._mcp.open()

    async def close(self) -> None:
        """Closes it."""
        await self._mcp.close()

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        if turn.operation is not Operation.CREATE or not _concerns(turn):
            await call_next(turn, send)
            return
        try:
            hosted = await self._declared(turn)
        except ToolError as error:
            if not turn.stream:
                raise
            await self._say_unlisted(turn, send, error)
            return
        handed_on = False
        try:
            turn = turn.replace(hosted=tuple(hosted.items()))
            turn = await self._approved(turn, list(hosted.values()))
            handed_on = True
            await call_next(turn, send)
        finally:
            if not handed_on:
                await _close(hosted.values())

    async def _say_unlisted(self, turn: Turn, send: Send, error: ToolError) -> None:
        """A client that asked for a stream is told in one, as of any other tool that fails."""
        new_id, now = self._services.new_id, self._services.now
        unlisted = Unlisted(new_id("resp_"), new_id("mcpl_"), int(now()), error.server_label, error.message)
        for message in stream(unlisted, turn.body):
            await send(message)

    async def _declared(self, turn: Turn) -> dict[int, Hosted]:
        raw = turn.body.fields.get("tools", b"")
        if b'"mcp"' not in raw or not raw.startswith(b"["):
            return {}
        declared = {index: each for index, each in enumerate(jsonbytes.elements(raw)) if _is_mcp(each)}
        values = {index: jsonbytes.value(each) for index, each in declared.items()}
        self._mcp.check(list(values.values()))
        asking = [asyncio.ensure_future(self._mcp.declare(value, _request(turn))) for value in values.values()]
        # All servers at once: the slowest decides, not their sum.
        try:
            answers = await asyncio.gather(*asking, return_exceptions=True)
        except asyncio.CancelledError:  # all have ended, some perhaps with a server
            there = [each.result() for each in asking if not (each.cancelled() or each.exception())]
            await _close(each for each in there if each is not None)
            raise
        found = {index: each for index, each in zip(values, answers, strict=True) if _is_hosted(each)}
        failed = next((pair for pair in zip(values.values(), answers, strict=True) if _is_failure(pair[1])), None)
        if failed is not None:
            await _close(found.values())
            raise _labelled(*failed)
        return found

    async def _approved(self, turn: Turn, hosted: Sequence[Hosted]) -> Turn:
        """Uses up the approvals that the input brings; a refusal becomes what the model reads."""
        draft = turn.draft
        answers = _open_answers(draft) if draft is not None else []
        if draft is None or not answers:
            return turn
        requests = _requests(draft)
        approved = [_answered(answer, requests, hosted) for answer, _ in answers]
        past = {answer.id for answer, past in answers if past}
        denied = {each.response_item: each for each in approved if each.hosted is None}
        approved = [each for each in approved if each.hosted is not None or each.response_item not in past]
        await self._use(turn, approved)
        draft.input = tuple(_with_denial(item, denied.get(item.id)) for item in draft.input or ())
        if denied:
            history = draft.history.items if draft.history else ()
            turn = turn.replace(body=turn.body.rebuilt({"input": upstream_input(history, draft.input)}))
        return turn.replace(approved=tuple(approved))

    async def _use(self, turn: Turn, approved: Sequence[Approved]) -> None:
        ids = [each.request_id for each in approved]
        if len(set(ids)) != len(ids):
            raise InvalidRequest("An approval request is answered twice.", param="input")
        used = [Approval(each.request_id, self._target(each)) for each in approved]
        try:
            if used:
                await self._services.store.use_approvals(turn.owner, used)
        except ApprovalRefused as error:
            raise InvalidRequest(str(error), param="input") from error

    def _target(self, each: Approved) -> str:
        if each.hosted is None:
            return ""  # a refusal holds whatever the target has become
        return each.hosted.target()


def _concerns(turn: Turn) -> bool:
    given = (turn.draft.input or ()) if turn.draft is not None else ()
    answers = any(item.type == "mcp_approval_response" for item in given)
    return answers or b'"mcp"' in turn.body.fields.get("tools", b"")


def _is_mcp(raw: bytes) -> bool:
    return raw.startswith(b"{") and jsonbytes.text(jsonbytes.fields(raw).get("type")) == "mcp"


def _is_failure(each: object) -> bool:
    return isinstance(each, BaseException)


def _labelled(value: Mapping[str, Any], failure: object) -> BaseException:
    """The failure, told whose it is."""
    if isinstance(failure, ToolError):
        failure.server_label = str(value.get("server_label"))
    return failure if isinstance(failure, BaseException) else ToolError()


def _is_hosted(each: Hosted | BaseException | None) -> TypeGuard[Hosted]:
    return each is not None and not isinstance(each, BaseException)


async def _close(hosted: Iterable[Hosted]) -> None:
    for each in hosted:
        await each.close()


def _request(turn: Turn) -> Request:
    listed = [item.body for item in _history(turn.draft) if item.type == "mcp_list_tools"]
    return Request(turn.owner, frozenset(), {"mcp_list_tools": listed})


def _history(draft: Draft | None) -> tuple[Item, ...]:
    return draft.history.items if draft is not None and draft.history is not None else ()


def _open_answers(draft: Draft) -> list[tuple[Item, bool]]:
    """The answers of the input that are not carried out yet, and whether the model has spoken since.

    A client without `previous_response_id` replays old answers with the rest: an approval whose call is there has been
    used, and a refusal that the model has read is only told again.
    """
    given = draft.input or ()
    calls = [item for item in (*_history(draft), *given) if item.type == "mcp_call"]
    done = {jsonbytes.text(jsonbytes.fields(item.body).get("approval_request_id")) for item in calls}
    spoken = max((index for index, item in enumerate(given) if _is_models(item)), default=-1)
    return [
        (item, index < spoken)
        for index, item in enumerate(given)
        if item.type == "mcp_approval_response" and _request_id(item) not in done - {None}
    ]


def _request_id(answer: Item) -> str | None:
    return jsonbytes.text(jsonbytes.fields(answer.body).get("approval_request_id"))


def _is_models(item: Item) -> bool:
    if item.type == "message":
        return jsonbytes.text(jsonbytes.fields(item.body).get("role")) == "assistant"
    return item.type in _MODELS


def _requests(draft: Draft) -> dict[str, jsonbytes.Fields]:
    """The approval requests that the history or the input holds, by id; what is stored wins."""
    known = (*(draft.input or ()), *_history(draft))
    return {item.id: jsonbytes.fields(item.body) for item in known if item.type == "mcp_approval_request"}


def _answered(answer: Item, requests: dict[str, jsonbytes.Fields], hosted: Sequence[Hosted]) -> Approved:
    members = jsonbytes.fields(answer.body)
    request_id = jsonbytes.text(members.get("approval_request_id"))
    approve = members.get("approve")
    if request_id is None or approve not in (b"true", b"false"):
        raise InvalidRequest("An mcp_approval_response needs 'approval_request_id' and 'approve'.", param="input")
    asked = requests.get(request_id)
    if asked is None:
        raise InvalidRequest(f"approval '{request_id}' was not found", param="input")
    label, name = jsonbytes.text(asked.get("server_label")) or "", jsonbytes.text(asked.get("name")) or ""
    function, tool = _function(label, name, hosted)
    arguments = jsonbytes.text(asked.get("arguments")) or "{}"
    if approve == b"false":
        return Approved(request_id, function, arguments, answer.id, None, jsonbytes.text(members.get("reason")))
    if tool is None:
        raise InvalidRequest(f"The approved tool '{name}' of '{label}' is not declared in this request.", param="tools")
    return Approved(request_id, function, arguments, answer.id, tool)


def _function(label: str, name: str, hosted: Sequence[Hosted]) -> tuple[str, Hosted | None]:
    """The function that stands for a server's tool, and its tool when it is declared in this turn."""
    for each in hosted:
        for function in each.functions:
            shown = each.start(HostedCall("", "", function.name, "{}")).item
            if (shown.get("server_label"), shown.get("name")) == (label, name):
                return function.name, each
    return f"{label}__{name}", None


def _with_denial(item: Item, denied: Approved | None) -> Item:
    if denied is None:
        return item
    said = f"The user did not approve this call{f': {denied.reason}' if denied.reason else '.'}"
    return replace(item, upstream=pair(denied.request_id, denied.name, denied.arguments, said))
