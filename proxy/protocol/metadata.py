"""OpenAI's limits for the metadata that a client may attach to a conversation."""

from __future__ import annotations

import msgspec

from proxy.errors import InvalidType, InvalidValue

MAX_KEYS = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512

_strings = msgspec.json.Decoder(dict[str, str])


def checked_metadata(raw: bytes) -> bytes:
    """The same bytes, if they are an object of strings within the limits."""
    try:
        pairs = _strings.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidType(
            "Invalid type for 'metadata': expected an object with string values.", param="metadata"
        ) from None
    if len(pairs) > MAX_KEYS:
        raise _too_long(f"at most {MAX_KEYS} keys, but got {len(pairs)}")
    for key, value in pairs.items():
        if len(key) > MAX_KEY_CHARS:
            raise _too_long(f"keys of at most {MAX_KEY_CHARS} characters, but got one of {len(key)}")
        if len(value) > MAX_VALUE_CHARS:
            raise _too_long(
                f"values of at most {MAX_VALUE_CHARS} characters, but the value of {key!r} has {len(value)}"
            )
    return raw


def _too_long(what: str) -> InvalidValue:
    return InvalidValue(f"Invalid 'metadata': expected {what}.", param="metadata")
