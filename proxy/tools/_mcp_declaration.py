"""What a request's `{"type": "mcp", …}` asks for: read strictly, since it decides whom the gateway talks to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec
from pydantic import Field, SecretStr, field_validator

from proxy.config import Model
from proxy.errors import InvalidRequest
from proxy.protocol.records import Owner
from proxy.tools._callout import Refused, parse
from proxy.tools._mcp_listing import Listed

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,8192}\Z")
_NOT_THEIRS = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "expect", "host", "content-length"),  # of the connection
        *("accept", "accept-encoding", "content-encoding", "content-type", "last-event-id", "user-agent"),
        *("traceparent", "tracestate", "baggage"),
    }
)
_SHORTEST_SECRET = 6  # a shorter one would be found in innocent words

Applies = Callable[[Listed], bool]


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is meant, and what it is shown; never part of a message or a log line."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    connector: str | None = None

    @property
    def shareable(self) -> bool:
        """Whether its list of tools may be kept: it does not depend on who asks."""
        return self.connector is None and not self.headers

    def fingerprint(self, owner: Owner) -> str:
        """What an approval is bound to."""
        authorization = self.headers.get("authorization")
        headers = sorted(item for item in self.headers.items() if item[0] != "authorization")
        parts = [self.url, authorization, self.connector, headers, owner]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()

    def redact(self, text: str) -> str:
        """The text without the secrets, which a server may have echoed."""
        for value in self.headers.values():
            for secret in (value, value.partition(" ")[2]):
                if len(secret) >= _SHORTEST_SECRET:
                    text = text.replace(secret, "[redacted]")
        return text


class Connector(Model):
    """A server that requests name by its id."""

    server_url: str = Field(description="Where it is. Its origin may be private, since you wrote it.")
    authorization: SecretStr | None = Field(None, description="A bearer token. Use ${VARIABLE} or file:/path.")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="More headers that it is sent.")

    @field_validator("server_url")
    @classmethod
    def _url(cls, url: str) -> str:
        try:
            parse(url)
        except Refused as error:
            raise ValueError(error.reason) from None
        return url

    @field_validator("headers")
    @classmethod
    def _headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not is_header(name, value.get_secret_value()):
                raise ValueError(f"an MCP server cannot be given the header '{name}', or not with this value")
        return headers


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declaration, checked."""

    label: str
    target: Target
    names: frozenset[str] | None  # None: all
    allows: Applies
    needs_approval: Applies


def read(declaration: Mapping[str, Any], connectors: Mapping[str, Connector]) -> Declaration | None:
    """None: it names no server that could be asked. Raises `InvalidRequest`."""
    url, connector = declaration.get("server_url"), declaration.get("connector_id")
    if url is None and connector is None:
        return None
    label = declaration.get("server_label")
    if not isinstance(label, str) or not _LABEL.match(label):
        _refuse("'server_label' must be 1 to 64 letters, digits, '_' or '-'")
    if url is not None and connector is not None:
        _refuse(f"the MCP server '{label}' has both 'server_url' and 'connector_id'; use one of them")
    names, allows = _allowed(declaration.get("allowed_tools"), label)
    target = _server(label, declaration) if connector is None else _connector(label, declaration, connectors)
    return Declaration(label, target, names, allows, _approval(declaration.get("require_approval")))


def _refuse(message: str) -> NoReturn:
    raise InvalidRequest(f"Invalid 'tools': {message}.", param="tools")


def _server(label: str, declaration: Mapping[str, Any]) -> Target:
    url = declaration["server_url"]
    if not isinstance(url, str):
        _refuse(f"the 'server_url' of the MCP server '{label}' must be a string")
    headers = _headers(declaration.get("headers"), label)
    authorization = _authorization(declaration, label)
    if authorization is not None:
        if "authorization" in headers:
            _refuse(f"the MCP server '{label}' has 'authorization' twice")
        headers["authorization"] = authorization
    return Target(url, headers)


