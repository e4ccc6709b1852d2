"""What is asked of the endpoints that the store answers, and what they reply."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.errors import RawHeaders
from proxy.protocol.records import Owner


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
