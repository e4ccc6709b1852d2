"""What is asked of the endpoints that the store answers, and what they reply."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.errors import RawHeaders
from proxy.protocol.records import Owner

MAX_ID_CHARS = 512


@dataclass(frozen=True, slots=True)
class Lookup:
    """A request for stored state; `path` and `query` are as they came, still percent-encoded."""

    method: str
    path: str
    query: str
    body: bytes
    owner: Owner


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer: these are small, or a replay log that is in memory anyway."""

    status: int
    headers: RawHeaders
    body: bytes


def json_reply(body: bytes) -> Reply:
    return Reply(200, ((b"content-type", b"application/json"),), body)


def storable_id(id_: str) -> bool:
    """Whether a stored thing can have this id; a database may not even be asked about the others."""
    return 0 < len(id_) <= MAX_ID_CHARS and id_.isprintable()
