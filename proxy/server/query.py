"""The query strings of the endpoints that the store answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from proxy.errors import InvalidRequest, InvalidValue
from proxy.protocol.listing import INCLUDABLE
from proxy.protocol.lookup import storable_id
from proxy.protocol.records import PageQuery

_MAX_LIMIT = 100
_MAX_U64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which page of a list, and which fields beyond the usual ones."""

    page: PageQuery
    include: frozenset[str]


@dataclass(frozen=True, slots=True)
class RetrieveQuery:
    """How a response is wanted: as JSON, or as the stream it was."""

    stream: bool
    starting_after: int | None


def list_query(query: str) -> ListQuery:
    values, include = _parsed(query, {"limit", "order", "after"})
    after = values.get("after")
    if after is not None and not storable_id(after):
        raise unknown_cursor(after)
    return ListQuery(PageQuery(_limit(values.get("limit", "20")), _order(values.get("order", "desc")), after), include)


def include_query(query: str) -> frozenset[str]:
    return _parsed(query, set())[1]


def retrieve_query(query: str) -> RetrieveQuery:
    values, _ = _parsed(query, {"stream", "starting_after", "include_obfuscation"})
    _flag("include_obfuscation", values.get("include_obfuscation", "false"))  # we send as stored: nothing to switch
    stream = _flag("stream", values.get("stream", "false"))
    return RetrieveQuery(stream, _starting_after(values.get("starting_after"), stream))


def unknown_cursor(after: str | None) -> InvalidValue:
    return InvalidValue(f"Invalid 'after': there is no item with id '{after}' in this list.", param="after")


def _parsed(query: str, scalars: set[str]) -> tuple[dict[str, str], frozenset[str]]:
    values: dict[str, str] = {}
    include: set[str] = set()
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in ("include", "include[]"):
            include.add(_includable(value))
        elif key not in scalars:
            raise InvalidRequest(f"Unknown query parameter: '{key}'.", param=key)
        elif key in values:
            raise InvalidRequest(f"Query parameter '{key}' was given more than once.", param=key)
        else:
            values[key] = _given(key, value)
    return values, frozenset(include)


def _given(key: str, value: str) -> str:
    if not value:
        raise InvalidValue(f"Query parameter '{key}' has no value.", param=key)
    return value


def _includable(value: str) -> str:
    if value not in INCLUDABLE:
        allowed = ", ".join(f"'{name}'" for name in INCLUDABLE)
        raise InvalidValue(f"Invalid value: '{value}'. Supported values are: {allowed}.", param="include")
    return value


def _limit(value: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", value) or not 1 <= int(value) <= _MAX_LIMIT:
        raise InvalidValue(
            f"Invalid 'limit': expected an integer from 1 to {_MAX_LIMIT}, but got '{value}'.", param="limit"
        )
    return int(value)


def _order(value: str) -> str:
    if value not in ("asc", "desc"):
        raise InvalidValue(f"Invalid value: '{value}'. Supported values are: 'asc' and 'desc'.", param="order")
    return value


def _flag(key: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidValue(f"Invalid '{key}': expected 'true' or 'false', but got '{value}'.", param=key)
    return value == "true"


def _starting_after(value: str | None, stream: bool) -> int | None:
    if value is None:
        return None
    if not stream:
        raise InvalidRequest("'starting_after' can only be used with 'stream=true'.", param="starting_after")
    if not re.fullmatch("[0-9]{1,20}", value) or int(value) > _MAX_U64:
        raise InvalidValue(
            f"Invalid 'starting_after': expected a sequence number, but got '{value}'.", param="starting_after"
        )
    return int(value)
