"""A stored stream, sent again from any point: the frames as they were, each exactly as its bytes were."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})

# Atomic, so that CRLF is never taken for two line ends.
_FRAME = re.compile(rb"(?s:.*?)(?>\r\n|\r|\n){2,}+")
_DATA = re.compile(rb"^data:[ ]?(.*)$", re.MULTILINE)


class _Event(msgspec.Struct):
    type: str = ""
    sequence_number: int | None = None


_event = msgspec.json.Decoder(_Event)


def replayed(log: bytes, starting_after: int | None) -> bytes | None:
    """The frames after `starting_after`, up to the terminal one; None when the log has no end, so is not whole."""
    kept: list[bytes] = []
    frames = iter(split_frames(log))
    for frame in frames:
        event = _read(frame)
        if _wanted(event.sequence_number, starting_after):
            kept.append(frame)
        if event.type in TERMINAL:
            return b"".join(kept + _done(frames)) if kept else b""
    return None


def split_frames(log: bytes) -> Iterator[bytes]:
    """Every frame with the blank line that ends it."""
    return (match[0] for match in _FRAME.finditer(log))


def _read(frame: bytes) -> _Event:
    try:
        return _event.decode(_data(frame))
    except (msgspec.DecodeError, RecursionError):
        return _Event()  # a comment, a [DONE]


def _data(frame: bytes) -> bytes:
    return b"\n".join(_DATA.findall(frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n")))


def _wanted(number: int | None, starting_after: int | None) -> bool:
    return starting_after is None or (number is not None and number > starting_after)


def _done(rest: Iterator[bytes]) -> list[bytes]:
    return [frame for frame in rest if _data(frame).strip() == b"[DONE]"]