def _connector(label: str, declaration: Mapping[str, Any], connectors: Mapping[str, Connector]) -> Target:
    name = declaration["connector_id"]
    known = connectors.get(name) if isinstance(name, str) else None
    if known is None:
        _refuse(f"the connector of the MCP server '{label}' is not known here")
    if declaration.get("headers"):
        _refuse(f"'headers' of the connector '{name}' are its configuration's")
    headers = {key.lower(): value.get_secret_value().strip() for key, value in known.headers.items()}
    authorization = _authorization(declaration, label)
    if authorization is not None and (known.authorization is not None or "authorization" in headers):
        _refuse(f"'authorization' of the connector '{name}' is its configuration's")
    if known.authorization is not None:
        authorization = _bearer(known.authorization.get_secret_value())
    return Target(
        known.server_url, headers if authorization is None else {**headers, "authorization": authorization}, name
    )


def _authorization(declaration: Mapping[str, Any], label: str) -> str | None:
    value = declaration.get("authorization")
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or not _VALUE.match(value):
        _refuse(f"'authorization' of the MCP server '{label}' must be a token")
    return _bearer(value.strip())


def _bearer(token: str) -> str:
    return token if token.lower().startswith("bearer ") else f"Bearer {token}"


def is_header(name: object, value: object) -> bool:
    """Whether a request to an MCP server may be given this header."""
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    lower = name.lower()
    return (
        bool(_TOKEN.match(name) and _VALUE.match(value)) and lower not in _NOT_THEIRS and not lower.startswith("mcp-")
    )


def _headers(headers: object, label: str) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        _refuse(f"'headers' of the MCP server '{label}' must be an object")
    for name, value in headers.items():
        if not is_header(name, value):
            _refuse(f"the MCP server '{label}' cannot be given the header '{str(name)[:128]}', or not with this value")
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    if len(lower) != len(headers):
        _refuse(f"'headers' of the MCP server '{label}' name one header twice")
    return lower


def _allowed(allowed: object, label: str) -> tuple[frozenset[str] | None, Applies]:
    if allowed is None:
        return None, lambda _: True
    asked = {"tool_names": allowed} if isinstance(allowed, list) else allowed
    if not isinstance(asked, Mapping) or not _is_filter(asked):
        what = "a list of names, or an object of 'tool_names' and 'read_only'"
        _refuse(f"'allowed_tools' of the MCP server '{label}' must be {what}")
    names = asked.get("tool_names")
    return None if names is None else frozenset(names), lambda tool: _matches(asked, tool, empty=True)


def _is_filter(asked: Mapping[str, Any]) -> bool:
    names, read_only = asked.get("tool_names"), asked.get("read_only")
    named = names is None or (isinstance(names, list) and all(isinstance(each, str) for each in names))
    return named and (read_only is None or isinstance(read_only, bool)) and asked.keys() <= {"tool_names", "read_only"}


def _matches(asked: Mapping[str, Any], tool: Listed, *, empty: bool) -> bool:
    names, read_only = asked.get("tool_names"), asked.get("read_only")
    if names is None and read_only is None:
        return empty
    return (names is None or tool.name in names) and (read_only is None or tool.read_only is read_only)


def _approval(asked: object) -> Applies:
    """Whatever is not clearly waived needs a person."""
    if asked == "never":
        return lambda _: False
    if not isinstance(asked, Mapping) or not asked.keys() <= {"always", "never"}:
        return lambda _: True
    always, never = asked.get("always"), asked.get("never")
    if not isinstance(never, Mapping) or not _is_filter(never):
        return lambda _: True
    if always is not None and not (isinstance(always, Mapping) and _is_filter(always)):
        return lambda _: True
    gated: Mapping[str, Any] = always if isinstance(always, Mapping) else {}
    return lambda tool: _matches(gated, tool, empty=False) or not _matches(never, tool, empty=False)
