"""HTTP as the MCP library may have it: to checked addresses alone, without redirects, each answer bounded.

A fault of the server becomes an answer that holds a JSON-RPC error. An exception here would tear down the library's
whole session, and with it the calls beside the one that failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

import httpcore2
import httpx2
import msgspec

from proxy.tools._callout import Destination

TOO_LARGE = "the server's answer is too large"
BROKE_OFF = "the server broke off its answer"
CONNECTION_CLOSED = -32000
MOST_OF_AN_ERROR = 65_536


class Fault(Exception):
    """Why a server did not do as asked. `error` is how OpenAI's `mcp_call` spells it."""

    def __init__(self, message: str, code: int = CONNECTION_CLOSED, kind: str = "mcp_protocol_error") -> None:
        self.message = message
        self.error = {"type": kind, "code": code, "message": message}
        super().__init__(message)


def http_fault(status: int) -> Fault:
    """The server answered with an error of HTTP."""
    return Fault(f"the server answered with HTTP status {status}", status, "http_error")


@dataclass(frozen=True, slots=True)
class Link:
    """How one server is reached."""

    destination: Destination
    headers: Mapping[str, str] = field(repr=False)
    tls: SSLContext = field(repr=False)
    max_bytes: int
    connect_seconds: float


def client(link: Link, *, streamable: bool, on_fault: Callable[[Fault], None] = lambda _: None) -> httpx2.AsyncClient:
    """A client that reaches this one server. `on_fault` hears of every request that failed."""
    return httpx2.AsyncClient(
        transport=_Transport(link, streamable, on_fault),
        headers={"accept-encoding": "identity", "user-agent": "rejoinder", **link.headers},
        timeout=httpx2.Timeout(None, connect=link.connect_seconds),
        trust_env=False,
        follow_redirects=False,
    )


class _Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses that were checked, whatever a name means by now."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        if (host.strip("[]"), port) != self._destination.origin[1:]:
            raise httpcore2.ConnectError("not the server that was checked")
        failed: Exception = httpcore2.ConnectError("no address")
        for address in self._destination.addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def connect_unix_socket(self, *_: object, **__: object) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("no sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, link: Link, streamable: bool, on_fault: Callable[[Fault], None]) -> None:
        self._streamable = streamable
        self._on_fault = on_fault
        self._max_bytes = link.max_bytes
        backend = _Pinned(link.destination)
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=link.tls, network_backend=backend)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._streamable and request.method == "GET" and "last-event-id" not in request.headers:
            return httpx2.Response(405)  # nothing that a server says unasked is of use; saves a connection per turn
        try:
            return await self._exchange(request)
        except Fault as fault:
            self._on_fault(fault)
            return _answer(502, fault)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _exchange(self, request: httpx2.Request) -> httpx2.Response:
        try:
            answer = await self._pool.handle_async_request(_lowered(request))
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError):
            raise Fault("the server could not be reached") from None
        headers = httpx2.Headers(answer.headers)
        if 300 <= answer.status < 400 or headers.get("content-encoding", "identity").lower() != "identity":
            await answer.aclose()
            what = "with a redirect, which is not followed" if answer.status >= 300 else "in an encoding"
            raise Fault(f"the server answered {what}", answer.status, "http_error")
        if answer.status >= 400:
            return await self._failed(answer)
        streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
        # The library bounds each event of a stream; the whole of a stream is bounded by time.
        body = _Body(answer, None if streamed else self._max_bytes)
        return httpx2.Response(answer.status, headers=headers, stream=body, extensions=answer.extensions)

    async def _failed(self, answer: httpcore2.Response) -> httpx2.Response:
        """The server's own JSON-RPC error, if the answer is one; else one that tells the status."""
        try:
            body = b"".join([part async for part in _Body(answer, MOST_OF_AN_ERROR)])
        except httpx2.StreamError:
            body = b""
        finally:
            await answer.aclose()
        fault = http_fault(answer.status)
        self._on_fault(fault)
        if _is_rpc_error(body):
            return httpx2.Response(answer.status, headers={"content-type": "application/json"}, content=body)
        return _answer(answer.status, fault)


def _lowered(request: httpx2.Request) -> httpcore2.Request:
    url = request.url
    return httpcore2.Request(
        method=request.method,
        url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


def _answer(status: int, fault: Fault) -> httpx2.Response:
    error = {"code": CONNECTION_CLOSED, "message": fault.message, "data": {"fault": fault.error}}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=body)


def _is_rpc_error(body: bytes) -> bool:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    return isinstance(found, dict) and isinstance(found.get("error"), dict)


class _Body(httpx2.AsyncByteStream):
    """An answer's bytes, up to a limit; what goes wrong is told in a way that the library can bear."""

    def __init__(self, answer: httpcore2.Response, most: int | None) -> None:
        self._answer = answer
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        found = 0
        try:
            async for part in self._answer.aiter_stream():
                found += len(part)
                if self._most is not None and found > self._most:
                    raise httpx2.StreamError(TOO_LARGE)
                yield part
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException):
            raise httpx2.StreamError(BROKE_OFF) from None

    async def aclose(self) -> None:
        await self._answer.aclose()


def fault_in(data: Any) -> Fault | None:
    """The fault that an error of JSON-RPC made here carries."""
    match data:
        case {
            "fault": {"type": "http_error" | "mcp_protocol_error" as kind, "code": int(code), "message": str(message)}
        }:
            return Fault(message, code, kind)
    return None
