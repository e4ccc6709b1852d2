"""A client's request on its way through the chain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from proxy.protocol import jsonbytes
from proxy.protocol.headers import Headers
from proxy.protocol.hosting import Approved, Hosted
from proxy.protocol.lazy import lazy
from proxy.protocol.records import Approval, History, Item, Lease, Owner


class Operation(Enum):
    """What a request asks for, as far as state is concerned."""

    CREATE = "create"
    INPUT_TOKENS = "input_tokens"
    COMPACT = "compact"
    OTHER = "other"  # not ours: passed on as it is


@dataclass(frozen=True)
class Body:
    """A request body: the exact bytes, and its top-level members when somebody asks."""

    raw: bytes

    @lazy
    def fields(self) -> jsonbytes.Fields:
        """The top-level members, each as its exact bytes. Raises `NotJSON`."""
        return jsonbytes.fields(self.raw)

    def get(self, name: str) -> bytes | None:
        """A member's exact bytes; None when it is absent or null."""
        raw = self.fields.get(name)
        return raw if jsonbytes.present(raw) else None

    def flag(self, name: str, default: bool) -> bool:
        """A boolean member, `default` when it is absent, null or not a boolean."""
        return {b"true": True, b"false": False}.get(self.fields.get(name, b""), default)

    def rebuilt(self, changes: Mapping[str, bytes | None]) -> Body:
        """The body with these members set or (None) removed; every other one keeps its exact bytes."""
        members = jsonbytes.changed(self.fields, changes)
        body = Body(jsonbytes.join_object(members))
        body.__dict__["fields"] = members  # a history may be long: it is not taken apart to be looked at
        return body


@dataclass(slots=True)
class Draft:
    """What the turn will leave behind. Begun by response_store, completed by rehydrate, written by response_store."""

    keep: bool  # store is not false: a response row will be written
    session: str
    input: tuple[Item, ...] | None = None  # None until somebody had to take the input apart
    history: History | None = None
    lease: Lease | None = None
    saved: bool = False
    # Told by the tools; used by response_store:
    upstream: dict[str, bytes] = field(default_factory=dict)  # by output item id: what the backend is sent in its place
    approvals: list[Approval] = field(default_factory=list)


NOBODY = Owner("")


@dataclass(frozen=True)
class Turn:
    """One client request. Frozen: a filter passes on a replaced one."""

    method: str
    target: bytes  # the request target exactly as the client spelled it
    path: str
    headers: Headers  # end to end only
    operation: Operation
    body: Body
    owner: Owner = NOBODY  # set by owner; used by response_store, rehydrate
    stream: bool = False  # set by validate; used by response_store
    draft: Draft | None = None  # set by response_store; used by rehydrate
    upstream_headers: tuple[tuple[bytes, bytes], ...] = ()  # added by filters; used by upstream
    hosted: tuple[tuple[int, Hosted], ...] = ()  # by place in `tools`; set by mcp_tools; used by agentic_loop
    approved: tuple[Approved, ...] = ()  # set by mcp_tools; used by agentic_loop

    def replace(self, **changes: object) -> Turn:
        """This turn with some fields changed. Raises `TypeError` for a name that is no field."""
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"a turn has no {', '.join(changes.keys() - _FIELDS)}")
        # Every filter passes on a replaced turn: this copies the fields without asking for each of them.
        new = object.__new__(Turn)
        new.__dict__.update(self.__dict__, **changes)
        return new


_FIELDS = frozenset(each.name for each in dataclasses.fields(Turn))
