"""A session with an MCP server: opened once in a turn, used by all of the turn's calls.

The library's contexts must be entered and left by one task, so each session has a task of its own. Calls run in tasks
of the session too: a caller that is cancelled, or has waited long enough, leaves at once, whatever the library would
still like to tell the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import ValidationError

from proxy.tools import _mcp_http as http
from proxy.tools._mcp_http import Fault, Link

Result = TypeVar("Result")
Streams = AbstractAsyncContextManager[tuple[Any, Any]]

GOODBYE_SECONDS = 1.0  # for telling the server that a session is over
MOST_OF_A_MESSAGE = 2000
CLOSED = "the connection to the server was closed"
FORGOTTEN = 404  # a server that restarted; the specification has a client begin anew
LIBRARY_SAYS_CLOSED = "Connection closed"
LIBRARY_SAYS_TOO_LARGE = "Server-sent event exceeded"
OLDER_TRANSPORT = (400, 404, 405)  # the answers to a POST after which the MCP specification has a client try SSE


class Sessions:
    """The one owner of the sessions' tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, link: Link) -> Session:
        """A session that begins to connect."""
        return Session(link, self._start)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Waits until all have said goodbye, or have had the time to."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=2 * GOODBYE_SECONDS)
            for task in late:
                task.cancel()


class Session:
    """One session; `alive` until the connection or the server fails."""

    def __init__(self, link: Link, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._link = link
        self._start = start
        self._scope = anyio.CancelScope()
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._fault: Fault | None = None
        self._owner = start(self._own())
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        """Whether another call may be tried."""
        return self._fault is None and not self._owner.done() and not self._stop.is_set()

    async def ask(self, work: Callable[[ClientSession], Awaitable[Result]], seconds: float) -> Result:
        """Runs `work` on the session once it is open. Raises `Fault`."""
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        call = self._start(self._work(work, outcome))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        call.add_done_callback(lambda _: _fail(outcome, self._fault or Fault(CLOSED)))
        try:
            async with asyncio.timeout(seconds):
                return await outcome
        except TimeoutError:
            call.cancel()  # not waited for: it may take long to tell a silent server
            raise Fault(f"the server did not answer within {seconds:g} seconds", types.REQUEST_TIMEOUT) from None
        except asyncio.CancelledError:
            self.abort()
            raise

    async def close(self) -> None:
        """Ends the session: at once where something is still open, else after telling the server."""
        busy = any(not call.done() for call in self._calls)
        if busy or not self.alive or not self._ready.done():
            self.abort()
            await asyncio.wait({self._owner, *self._calls}, timeout=GOODBYE_SECONDS / 10)
            return
        self._scope.deadline = anyio.current_time() + GOODBYE_SECONDS
        self._stop.set()

    def abort(self) -> None:
        """Cuts the connection."""
        self._stop.set()
        self._scope.cancel()
        for call in self._calls:
            call.cancel()

    async def _work(self, work: Callable[[ClientSession], Awaitable[Result]], outcome: asyncio.Future[Result]) -> None:
        try:
            result = await work(await asyncio.shield(self._ready))
        except Exception as error:  # noqa: BLE001 - the library raises as it likes; whatever it is, the server failed
            fault = fault_of(error)
            _fail(outcome, self._fault or fault)
            if fault.message == CLOSED or fault.error["code"] == FORGOTTEN:
                self._lost(fault)
        else:
            if not outcome.done():
                outcome.set_result(result)

    async def _own(self) -> None:
        fault = Fault(CLOSED)
        try:
            with self._scope:
                await self._connect()
        except Exception as error:  # noqa: BLE001 - as above; told to whoever waits for the session
            fault = fault_of(error)
        finally:
            self._fault = self._fault or fault
            _fail(self._ready, self._fault)

    async def _connect(self) -> None:
        if not urlsplit(self._link.destination.url).path.rstrip("/").endswith("/sse"):
            try:
                async with http.client(self._link, streamable=True) as client:
                    return await self._serve(self._streamable(client))
            except Exception as error:
                if self._ready.done() or fault_of(error).error["code"] not in OLDER_TRANSPORT:
                    raise
        return await self._serve(self._sse())

    async def _serve(self, streams: Streams) -> None:
        me = types.Implementation(name="rejoinder", version="1")
        async with streams as (read, write), ClientSession(read, write, client_info=me) as session:
            await _shake_hands(session)
            self._ready.set_result(session)
            await self._stop.wait()

    def _streamable(self, client: Any) -> Streams:
        url, most = self._link.destination.url, self._link.max_bytes
        return streamable_http_client(url, http_client=client, max_sse_event_size=most)

    def _sse(self) -> Streams:
        def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
            return http.client(self._link, streamable=False, on_fault=self._lost)

        return sse_client(self._link.destination.url, httpx_client_factory=client)

    def _lost(self, fault: Fault) -> None:
        """With SSE the library never hears of a request that failed; its callers would wait until they time out."""
        self._fault = self._fault or fault
        self._scope.cancel()


def _fail(outcome: asyncio.Future[Any], fault: Fault) -> None:
    if not outcome.done():
        outcome.set_exception(fault)
        outcome.exception()  # nobody may be left to ask for it


async def _shake_hands(session: ClientSession) -> None:
    """Most servers know `initialize`; a server that knows only the protocol after it says so."""
    try:
        await session.initialize()
    except MCPError as error:
        if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()


def fault_of(error: BaseException) -> Fault:
    """What to say of an exception; nothing that it says itself, unless a server wrote it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Fault):
        return error
    if isinstance(error, MCPError):
        return _told(error)
    if isinstance(error, ValidationError):
        return Fault("the server's answer is not what the protocol asks for", types.PARSE_ERROR)
    if LIBRARY_SAYS_TOO_LARGE in str(error):
        return Fault(http.TOO_LARGE)
    return Fault("the connection to the server failed")


def _told(error: MCPError) -> Fault:
    if error.message == LIBRARY_SAYS_CLOSED:
        return Fault(CLOSED)
    if http.TOO_LARGE in error.message or LIBRARY_SAYS_TOO_LARGE in error.message:
        return Fault(http.TOO_LARGE)
    if http.BROKE_OFF in error.message:
        return Fault(http.BROKE_OFF)
    if error.code == types.PARSE_ERROR:  # the library quotes the answer
        return Fault("the server's answer is not JSON-RPC", types.PARSE_ERROR)
    return http.fault_in(error.data) or Fault(error.message[:MOST_OF_A_MESSAGE], error.code)
