"""What a group of turns becomes in rows: decided here, without any I/O, from what the locked rows say.

The caller holds the locks of every thread and conversation in `State`; a turn planned earlier in the group is seen by
the later ones, just as if it had committed before them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from proxy.errors import LeaseLost
from proxy.store import History, Item, NewResponse, Owner, TurnRecord

ThreadKey = tuple[Owner, int]
ConversationKey = tuple[Owner, str]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A turn to be saved, and its event log as it will be stored."""

    record: TurnRecord
    events: bytes | None

    @property
    def appends(self) -> ConversationKey | None:
        """The conversation that this turn appends to."""
        if self.record.lease is None or not self.record.completed:
            return None
        return self.record.owner, self.record.lease.conversation

    @property
    def anchor(self) -> ThreadKey | None:
        """The thread that this turn continues from, where it is not its conversation's."""
        if self.record.history is None or self.appends is not None:
            return None
        return self.record.owner, self.record.history.anchor.thread

    @property
    def empty(self) -> bool:
        """True where the turn leaves nothing behind."""
        return self.record.response is None and self.appends is None


@dataclass(slots=True)
class ThreadState:
    """A locked thread."""

    tip: int
    open: bool  # may be appended to by a response that continues its newest one
    token: str | None = None  # a session token that came with this group
    moved: bool = False


@dataclass(slots=True)
class ConversationState:
    """A locked conversation."""

    thread: int
    lease: str | None


@dataclass(slots=True)
class State:
    """The locked rows of a group, and the ids that its conversations already hold."""

    threads: dict[ThreadKey, ThreadState] = field(default_factory=dict)
    conversations: dict[ConversationKey, ConversationState] = field(default_factory=dict)
    taken: dict[ThreadKey, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a turn's items go."""

    thread: int
    start: int


def new_thread_id() -> int:
    """A key that no other writer makes: milliseconds, then 22 random bits, so that a child sorts after its parent."""
    return (time.time_ns() // 1_000_000) << 22 | secrets.randbits(22)


def new_item_id(repeated: str) -> str:
    """A fresh id of the same kind as the repeated one."""
    prefix, underscore, _ = repeated.rpartition("_")
    return f"{prefix if underscore else 'item'}_{secrets.token_hex(25)}"


def unique_ids(items: Iterable[Item], taken: set[str]) -> list[str]:
    """The ids under which the items are stored; adds them to `taken`."""
    ids = []
    for item in items:
        item_id = new_item_id(item.id) if item.id in taken else item.id
        taken.add(item_id)
        ids.append(item_id)
    return ids


def item_row(owner: Owner, place: tuple[int, int], item: Item, item_id: str) -> Row:
    """The row of one item, in the order of the table's columns."""
    thread, pos = place
    return (owner, thread, pos, item_id, item.type, item.call_id, item.body, False, item.upstream)


class Plan:
    """The rows to insert and update for a group; the columns are in the order of the tables."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.threads: list[Row] = []
        self.items: list[Row] = []
        self.responses: list[Row] = []
        self.events: list[Row] = []
        self.approvals: list[Row] = []
        self.leases: list[Row] = []

    @property
    def tips(self) -> list[Row]:
        """The threads that grew: tip, token, owner, id."""
        return [(s.tip, s.token, *key) for key, s in self._state.threads.items() if s.moved]

    def add(self, entry: Entry) -> LeaseLost | None:
        """Plans one turn; an error means that it leaves nothing in the plan."""
        conversation = entry.appends
        if conversation is None:
            self._write(entry, self._place(entry.record), set())
            return None
        state = self._state.conversations.get(conversation)
        lease = entry.record.lease
        if state is None or lease is None or state.lease != lease.token:
            return LeaseLost()
        state.lease = None
        self.leases.append((*conversation, lease.token))
        self._append(entry, (entry.record.owner, state.thread))
        return None

    def _append(self, entry: Entry, key: ThreadKey) -> None:
        place = self._extend(key, entry.record)
        self._write(entry, place, self._state.taken.setdefault(key, set()))

    def _place(self, record: TurnRecord) -> _Place:
        history = record.history
        if history is None:
            return self._start(record, None)
        key = (record.owner, history.anchor.thread)
        thread = self._state.threads.get(key)
        if thread is None or thread.tip < history.anchor.position:
            return self._copy(record, history)
        if record.completed and thread.open and thread.tip == history.anchor.position:
            return self._extend(key, record)
        return self._start(record, history)

    def _extend(self, key: ThreadKey, record: TurnRecord) -> _Place:
        thread = self._state.threads[key]
        start = thread.tip
        thread.tip += len(record.input) + len(record.output)
        thread.token = record.session_token or thread.token
        thread.moved = True
        return _Place(key[1], start)

    def _start(self, record: TurnRecord, history: History | None) -> _Place:
        """A new thread: a root, or a fork where the history ends."""
        anchor = history.anchor if history else None
        start = anchor.position if anchor else 0
        end = start + len(record.input) + len(record.output)
        thread = self._thread(record, anchor.thread if anchor else None, (start, end))
        # Only a completed turn's thread can be continued, but nobody can hold its anchor before this commits.
        return _Place(thread, start)

    def _copy(self, record: TurnRecord, history: History) -> _Place:
        """A root of its own for a turn whose anchor was deleted while it ran."""
        start = len(history.items)
        thread = self._thread(record, None, (0, start + len(record.input) + len(record.output)))
        for pos, item in enumerate(history.items):
            self.items.append(item_row(record.owner, (thread, pos), item, item.id))
        return _Place(thread, start)

    def _thread(self, record: TurnRecord, parent: int | None, span: tuple[int, int]) -> int:
        thread = new_thread_id()
        history = record.history
        session = history.session if history else record.session
        token = record.session_token or (history.session_token if history else None)
        self.threads.append((record.owner, thread, parent, *span, False, None, session, token))
        return thread

    def _write(self, entry: Entry, place: _Place, taken: set[str]) -> None:
        record = entry.record
        items = record.input + record.output
        for pos, (item, item_id) in enumerate(zip(items, unique_ids(items, taken), strict=True), place.start):
            self.items.append(item_row(record.owner, (place.thread, pos), item, item_id))
        if record.response is not None:
            self._respond(record, record.response, place)
            if entry.events is not None:
                self.events.append((record.owner, record.response.id, entry.events))
            for approval in record.approvals:
                self.approvals.append((record.owner, approval.id, record.response.id, approval.target, False))

    def _respond(self, record: TurnRecord, new: NewResponse, place: _Place) -> None:
        output_start = place.start + len(record.input)
        span = (place.thread, place.start, output_start, output_start + len(record.output))
        row = (record.owner, new.id, *span, new.status, new.created_at, new.expires_at, new.envelope)
        self.responses.append(row)
