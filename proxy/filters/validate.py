"""Refuses what could not be served properly, before state is touched or a token is paid for.

Only what concerns state is judged; every generation field is the backend's business.
"""

from __future__ import annotations

import re
from itertools import accumulate

from pydantic import Field

from proxy.chain import Next, Send
from proxy.config import Model
from proxy.errors import InvalidRequest, InvalidType, MutuallyExclusive, UnsupportedParameter
from proxy.protocol import jsonbytes
from proxy.protocol.turn import Body, Operation, Turn
from proxy.services import Services

AFTER = frozenset({"owner"})

_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_strings = re.compile(rb'"[^"]*(?:"|\Z)')  # what holds no escapes, and may end in the middle of a string
_FLAGS = ("stream", "store", "background")
_OF_STATE = frozenset({*_FLAGS, "prompt", "previous_response_id", "conversation"})


class Config(Model):
    """Options of the filter."""

    max_depth: int = Field(256, ge=16, le=512, description="How deep a request body may be nested.")


class Validate:
    """Checks the body of a turn and sets `turn.stream`."""

    def __init__(self, config: Config, services: Services) -> None:
        self._max_depth = config.max_depth

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        if turn.operation is not Operation.OTHER:
            self._check(turn.body)
            if turn.body.fields.get("stream") == b"true":
                turn = turn.replace(stream=True)
        await call_next(turn, send)

    def _check(self, body: Body) -> None:
        if depth(body.raw, self._max_depth) > self._max_depth:
            raise InvalidRequest(f"The request body is nested deeper than {self._max_depth} levels.")
        try:
            str(body.raw, "utf-8")
            members = body.fields
        except UnicodeDecodeError:
            raise InvalidRequest("The request body is not valid UTF-8.") from None
        except jsonbytes.NotJSON as error:
            raise InvalidRequest(f"The request body is not a JSON object: {error}") from None
        if not _OF_STATE.isdisjoint(members):
            check_members(members)


def check_members(members: jsonbytes.Fields) -> None:
    """Raises for every combination of state fields that cannot be served."""
    for name in _FLAGS:
        if name in members and members[name] not in (b"true", b"false", b"null"):
            raise InvalidType(f"'{name}' must be a boolean", param=name)
    if members.get("background") == b"true":
        raise UnsupportedParameter("background mode is not supported", param="background")
    if jsonbytes.present(members.get("prompt")):
        raise UnsupportedParameter("prompt templates are not supported", param="prompt")
    if jsonbytes.present(members.get("previous_response_id")) and jsonbytes.present(members.get("conversation")):
        raise MutuallyExclusive()


def depth(raw: bytes, enough: int) -> int:
    """How deep brackets nest outside strings; 0 when there are too few of them to reach `enough`.

    Takes time in proportion to the bytes, whatever they are: nobody has looked yet whether they are JSON.
    """
    if raw.count(b"[") + raw.count(b"{") <= enough:
        return 0
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = _strings.sub(b"", plain).translate(None, delete=_NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
