"""Requests that tools make to servers which others name: nobody must be able to send them into the private network.

A name is resolved once, every address it has is checked, and the connection goes to one of the checked addresses, so
that a second answer of the name server changes nothing. TLS still verifies the name. No redirect is followed, no proxy
variable is honoured, and neither an answer's size nor its duration is without bound.

    callout = Callout(CalloutOptions(allowed_private_origins=("http://search.internal:8080",)))
    answer = await callout.fetch("POST", url, {"content-type": "application/json"}, body)   # Answer(status, …)
    await callout.close()
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import AfterValidator, Field
from yarl import URL

from proxy.config import Model
from proxy.tools._callout_addresses import may_contact

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*\Z")
_NUMBER = re.compile(r"(?:\d+|0x[0-9a-f]*)\Z")
_LONGEST_URL = 8192
_CHUNK = 65_536


class CalloutError(Exception):
    """The request was not made, or not answered. `reason` names no address and no URL."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Refused(CalloutError):
    """The rules forbid it: whoever named the URL is at fault."""


class Unreachable(CalloutError):
    """The server could not be found or reached, or broke off."""


class TooSlow(CalloutError):
    """The server took longer than allowed."""


class TooLarge(CalloutError):
    """The server's answer is larger than allowed."""


def parse(url: str) -> URL:
    """The URL in one spelling. Raises `Refused` for anything that two readers might take for different hosts."""
    if len(url) > _LONGEST_URL or not url.isprintable() or any(each in url for each in " \\#"):
        raise Refused("the URL is too long, or has characters that no URL may have")
    try:
        parsed = URL(url)
        host, port = parsed.host, parsed.port
    except ValueError:
        raise Refused("the URL cannot be understood") from None
    if parsed.scheme not in ("http", "https") or not host or not port:
        raise Refused("the URL must be http or https, with a host")
    if "@" in url.partition("://")[2].partition("/")[0].partition("?")[0]:
        raise Refused("the URL must not hold a user name or password")
    _check_host(parsed.raw_host or "")
    return parsed


def _check_host(host: str) -> None:
    """An address as it is usually written, or a name that cannot be taken for one."""
    if ":" in host or _NUMBER.match(host.rpartition(".")[2]):
        try:
            ip_address(host if "%" not in host else "")
        except ValueError:
            raise Refused("the URL's host is an address in an unusual spelling") from None
    elif not _NAME.match(host):
        raise Refused("the URL's host is not a plain host name")


class Origin(NamedTuple):
    """Scheme, host and port: what an operator can allow."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: URL) -> Origin:
        """The origin of a URL that was parsed here."""
        return cls(url.scheme, url.raw_host or "", url.port or 0)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def _origin(text: str) -> str:
    try:
        url = parse(text)
    except Refused as error:
        raise ValueError(f"must be an origin such as http://host:8080: {error.reason}") from None
    if url.raw_path_qs != "/":
        raise ValueError("must be an origin such as http://host:8080, without a path")
    return text


OriginText = Annotated[str, AfterValidator(_origin)]


class CalloutOptions(Model):
    """Bounds of the requests that a tool makes."""

    allowed_private_origins: tuple[OriginText, ...] = Field(
        (), description="Origins (scheme://host:port) that may have private addresses; cloud metadata stays refused."
    )
    timeout_seconds: float = Field(30, gt=0, le=3600, description="How long a server may take, in all.")
    max_bytes: int = Field(4 * 1024 * 1024, ge=1, le=1 << 30, description="Largest answer.")
    ca_file: Path | None = Field(None, description="PEM file of an authority to trust beside the system's.")


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL, and the checked addresses that its connections go to."""

    url: str = field(repr=False)  # may hold a key
    origin: Origin
    addresses: tuple[str, ...] = field(repr=False)


class Answer(NamedTuple):
    """What a server answered; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def resolve(host: str, port: int) -> Sequence[str]:
    """The system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Callout:
    """Makes requests within the rules. Name resolution can be replaced, for tests."""

    def __init__(self, options: CalloutOptions, resolve: Resolve = resolve) -> None:
        self._options = options
        self._resolve = resolve
        self._allowed = frozenset(Origin.of(parse(each)) for each in options.allowed_private_origins)
        self._places = frozenset(origin[1:] for origin in self._allowed)
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None

    @property
    def tls(self) -> ssl.SSLContext:
        """Verifies certificates, and that they are the named host's."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
            if self._options.ca_file is not None:
                self._tls.load_verify_locations(self._options.ca_file)
        return self._tls

    async def destination(self, url: str, *, private: bool = False) -> Destination:
        """Resolves and checks; `private`: the operator wrote this URL. Raises `Refused`, `Unreachable`."""
        parsed = parse(url)
        origin = Origin.of(parsed)
        addresses = await self._checked(origin.host, origin.port, private or origin in self._allowed)
        return Destination(str(parsed), origin, addresses)

    async def fetch(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """One request, its whole answer; a redirect is an answer like any other. Raises `CalloutError`."""
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                return await self._fetch(
                    method, self._allowed_target(url), {**headers, "accept-encoding": "identity"}, body
                )
        except TimeoutError:
            raise TooSlow("the server did not answer in time") from None
        except (aiohttp.ClientError, OSError):
            raise Unreachable("the server could not be reached, or broke off") from None

    async def close(self) -> None:
        """Closes idle connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _allowed_target(self, url: str) -> URL:
        parsed = parse(url)
        origin = Origin.of(parsed)
        if origin[1:] in self._places and origin not in self._allowed:
            raise Refused("another scheme is allowed for this host and port")
        if _is_address(origin.host) and not may_contact(ip_address(origin.host), private=origin in self._allowed):
            raise Refused("the URL's host has an address that may not be contacted")
        return parsed

    async def _fetch(self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None) -> Answer:
        request = self._client().request(method, url, headers=headers, data=body, allow_redirects=False)
        async with request as response:
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise Unreachable("the server encoded its answer, which it was asked not to do")
            found = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                found += chunk
                if len(found) > self._options.max_bytes:
                    raise TooLarge(f"the server's answer is larger than {self._options.max_bytes} bytes")
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, bytes(found))

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(resolver=_Checked(self._lookup), use_dns_cache=False, ssl=self.tls)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def _lookup(self, host: str, port: int) -> tuple[str, ...]:
        return await self._checked(host, port, (host, port) in self._places)

    async def _checked(self, host: str, port: int, private: bool) -> tuple[str, ...]:
        """The addresses of a host, if it has any, and all of them may be contacted."""
        try:
            found = [host] if _is_address(host) else await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise Unreachable("the server's name could not be resolved") from None
        if not found:
            raise Unreachable("the server's name has no address")
        if not all(_is_address(each) and may_contact(ip_address(each), private=private) for each in found):
            raise Refused("the URL's host has an address that may not be contacted")
        return tuple(dict.fromkeys(found))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class _Checked(AbstractResolver):
    """Makes aiohttp connect to checked addresses."""

    def __init__(self, lookup: Resolve) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [_result(host, address, port) for address in await self._lookup(host, port)]

    async def close(self) -> None:
        """There is nothing to let go of."""


def _result(name: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=name, host=address, port=port, family=family, proto=0, flags=flags)
