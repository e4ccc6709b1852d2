"""A small full-text index over files of text and Markdown, built in memory with SQLite's FTS5.

Files are cut into passages at blank lines. An index is read-only once it is built; searching runs in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import ConfigError

SUFFIXES = frozenset({".txt", ".md", ".markdown", ".rst", ".text"})
_PASSAGE = 1200  # characters that a passage grows to before it ends at the next blank line
_MAX_FILE = 16 * 1024 * 1024
_WORD = re.compile(r"[^\W_]+")
_TITLE = re.compile(r"\A\s*#\s+(.+)|\A\s*(\S.{0,100})")
_URL = re.compile(r"\Aurl:\s*(\S+)\s*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a file that matches a query."""

    file_id: str
    filename: str
    title: str
    url: str | None  # of a file whose first line is `url: …`
    text: str
    score: float  # between 0 and 1, larger is better


class FileIndex:
    """The files below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    async def open(self) -> int:
        """Reads and indexes every file; returns how many. Raises `ConfigError` when the folder cannot be read."""
        return await asyncio.to_thread(self._build)

    async def close(self) -> None:
        """Lets the index go."""
        if self._database is not None:
            self._database.close()
            self._database = None

    async def search(self, query: str, limit: int) -> Sequence[Passage]:
        """The best passages, best first."""
        words = _WORD.findall(query)[:64]
        return await asyncio.to_thread(self._search, words, limit) if words else ()

    def _build(self) -> int:
        if not self._folder.is_dir():
            raise ConfigError(f"{self._folder}: is not a folder that can be indexed")
        database = sqlite3.connect(":memory:", check_same_thread=False)
        database.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(text, file_id UNINDEXED, filename UNINDEXED, title UNINDEXED, "
            "url UNINDEXED, tokenize='porter unicode61')"
        )
        count = 0
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder)
            # Hidden ones are somebody's machinery; a mounted ConfigMap has every file a second time in one.
            if path.suffix.lower() in SUFFIXES and path.is_file() and not any(p.startswith(".") for p in name.parts):
                rows = _rows(path, name.as_posix())
                database.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?)", rows)
                count += 1
        self._database = database
        return count

    def _search(self, words: Sequence[str], limit: int) -> Sequence[Passage]:
        if self._database is None:
            return ()
        # Quoted words are words: nothing that a model writes is an operator.
        match = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._database.execute(
                "SELECT file_id, filename, title, url, text, bm25(passages) FROM passages WHERE passages MATCH ? "
                "ORDER BY bm25(passages), rowid LIMIT ?",
                (match, limit),
            ).fetchall()
        return [Passage(id_, name, title, url, text, _score(rank)) for id_, name, title, url, text, rank in rows]


def _score(bm25: float) -> float:
    # bm25() is negative, and the smaller the better.
    strength = max(-bm25, 0.0)
    return round(strength / (1.0 + strength), 4)


def _rows(path: Path, name: str) -> Iterator[tuple[str, str, str, str, str | None]]:
    if path.stat().st_size > _MAX_FILE:
        raise ConfigError(f"{path}: is larger than {_MAX_FILE} bytes")
    text = path.read_text(encoding="utf-8", errors="replace")
    file_id = "file-" + hashlib.sha256(name.encode()).hexdigest()[:24]
    address = _URL.match(text)
    body = text[address.end() :] if address else text
    heading = _TITLE.match(body)
    title = (heading[1] or heading[2]).strip() if heading else name
    for passage in passages(body):
        yield passage, file_id, name, title, address[1] if address else None


def passages(text: str) -> Iterator[str]:
    """The text in parts that end at blank lines; a paragraph that is too long is cut."""
    held = ""
    for paragraph in re.split(r"\n\s*\n", text):
        held = f"{held}\n\n{paragraph}".strip() if held else paragraph.strip()
        while len(held) >= _PASSAGE:
            yield held[: _PASSAGE * 2]
            held = held[_PASSAGE * 2 :]
    if held:
        yield held
