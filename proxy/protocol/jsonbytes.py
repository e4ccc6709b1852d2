"""JSON objects and arrays as slices of the bytes that passed by: taken apart one level, put together again exactly.

A value that nobody changes keeps its bytes (number spelling, escapes, inner spacing); only a rebuilt object's own
commas,
colons and outer spacing become the compact form. A repeated key keeps its first place and its last value, which is what
JSON parsers at a backend make of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")

NULL = b"null"
ABSENT = msgspec.Raw(b"")  # for a member that an outline does not find
_MAX_DIGITS = 20

Fields = dict[str, bytes]


class NotJSON(ValueError):
    """The bytes are not the JSON that was expected there; the message says what is wrong."""


def fields(raw: bytes) -> Fields:
    """The members of a JSON object, each value as its exact bytes. Raises `NotJSON`."""
    members = _guard(_object, raw)
    return dict(zip(members, map(bytes, members.values()), strict=True))


def elements(raw: bytes) -> list[bytes]:
    """The elements of a JSON array, each as its exact bytes. Raises `NotJSON`."""
    parts: list[msgspec.Raw] = _guard(_array, raw)
    return list(map(bytes, parts))


def value(raw: bytes) -> Any:
    """The decoded value. Raises `NotJSON`."""
    return _guard(_any, raw)


def outline(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Some members of a JSON object, as the decoder's struct names them; others are passed over. Raises `NotJSON`."""
    return _guard(decoder, raw)


def text(raw: bytes | None) -> str | None:
    """The string that these bytes spell; None when they are absent or spell something else."""
    if raw is None or not raw.startswith(b'"'):
        return None
    return str(_guard(_any, raw))


def count(raw: bytes | None) -> int | None:
    """The number, from 0 on, that these bytes spell; None when they are absent, spell something else, or overlong."""
    return int(raw) if raw is not None and raw.isdigit() and len(raw) <= _MAX_DIGITS else None


def present(raw: bytes | None) -> bool:
    """Whether a member is there and is not null."""
    return raw is not None and raw != NULL


def encode(thing: Any) -> bytes:
    """Compact JSON."""
    return _encode(thing)


def join_object(members: Mapping[str, bytes]) -> bytes:
    """A JSON object of these members, in their order."""
    return b"{" + b",".join([_encode(key) + b":" + raw for key, raw in members.items()]) + b"}"


def join_array(parts: Iterable[bytes]) -> bytes:
    """A JSON array of these elements."""
    return b"[" + b",".join(parts) + b"]"


def with_members(raw: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """The object with these members set (in place, or at the end) or, where None, removed."""
    return join_object(changed(fields(raw), changes))


def changed(members: Fields, changes: Mapping[str, bytes | None]) -> Fields:
    """The members with these set (in place, or at the end) or, where None, removed."""
    members = dict(members)
    for key, new in changes.items():
        if new is None:
            members.pop(key, None)
        else:
            members[key] = new
    return members


def _guard(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotJSON(str(error)) from error
    except RecursionError as error:
        raise NotJSON("it is nested too deep") from error
