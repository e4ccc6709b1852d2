"""Bytes to SSE frames, at any split of the bytes.

The decoder finds frame borders and looks at a frame's first line only. Runs of deltas come out as one `Frames`, never
taken apart; every other frame comes out as an `Event`. All bytes fed in come out again, in order, unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from proxy.protocol.events import Event, Frames, with_data

# A blank line. A carriage return at the very end of what has come so far may yet be half of a CRLF: wait for more.
_BORDER = re.compile(rb"\n\r?\n|\r\r\n|[\r\n]\r(?=[^\n])")
_BLANK = rb"(?:\n\r?\n|\r\r\n?|\n\r)"
_DELTA = rb"[\r\n]*event: ?response\.[a-z_.]+\.delta\r?\n"
_delta_at = re.compile(_DELTA).match
_no_run = re.compile(rb"(?!)")
_border_before_other = re.compile(_BLANK + rb"(?!" + _DELTA + rb")").search
_usual_frame = re.compile(rb"event: ([^\r\n]+)\ndata: (.*)\n\n").match
_event_lines = re.compile(rb"(?:\A|[\r\n])event: ?([^\r\n]*)").findall


class FrameTooLarge(Exception):
    """One frame is larger than the decoder may hold."""


class Decoder:
    """Feed bytes in, take frames out; `rest` is what is left of an unfinished frame."""

    def __init__(self, max_frame_bytes: int = 10 * 1024 * 1024) -> None:
        self._max = max_frame_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self._last = b""
        self._usual = _no_run.fullmatch

    def feed(self, data: bytes) -> list[Frames | Event]:
        """The frames that are whole now. Raises `FrameTooLarge`."""
        if not self._held and data.endswith(b"\n\n"):
            return self._whole(data)
        # A border needs at most two bytes of what came before; an unfinished frame is not searched again.
        window = self._last + data
        end = _last_border(window)
        if end <= 0:
            self._hold(data)
            return []
        cut = end - len(self._last)
        whole = b"".join([*self._parts, data[:cut]]) if cut >= 0 else b"".join(self._parts)[:cut]
        rest = window[end:] if cut < 0 else data[cut:]
        self._parts, self._held, self._last = [], 0, b""
        self._keep(rest)  # what is whole comes out, however large the rest
        return self._whole(whole)

    def is_run(self, data: bytes) -> bool:
        """Whether the next bytes are a run of deltas of the usual shape, to which nothing needs to be fed."""
        return not self._held and self._usual(data) is not None and b"\r" not in data

    @property
    def too_large(self) -> bool:
        """Whether more is held of an unfinished frame than may be."""
        return self._held > self._max

    def end(self) -> list[Frames | Event]:
        """The frame that only the end shows to be whole: its last CR is no half of a CRLF."""
        last = self.rest()
        if not last.endswith((b"\r\r", b"\n\r")):
            return []
        self._parts, self._held, self._last = [], 0, b""
        return split(last)

    def rest(self) -> bytes:
        """The bytes of a frame that never ended."""
        return b"".join(self._parts)

    def _whole(self, block: bytes) -> list[Frames | Event]:
        if line := _delta_at(block):
            self._usual = usual_run(line[0]).fullmatch
        return split(block)

    def _hold(self, data: bytes) -> None:
        self._keep(data)
        if self.too_large:
            raise FrameTooLarge

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._parts.append(data)
        self._held += len(data)
        self._last = (self._last + data)[-3:]


def _last_border(data: bytes) -> int:
    if data.endswith(b"\n\n"):
        return len(data)
    end = 0
    for match in _BORDER.finditer(data):
        end = match.end()
    return end


def split(block: bytes) -> list[Frames | Event]:
    """Whole frames, as runs of deltas and single other frames."""
    found: list[Frames | Event] = []
    at, size = 0, len(block)
    while at < size:
        line = _delta_at(block, at)
        if line is None:
            found.append(_event_at(block, at))
            end = at + len(found[-1].raw)
        elif (run := usual_run(line[0]).match(block, at)) and b"\r" not in run[0]:
            end = run.end()
            found.append(Frames(run[0]))
        else:
            border = _border_before_other(block, at + 1)
            end = border.end() if border else size
            found += _run(block[at:end])
        at = end
    return found


@lru_cache(maxsize=64)
def usual_run(line: bytes) -> re.Pattern[bytes]:
    """Matches a run of frames of this `event:` line and one line of data each: this is the hottest search there is."""
    return re.compile(b"(?:" + re.escape(line) + rb"data: .*\n\n)+")


def _run(raw: bytes) -> Sequence[Frames | Event]:
    """A run of deltas, unless some frame in it has a second `event:` line: the last one is what counts for clients."""
    plain = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw
    single = plain.count(b"\nevent:") + 1 == plain.count(b"\n\n")
    return [Frames(raw)] if single else frames(raw)


def frames(block: bytes) -> list[Event]:
    """Whole frames one by one."""
    found: list[Event] = []
    at = 0
    while at < len(block):
        found.append(_event_at(block, at))
        at += len(found[-1].raw)
    return found


def event(raw: bytes) -> Event:
    """One frame with its `event:` line read."""
    usual = _usual_at(raw, 0)
    if usual is not None and len(usual.raw) == len(raw):
        return usual
    lines = _event_lines(raw)
    return Event(raw, _named(lines[-1]) if lines else "")


def _event_at(block: bytes, at: int) -> Event:
    return _usual_at(block, at) or event(block[at : _frame_end(block, at)])


def _usual_at(block: bytes, at: int) -> Event | None:
    """The frame there, if it has the shape that every known backend writes."""
    usual = _usual_frame(block, at)
    if usual is None or b"\r" in usual[0]:
        return None
    return with_data(usual[0], _named(usual[1]), usual[2])


def _named(line: bytes) -> str:
    name = line.decode("latin-1").strip()
    return "" if name == "message" else name  # the standard's word for an event without a name


def _frame_end(block: bytes, at: int) -> int:
    # Blank lines before a frame's first line belong to it: they end nothing.
    start = at
    while start < len(block) and block[start] in b"\r\n":
        start += 1
    if b"\r" not in block:
        end = block.find(b"\n\n", start)
        return end + 2 if end >= 0 else len(block)
    border = _BORDER.search(block, start)
    return border.end() if border else len(block)
