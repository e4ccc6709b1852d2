"""What a continued turn sends upstream: the history's items as they were stored, then the turn's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from proxy.errors import InvalidRequest
from proxy.protocol import items, jsonbytes
from proxy.protocol.lowering import upstream_bytes
from proxy.protocol.records import Item

_SHORT = 1024  # bytes; a longer message says something

# A text that begins with something else than white space.
_says = re.compile(rb'"text"\s*:\s*"(?:[ \t]|\\[nrt])*[^\s"\\]').search


def upstream_input(history: Sequence[Item], own: Sequence[Item]) -> bytes:
    """The `input` array; an item that the backend cannot use is left out, always the same way."""
    return jsonbytes.join_array(sendable((*history, *own)))


def sendable(everything: Iterable[Item]) -> list[bytes]:
    """What the backend is sent for these items, one or several of its own items each, joined by commas."""
    found = []
    for item in everything:
        raw = item.body if item.type == "message" and item.upstream is None else upstream_bytes(item)
        if raw and not (item.type == "message" and len(item.body) <= _SHORT and _blank(item.body)):
            found.append(raw)
    return found


def extended(raw: bytes, added: Sequence[bytes]) -> bytes:
    """An `input` with more at its end; what was there keeps its bytes."""
    base = raw.strip()
    inner = items.user_message(base) if base.startswith(b'"') else base[1:-1].strip()
    return jsonbytes.join_array([part for part in (inner, *added) if part])


def _blank(body: bytes) -> bool:
    # vLLM streams a message of white space between reasoning and a call, and fails on one without parts.
    # Neither says anything; both would spoil the prompt (or the request) when played back.
    if b'"assistant"' not in body or _says(body):
        return False
    try:
        members = jsonbytes.fields(body)
        if jsonbytes.text(members.get("role")) != "assistant":
            return False
        content = jsonbytes.value(members.get("content", b"null"))
    except jsonbytes.NotJSON:
        return False
    return isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "output_text" and not str(part.get("text") or "").strip()
        for part in content
    )


def check_answers(history: Sequence[Item], own: Sequence[Item]) -> None:
    """Raises `InvalidRequest` naming outputs without their call, or calls of the history without their output."""
    orphans = items.orphan_outputs((*history, *own))
    if orphans:
        raise InvalidRequest(
            f"No tool call found for {_named('function call output', orphans)}: replay the full history, or name the "
            "response that made the call as previous_response_id.",
            param="input",
        )
    answered = {item.call_id for item in own if item.type in items.OUTPUTS}
    unanswered = [call_id for call_id in items.open_calls(history) if call_id not in answered]
    if unanswered:
        raise InvalidRequest(f"No tool output found for {_named('function call', unanswered)}.", param="input")


def only_outputs(own: Sequence[Item]) -> bool:
    """Whether an input holds tool outputs and nothing else, so that their calls alone say what it continues."""
    return bool(own) and all(item.type in items.OUTPUTS for item in own)


def _named(what: str, call_ids: Sequence[str]) -> str:
    listed = ", ".join(f"'{call_id}'" for call_id in call_ids)
    return f"{what}{'s' if len(call_ids) > 1 else ''} with call_id {listed}"
