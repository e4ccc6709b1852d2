"""A property computed once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from proxy.protocol.lazy import lazy


@dataclass(frozen=True)
class Word:
    raw: str

    @lazy
    def length(self) -> int:
        """How long it is."""
        COMPUTED.append(self.raw)
        if not self.raw:
            raise ValueError("empty")
        return len(self.raw)


COMPUTED: list[str] = []


def test_a_value_is_computed_once_for_each_instance():
    COMPUTED.clear()
    one, other = Word("a"), Word("bc")
    assert (one.length, one.length, other.length, other.length) == (1, 1, 2, 2)
    assert COMPUTED == ["a", "bc"]


def test_an_error_is_not_kept():
    COMPUTED.clear()
    word = Word("")
    for _ in range(2):
        with pytest.raises(ValueError, match="empty"):
            _ = word.length
    assert COMPUTED == ["", ""]


def test_the_class_shows_what_it_is():
    assert Word.length.__doc__ == "How long it is."
    assert Word("a") == Word("a")
