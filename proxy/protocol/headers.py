"""HTTP headers as raw pairs of bytes: order, case, repetition and odd bytes survive; hop-by-hop ones do not.

One client, and one backend, repeats the same headers with every message: what follows from them is kept for the newest
few.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

Headers = tuple[tuple[bytes, bytes], ...]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)

# A body with one of these is bound to its exact bytes, or to an encoding that is not undone here.
BOUND = frozenset(
    {
        b"content-encoding",
        b"content-range",
        b"etag",
        b"last-modified",
        b"content-md5",
        b"digest",
        b"content-digest",
        b"repr-digest",
    }
)


def get(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header (`name` in lower case)."""
    for key, value in headers:
        if key.lower() == name:
            return value
    return None


def without(headers: Headers, names: Collection[bytes]) -> Headers:
    """The headers less these (lower case) names."""
    return tuple((key, value) for key, value in headers if key.lower() not in names)


class Message(NamedTuple):
    """What the headers of a request or an answer say of it."""

    end_to_end: Headers
    media_type: bytes  # as `media_type`
    encoding: bytes | None  # its Content-Encoding, in lower case
    length: bytes | None  # its Content-Length, as it is spelled


@lru_cache(maxsize=256)
def read(headers: Headers) -> Message:
    """Reads the headers of a message, once for all messages that bear the same."""
    encoding = get(headers, b"content-encoding")
    return Message(
        end_to_end(headers),
        media_type(headers),
        None if encoding is None else encoding.strip().lower(),
        get(headers, b"content-length"),
    )


def end_to_end(headers: Headers) -> Headers:
    """The headers less the hop-by-hop ones and those that `Connection` names."""
    named: set[bytes] = set()
    for key, value in headers:
        if key.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return without(headers, HOP_BY_HOP | named)


def block(headers: Headers) -> bytes:
    """The lines as they go over the wire, each with its end."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def media_type(headers: Headers) -> bytes:
    """The media type in lower case without its parameters; empty where there is none."""
    return (get(headers, b"content-type") or b"").split(b";", 1)[0].strip().lower()


def is_json(media: bytes) -> bool:
    """Whether a media type is JSON, or a kind of it (`application/problem+json`)."""
    return media == b"application/json" or media.endswith(b"+json")
