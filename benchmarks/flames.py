"""Reads a flame graph of py-spy: how often each function was itself at work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html import unescape
from itertools import groupby

_FRAME = re.compile(
    r'<title>(?P<name>[^<]*) \([\d,]+ samples?, [\d.]+%\)</title><rect [^>]*?\by="(?P<row>\d+)"'
    r'[^>]*?fg:x="(?P<x>\d+)" fg:w="(?P<width>\d+)"'
)


@dataclass(frozen=True)
class Frame:
    """A function in one stack: from the sample `x` on, `width` of them."""

    name: str
    row: int
    x: int
    width: int

    def holds(self, other: Frame) -> bool:
        return self.x <= other.x < self.x + self.width


def frames(svg: str) -> list[Frame]:
    """From the outermost to the innermost."""
    found = [
        Frame(unescape(each["name"]), int(each["row"]), int(each["x"]), int(each["width"]))
        for each in _FRAME.finditer(svg)
    ]
    return sorted(found, key=lambda frame: (frame.row, frame.x))


def self_samples(found: Iterable[Frame]) -> Counter[str]:
    """By function: the samples in which it had called nothing."""
    own: Counter[str] = Counter()
    above: list[Frame] = []
    for _, row in groupby(found, key=lambda frame: frame.row):
        current = list(row)
        for frame in current:
            own[frame.name] += frame.width
            for caller in (each for each in above if each.holds(frame)):
                own[caller.name] -= frame.width
        above = current
    return own


def top(svg: str, count: int) -> list[tuple[float, str]]:
    """The functions with the largest share of all samples of their own, in percent."""
    own = self_samples(frames(svg))
    whole = sum(own.values())
    return [(100 * samples / whole, name) for name, samples in own.most_common(count) if samples]
