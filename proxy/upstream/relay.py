"""An event stream on its way outwards: what nobody has to wait for goes on inside the very call that read it.

A run of deltas is sent by running the chain's `send` at once. Only where that has to wait (a client that does not
read), or where an event wants somebody's attention (most of all the terminal one, which waits for its commit), the
request's own task goes on from there; until it has caught up, nothing else is sent.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import Any

from proxy import errors
from proxy.chain import Send, deltas_of
from proxy.protocol import jsonbytes, sse
from proxy.protocol.events import TERMINAL, Event, Frames
from proxy.protocol.sse import Decoder, FrameTooLarge
from proxy.upstream.connection import Connection

_Parts = Iterator[Frames | Event]


class Relay:
    """One stream; the parts that are not sent yet, and a `send` that has to wait, are kept here for the task."""

    def __init__(self, send: Send, max_frame_bytes: int) -> None:
        self._send = send
        self._deltas = deltas_of(send)
        self._max_frame_bytes = max_frame_bytes
        self._decoder = Decoder(max_frame_bytes)
        self._parts: _Parts = iter(())
        self._waiting: _Rest | None = None
        self._error: BaseException | None = None
        self._over = False

    async def run(self, connection: Connection) -> None:
        """Relays the whole stream. Raises `StreamCut` where it ends without a terminal event."""
        try:
            await self._run(connection)
        finally:
            if self._waiting is not None:  # its task was interrupted before it could go on from there
                self._waiting.close()

    async def _run(self, connection: Connection) -> None:
        try:
            while await connection.pump(self._take):
                await self._catch_up()
            self._parts = iter(self._decoder.end())
            await self._catch_up()
        except FrameTooLarge:
            raise errors.UpstreamProtocol(
                f"One event of the backend is larger than {self._max_frame_bytes} bytes."
            ) from None
        except jsonbytes.NotJSON as error:
            # Raised by whoever looked into an event on its way out.
            raise errors.UpstreamProtocol(f"An event of the backend could not be understood: {error}") from error
        except errors.StreamCut:
            if not self._over:
                raise
        if not self._over:
            raise errors.StreamCut()
        if self._decoder.rest():
            await self._send(sse.event(self._decoder.rest()))

    def _take(self, data: bytes) -> bool:
        """Sends on what nobody has to wait for; whether that was everything. Errors are the task's to raise."""
        try:
            if self._decoder.is_run(data):  # what nearly every read is, once the text has begun
                rest = self._deltas(data)
                return rest is None or self._begun(rest)
            return self._pass(self._decoder.feed(data)) and not self._decoder.too_large
        except Exception as error:  # noqa: BLE001  # raised again by the task
            self._error = error
            return False

    def _pass(self, parts: list[Frames | Event]) -> bool:
        for done, part in enumerate(parts):
            if isinstance(part, Event):
                self._parts = iter(parts[done:])
                return False
            rest = self._deltas(part.raw)
            if rest is not None and not self._begun(rest):
                self._parts = iter(parts[done + 1 :])
                return False
        return True

    def _begun(self, rest: Coroutine[Any, Any, None]) -> bool:
        """Runs a coroutine as far as it goes; whether that was to its end."""
        try:
            waits_for = rest.send(None)
        except StopIteration:
            return True
        self._waiting = _Rest(rest, waits_for)
        return False

    async def _catch_up(self) -> None:
        if self._error is not None:
            raise self._error
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            await waiting
        for part in self._parts:
            await self._send(part)
            self._over = self._over or (isinstance(part, Event) and part.type in TERMINAL)
        if self._decoder.too_large:
            raise FrameTooLarge


class _Rest:
    """A coroutine under way, with what it waits for: `await` goes on where it stopped."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def close(self) -> None:
        """Ends it where it stopped."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    heard = yield waits_for
                except GeneratorExit:
                    self._coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001  # it is the coroutine's
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(heard)
            except StopIteration:
                return
