"""What the gateway remembers, and the port that every store backend implements.

Items live in threads. A thread is a line of items, each at its position (0, 1, 2, ...); a response owns a range of
positions of one thread: first its input items, then its output items. Continuing the newest response of a thread
appends to the thread. Continuing any other one makes a new thread whose parent is that thread, up to the position where
the continued response ends. So an item's bytes are stored once, a branch costs one row, and the history of a response
is the items of its thread below its end, preceded by those of the parents below each fork.

A conversation owns a thread; only completed turns in it append there. Every row and every query carries the owner; a
foreign row answers exactly as an absent one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from proxy.protocol.records import (
    Anchor,
    Approval,
    Call,
    Conversation,
    History,
    Item,
    Lease,
    NewResponse,
    Owner,
    Page,
    PageQuery,
    ResponseHead,
    StoredResponse,
    TurnRecord,
)

__all__ = [
    "Anchor",
    "Approval",
    "ApprovalRefused",
    "Call",
    "Conversation",
    "DuplicateItem",
    "History",
    "Item",
    "Lease",
    "NewResponse",
    "Owner",
    "Page",
    "PageQuery",
    "ResponseHead",
    "Store",
    "StoredResponse",
    "TurnRecord",
    "UnknownCursor",
]


class UnknownCursor(Exception):
    """`PageQuery.after` names no item of the list."""


class ApprovalRefused(Exception):
    """An approval that is unknown, used already, or for another target; the message says which."""

    def __init__(self, approval_id: str, message: str) -> None:
        super().__init__(message)
        self.approval_id = approval_id


class DuplicateItem(Exception):
    """An item with this id is already in the conversation."""


class Store(Protocol):
    """The port. Every method raises `proxy.errors.StoreError` (or a subclass) when the database fails."""

    async def open(self) -> None:
        """Connects, creates the schema in an empty database, refuses an older one unless the store is embedded."""

    async def close(self) -> None:
        """Finishes what is being written and lets every connection go."""

    async def ping(self) -> None:
        """Answers when the database does."""

    async def save(self, record: TurnRecord) -> None:
        """Writes a turn; returns only after the commit. Concurrent saves may share one transaction."""

    async def response(self, owner: Owner, response_id: str) -> StoredResponse | None:
        """The response with its output items."""

    async def events(self, owner: Owner, response_id: str) -> bytes | None:
        """The frames of a streamed response, or None where no log is held."""

    async def input_items(self, owner: Owner, response_id: str, page: PageQuery) -> Page | None:
        """A page of the response's own input. None: no such response. Raises `UnknownCursor`."""

    async def delete_response(self, owner: Owner, response_id: str) -> bool:
        """Removes the response, its log, and the items that nothing else reaches; False where there is none."""

    async def head(self, owner: Owner, response_id: str) -> ResponseHead | None:
        """The response without its items."""

    async def history(self, owner: Owner, response_id: str) -> History | None:
        """All items up to and including the response's output, in at most two queries; None: no such response."""

    async def items(self, owner: Owner, item_ids: Sequence[str]) -> Mapping[str, Item]:
        """The newest stored item for each id that is known; the others are missing from the answer."""

    async def calls(self, owner: Owner, call_ids: Sequence[str]) -> Sequence[Call]:
        """The completed responses whose output holds one of these calls; several for one id when it is ambiguous."""

    async def use_approvals(self, owner: Owner, approvals: Sequence[Approval]) -> None:
        """Uses up approvals, all of them or none. Raises `ApprovalRefused`."""

    async def create_conversation(self, owner: Owner, conversation: Conversation, items: Sequence[Item]) -> None:
        """Adds a conversation and its first items."""

    async def conversation(self, owner: Owner, conversation_id: str) -> Conversation | None:
        """The conversation, or None."""

    async def update_conversation(self, owner: Owner, conversation_id: str, metadata: bytes) -> Conversation | None:
        """Replaces the metadata and nothing else; None: no such conversation."""

    async def delete_conversation(self, owner: Owner, conversation_id: str) -> bool:
        """Removes the conversation, and its items except those that a stored response's own range holds."""

    async def conversation_history(self, owner: Owner, conversation_id: str) -> History | None:
        """All items of the conversation, in order."""

    async def conversation_items(self, owner: Owner, conversation_id: str, page: PageQuery) -> Page | None:
        """A page of the conversation's items. Raises `UnknownCursor`."""

    async def conversation_item(self, owner: Owner, conversation_id: str, item_id: str) -> Item | None:
        """One item of the conversation."""

    async def add_conversation_items(self, owner: Owner, conversation_id: str, items: Sequence[Item]) -> bool:
        """Appends items; False: no such conversation. Raises `DuplicateItem` for an id that is already there."""

    async def delete_conversation_item(self, owner: Owner, conversation_id: str, item_id: str) -> bool:
        """Takes an item out of the conversation; a stored response whose own item it is keeps it."""

    async def acquire(self, owner: Owner, lease: Lease, ttl: float) -> bool:
        """Takes the conversation's lease for `ttl` seconds of the database's clock.

        False while another holds it, or where there is no such conversation.
        """

    async def renew(self, owner: Owner, lease: Lease, ttl: float) -> bool:
        """Prolongs a held lease; False when it was lost."""

    async def release(self, owner: Owner, lease: Lease) -> None:
        """Ends a lease that is still held; a lost one is left alone."""

    async def request_cancel(self, owner: Owner, response_id: str) -> None:
        """Leaves word for whichever worker runs this response to stop it."""

    async def cancel_requests(self, since: float) -> Sequence[tuple[Owner, str]]:
        """The cancel requests younger than `since` seconds (the database's clock)."""

    async def sweep(self, limit: int) -> int:
        """Removes up to `limit` expired responses (one worker at a time over all replicas); returns how many went."""
