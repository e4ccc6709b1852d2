"""The tools that a server offers: asked for, remembered, and shown to the model and to the client."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import mcp_types as types
import msgspec
from mcp import ClientSession

from proxy.errors import InvalidRequest
from proxy.protocol.records import Owner
from proxy.tools import Function
from proxy.tools._mcp_http import TOO_LARGE, Fault

MOST_PAGES = 100
MOST_KEPT = 128  # lists, and only small ones
MOST_KEPT_BYTES = 256 * 1024
MOST_SEEN = 4096  # items whose origin is remembered
LONGEST_NAME = 64

_ODD = re.compile(r"[^A-Za-z0-9_-]")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Listed:
    """One tool as its server describes it."""

    name: str
    schema: Mapping[str, Any]
    description: str | None = None
    annotations: Mapping[str, Any] | None = None

    @property
    def read_only(self) -> bool:
        """Whether the server says that it changes nothing."""
        return self.annotations is not None and self.annotations.get("readOnlyHint") is True

    def shown(self) -> dict[str, Any]:
        """Its entry in `mcp_list_tools`; clients cannot bear nulls here."""
        found = {"name": self.name, "input_schema": self.schema}
        optional = {"description": self.description, "annotations": self.annotations}
        return found | {key: value for key, value in optional.items() if value is not None}


Listing = tuple[Listed, ...]


async def ask(session: ClientSession, most_bytes: int) -> Listing:
    """All pages of the server's list. Raises `Fault`, and whatever the library raises."""
    found: dict[str, Listed] = {}
    size, cursor = 0, None
    for _ in range(MOST_PAGES):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        for tool in map(_listed, page.tools):
            size += len(msgspec.json.encode(tool.shown()))
            if size > most_bytes:
                raise Fault(TOO_LARGE)
            found.setdefault(tool.name, tool)
        cursor = page.next_cursor
        if not cursor:
            return tuple(found.values())
    raise Fault(f"the server's list of tools has more than {MOST_PAGES} pages")


def _listed(tool: types.Tool) -> Listed:
    notes = tool.annotations
    plain = None if notes is None else notes.model_dump(mode="json", by_alias=True, exclude_none=True)
    return Listed(tool.name, tool.input_schema, tool.description, plain or None)


def redacted(tools: Listing, redact: Callable[[str], str]) -> Listing:
    """The list without secrets that its server may have echoed."""
    return _tools({"tools": msgspec.json.decode(redact(_encoded(tools).decode()))})


def functions(label: str, tools: Listing) -> dict[str, tuple[Function, Listed]]:
    """What the model is shown of the tools, by the functions' names. Raises `InvalidRequest`."""
    found: dict[str, tuple[Function, Listed]] = {}
    for tool in tools:
        name = _ODD.sub("_", f"{label}__{tool.name}")[:LONGEST_NAME]
        if name in found:
            raise InvalidRequest(
                f"Invalid 'tools': two tools of the MCP server '{label}' would both be called '{name}'.", param="tools"
            )
        found[name] = (Function(name, _definition(name, tool)), tool)
    return found


def _definition(name: str, tool: Listed) -> bytes:
    """The same bytes for the same tool: the order of the keys of its schema is the server's."""
    described = {} if tool.description is None else {"description": tool.description}
    return msgspec.json.encode({"type": "function", "name": name, **described, "parameters": tool.schema})


class _Bounded(Generic[Value]):
    """A mapping that forgets what was unused for longest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[tuple[str, str], Value] = OrderedDict()

    def get(self, key: tuple[str, str]) -> Value | None:
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: tuple[str, str], value: Value) -> None:
        self._held[key] = value
        self._held.move_to_end(key)
        if len(self._held) > self._most:
            self._held.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose list is wanted, and what must be in it; None: all that the server has."""

    owner: Owner
    label: str
    url: str
    names: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of an `mcp_list_tools` item that was made here."""

    url: str
    whole: bool
    digest: bytes


class Memory:
    """Lists of servers that show everybody the same; what differs by credentials is never kept."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._lists: _Bounded[tuple[float, Listing]] = _Bounded(MOST_KEPT)
        self._seen: _Bounded[_Seen] = _Bounded(MOST_SEEN)

    def keep(self, wanted: Wanted, tools: Listing) -> None:
        """Remembers what a server answered."""
        if self._seconds and len(_encoded(tools)) <= MOST_KEPT_BYTES:
            self._lists.put((wanted.owner, wanted.url), (self._now(), tools))

    def kept(self, wanted: Wanted) -> Listing | None:
        """What the server answered a short while ago."""
        found = self._lists.get((wanted.owner, wanted.url))
        return found[1] if found is not None and self._now() - found[0] < self._seconds else None

    def shown(self, wanted: Wanted, item_id: str, tools: Listing, *, whole: bool) -> None:
        """Remembers where an item's list came from; the item itself does not say."""
        self._seen.put((wanted.owner, item_id), _Seen(wanted.url, whole, _digest(tools)))

    def in_history(self, wanted: Wanted, items: Sequence[bytes]) -> Listing | None:
        """The newest list of this server in the history, if it was made here and has all that is wanted."""
        for item in map(msgspec.json.decode, reversed(items)):
            if item.get("server_label") == wanted.label:
                return self._trusted(wanted, item)
        return None

    def _trusted(self, wanted: Wanted, item: Mapping[str, Any]) -> Listing | None:
        seen = self._seen.get((wanted.owner, str(item.get("id"))))
        tools = _tools(item)
        if seen is None or seen.url != wanted.url or seen.digest != _digest(tools):
            return None
        enough = seen.whole if wanted.names is None else wanted.names <= {each.name for each in tools}
        return tools if enough else None


def _encoded(tools: Listing) -> bytes:
    return msgspec.json.encode([each.shown() for each in tools])


def _digest(tools: Listing) -> bytes:
    return hashlib.sha256(_encoded(tools)).digest()


def _tools(item: Mapping[str, Any]) -> Listing:
    """The tools of an item; none, where it is not as items are made here."""
    try:
        return tuple(
            Listed(each["name"], each["input_schema"], each.get("description"), each.get("annotations"))
            for each in item["tools"]
        )
    except (KeyError, TypeError, AttributeError):
        return ()
