"""A scripted backend: it records every request verbatim, and answers as vLLM 0.32 does unless told otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from types import TracebackType

from tests.backend import faults, vllm
from tests.backend.wire import Exchange, Received, Script

HEAD_LIMIT = 1 << 20


class Connection(asyncio.StreamReaderProtocol):
    """Tells at once when the client has gone, also while an answer is being written."""

    current: Received | None = None
    running: asyncio.Task[None] | None = None

    def eof_received(self) -> bool | None:
        self._client_gone()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_gone()
        super().connection_lost(exc)

    def _client_gone(self) -> None:
        request = self.current
        if request is None or request.answered or request.gone.is_set():
            return
        request.gone_at = asyncio.get_running_loop().time()
        request.gone.set()
        if self.running is not None:
            self.running.cancel()


class ScriptedVLLM:
    """`async with ScriptedVLLM() as backend:` then `backend.url`, `backend.requests`, `backend.script(...)`."""

    def __init__(
        self, *, keep_alive: float = 5.0, token_seconds: float = 0.0, model: str = "smollm2", max_model_len: int = 4096
    ) -> None:
        self.keep_alive = keep_alive
        self.engine = vllm.Engine(model=model, max_model_len=max_model_len, token_seconds=token_seconds)
        self.requests: list[Received] = []
        self.arrived = asyncio.Condition()
        self._scripts: deque[Script] = deque()
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None, "not started"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def turns(self) -> list[Received]:
        """The generations asked for, without probes."""
        return [request for request in self.requests if request.method == "POST" and "/responses" in request.path]

    def script(self, *scripts: Script) -> None:
        """The next POSTs are answered by these, one each, in order; afterwards as usual."""
        self._scripts.extend(scripts)

    async def received(self, count: int) -> Received:
        """Waits until `count` generations have been asked for and returns the last of them."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.turns) >= count)
        return self.turns[count - 1]

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, "127.0.0.1", port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> ScriptedVLLM:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    def _connection(self) -> Connection:
        reader = asyncio.StreamReader(limit=HEAD_LIMIT)

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(protocol, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        protocol = Connection(reader, connected)
        return protocol

    async def _serve(self, protocol: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._numbers)
        writer.transport.set_write_buffer_limits(high=65536)
        try:
            for count in itertools.count():
                request = await self._read(reader, number, reused=count > 0)
                if request is None or not await self._answer(protocol, request, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _read(self, reader: asyncio.StreamReader, number: int, *, reused: bool) -> Received | None:
        try:
            async with asyncio.timeout(self.keep_alive if reused else None):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return None
        request = Received(head, b"", number, reused)
        request.body = await read_body(reader, request)
        self.requests.append(request)
        async with self.arrived:
            self.arrived.notify_all()
        return request

    async def _answer(self, protocol: Connection, request: Received, writer: asyncio.StreamWriter) -> bool:
        """Runs the script for this request in a task that a client's departure cancels, as vLLM's is."""
        exchange = Exchange(request, writer, self.engine.answer)
        script = self._script_for(request)
        protocol.current = request
        protocol.running = task = asyncio.ensure_future(script(exchange))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled() or request.gone.is_set():
            return False
        task.result()
        request.answered = True
        return exchange.keep_alive

    def _script_for(self, request: Received) -> Script:
        if (named := request.header("x-script")) is not None:
            return faults.named(named)
        if self._scripts and request in self.turns:
            return self._scripts.popleft()
        return self.engine.answer


async def read_body(reader: asyncio.StreamReader, request: Received) -> bytes:
    if request.header("transfer-encoding") != "chunked":
        return await reader.readexactly(int(request.header("content-length") or 0))
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)
