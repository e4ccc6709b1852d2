"""The records that a store keeps, as the rest of the gateway sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from msgspec import Struct

Owner = NewType("Owner", str)


class Item(Struct, frozen=True, gc=False):
    """One item as it is stored.

    `id` is the public id: stable, and unique within its thread. `body` is the item's exact bytes as they passed by (it
    may hold no id, or another one where a client repeated an id in one thread).
    """

    id: str
    type: str
    body: bytes
    call_id: str | None = None
    upstream: bytes | None = (
        None  # what the backend is sent in its place: items joined by commas; None: the body itself
    )


@dataclass(frozen=True, slots=True)
class Anchor:
    """The place in a thread that a turn continues from: the first `position` items, and its parents', are history."""

    thread: int
    position: int


@dataclass(frozen=True, slots=True)
class History:
    """What came before a turn."""

    anchor: Anchor
    items: tuple[Item, ...]
    session: str  # stable over the whole chain or conversation; sent upstream as x-session-id
    session_token: str | None = None  # the router's own x-session-token, to be echoed
    status: str = "completed"  # of the response that is continued


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A stored response without its items."""

    id: str
    status: str
    created_at: float  # seconds since the epoch
    envelope: bytes  # the response object as the client saw it, its `output` emptied to []


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response with its output items, in order."""

    head: ResponseHead
    output: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class NewResponse:
    """The response row that a turn adds."""

    id: str
    status: str
    created_at: float
    expires_at: float | None
    envelope: bytes
    events: bytes | None = None  # the client-visible SSE frames, uncompressed; None: not streamed, or beyond the cap


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append to a conversation, held by one turn at a time."""

    conversation: str
    token: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that a person must approve: the id of its request item, and the fingerprint of what would be called."""

    id: str
    target: str


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """All that one turn leaves behind; a store writes the whole of it, or nothing.

    - `response` None (store: false): no response row, no event log; items are written only for a `lease`.
    - `lease` set and the turn completed: input and output are appended to the conversation's thread, and the lease
      ends.
      If the lease is no longer held: `LeaseLost`, and nothing is written.
    - A response that is not completed never moves a thread's end: its items go to a thread of its own, forked at
      `history`'s anchor.
    - `history` None: the turn begins a new thread, whose session is `session`.
    - `history` whose anchor no longer exists (deleted while the backend worked): the history's items are written again
      into a new thread of their own, so that the new response can be continued.
    """

    owner: Owner
    completed: bool
    input: tuple[Item, ...]
    output: tuple[Item, ...]
    response: NewResponse | None
    history: History | None
    lease: Lease | None
    session: str
    session_token: str | None = None
    approvals: tuple[Approval, ...] = ()  # written with the response; without one, none are


@dataclass(frozen=True, slots=True)
class Page:
    """One page of items, and whether more follow."""

    items: tuple[Item, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A page as asked for: at most `limit` items after the item with the id `after`, in `order` asc or desc."""

    limit: int = 20
    order: str = "desc"
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items."""

    id: str
    created_at: float
    metadata: bytes  # a JSON object, its exact bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A stored call of a tool that the client owns, and the completed response that made it."""

    call_id: str
    response_id: str
