"""OpenAI's own wire: which request is a turn, which asks the store, which is nobody's business here."""

from __future__ import annotations

import re
from enum import Enum
from urllib.parse import unquote

from proxy.errors import NotFound, ProxyError
from proxy.protocol.events import Event
from proxy.protocol.round import error_event
from proxy.protocol.turn import Operation

_TURNS = {
    "/v1/responses": Operation.CREATE,
    "/v1/responses/input_tokens": Operation.INPUT_TOKENS,
    "/v1/responses/compact": Operation.COMPACT,
}
_STATE = re.compile(r"/v1/(responses/[^/]+(/input_items)?|conversations(/.*)?)\Z")
_CANCEL = re.compile(r"/v1/responses/([^/]+)/cancel\Z")


class Kind(Enum):
    """Who answers a request."""

    TURN = "turn"  # the chain; state may be needed
    STATE = "state"  # the store
    CANCEL = "cancel"  # the run, if it is ours and in flight
    UPGRADE = "upgrade"  # a WebSocket, which is not spoken here
    VERBATIM = "verbatim"  # the backend, untouched


def classify(method: str, path: str, upgrade: bool) -> tuple[Kind, Operation]:
    """What a request is, from its method and (percent-encoded) path alone. Raises `NotFound` for a path that climbs."""
    if method == "POST" and path in _TURNS:
        return Kind.TURN, _TURNS[path]
    path = path.rstrip("/") or "/"
    plain = unquote(path).rstrip("/")  # as the backend will read it: an encoded spelling is no way around the chain
    if method == "POST" and plain in _TURNS:
        return Kind.TURN, _TURNS[plain]
    if upgrade and plain == "/v1/responses":
        return Kind.UPGRADE, Operation.OTHER
    if method == "POST" and _CANCEL.match(path):
        return Kind.CANCEL, Operation.OTHER
    if plain not in _TURNS and _STATE.match(path):
        return Kind.STATE, Operation.OTHER
    if any(part in (".", "..") for part in plain.split("/")):
        raise NotFound(f"There is nothing at {path}.")
    return Kind.VERBATIM, Operation.OTHER


def cancelled_id(path: str) -> str:
    """The (percent-encoded) id in the path of a cancel request."""
    match = _CANCEL.match(path.rstrip("/"))
    return match[1] if match else ""


def late_error(error: ProxyError, sequence_number: int) -> Event:
    """The terminal event for an error that came too late for a status."""
    return error_event(error.code, error.message, error.param, sequence_number)
