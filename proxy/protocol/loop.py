"""What to do when a round has ended: decided from what the model said, without running anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from proxy.errors import UpstreamProtocol
from proxy.protocol import items, jsonbytes
from proxy.protocol.lowering import output_item
from proxy.protocol.records import Item


class Fate(Enum):
    """What becomes of a hosted call."""

    RUN = "run"
    BAD_ARGUMENTS = "bad_arguments"  # not run; the model is told
    UNFINISHED = "unfinished"  # not run: the round was cut, or the budget of calls is spent


@dataclass(frozen=True, slots=True)
class Result:
    """A finished round."""

    type: str  # of its terminal event; a JSON answer's is derived from its status
    response: bytes
    items: tuple[bytes, ...]  # all that the model said, in order


@dataclass(frozen=True, slots=True)
class Planned:
    """A hosted call of a round, and its fate."""

    raw: bytes
    call_id: str
    name: str
    arguments: str
    fate: Fate


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows a round: its hosted calls in order, and whether the model is asked again."""

    calls: tuple[Planned, ...]
    go_on: bool


def result(type_: str, response: bytes, folded: Sequence[bytes]) -> Result:
    """Reads a round's last response object; `folded` are its items where it lists none."""
    raw = jsonbytes.fields(response).get("output", b"null")
    parts = jsonbytes.elements(raw) if jsonbytes.present(raw) else []
    return Result(type_, response, tuple(parts or folded))


def decide(round_: Result, functions: Collection[str], budget: int | None) -> Decision:
    """`functions` are those that the gateway runs; `budget` is how many calls may still be made (None: any).

    Raises `UpstreamProtocol` when two hosted calls of one round have the same call_id.
    """
    finished = round_.type == "response.completed" and _status(round_.response) in (None, "completed")
    hosted: list[Planned] = []
    theirs = False
    for raw in round_.items:
        members = jsonbytes.fields(raw)
        if jsonbytes.text(members.get("type")) not in items.CALLS:
            continue
        if not _is_hosted(members, functions):
            theirs = True
            continue
        spent = budget is not None and sum(call.fate is Fate.RUN for call in hosted) >= budget
        cut = jsonbytes.text(members.get("status")) == "incomplete"
        hosted.append(_planned(raw, members, unfinished=spent or cut or not finished))
    _check_ids(hosted)
    unfinished = any(call.fate is Fate.UNFINISHED for call in hosted)
    return Decision(tuple(hosted), go_on=bool(hosted) and finished and not theirs and not unfinished)


def _status(response: bytes) -> str | None:
    # vLLM says `response.completed` of a response that was cut, too; only its status tells.
    return jsonbytes.text(jsonbytes.fields(response).get("status"))


def _is_hosted(members: jsonbytes.Fields, functions: Collection[str]) -> bool:
    named = jsonbytes.text(members.get("name")) in functions
    return (
        named
        and jsonbytes.text(members.get("type")) == "function_call"
        and not jsonbytes.present(members.get("namespace"))
    )


def _planned(raw: bytes, members: jsonbytes.Fields, *, unfinished: bool) -> Planned:
    arguments = jsonbytes.text(members.get("arguments")) or ""
    fate = Fate.UNFINISHED if unfinished else Fate.RUN if _is_object(arguments) else Fate.BAD_ARGUMENTS
    call_id, name = jsonbytes.text(members.get("call_id")) or "", jsonbytes.text(members.get("name")) or ""
    return Planned(raw, call_id, name, arguments, fate)


def _is_object(text: str) -> bool:
    try:
        jsonbytes.fields(text.encode("utf-8", "surrogatepass"))
    except jsonbytes.NotJSON:
        return False
    return True


def _check_ids(calls: Sequence[Planned]) -> None:
    seen: set[str] = set()
    for call in calls:
        if not call.call_id or call.call_id in seen:
            raise UpstreamProtocol(
                f"The backend made two calls, or one without a name, of the call_id '{call.call_id}'."
            )
        seen.add(call.call_id)


def replayed(call: Planned, output: str) -> bytes:
    """A hosted call and its output as the backend is sent them, now and in every later turn."""
    return call.raw + b"," + output_item(call.call_id, output)


def said(round_: Result, functions: Collection[str]) -> list[Item]:
    """What the model said in a round other than hosted calls, as items."""
    found = []
    for raw in round_.items:
        item = items.parse_item(raw, lambda prefix: prefix, "output")
        if not (item.type == "function_call" and _is_hosted(jsonbytes.fields(raw), functions)):
            found.append(item)
    return found
