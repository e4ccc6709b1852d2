"""A stored stream, sent again from any point: the frames as they were, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.protocol.events import Event
from proxy.protocol.sse import frames


def replayed(log: bytes, starting_after: int | None) -> bytes | None:
    """The frames after `starting_after`, up to the terminal one; None when the log has no end, so is not whole."""
    kept: list[bytes] = []
    rest = iter(frames(log))
    for frame in rest:
        if _wanted(frame, starting_after):
            kept.append(frame.raw)
        if frame.terminal:
            return b"".join(kept + _done(rest)) if kept else b""
    return None


def _wanted(frame: Event, starting_after: int | None) -> bool:
    if starting_after is None:
        return True
    number = frame.sequence_number
    return number is not None and number > starting_after


def _done(rest: Iterable[Event]) -> list[bytes]:
    return [frame.raw for frame in rest if frame.data.strip() == b"[DONE]"]
