"""A listening socket, and the connections that came through it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from proxy.server.connection import Connection, Handler

_BACKLOG = 1024
_FLUSH_SECONDS = 0.02  # between two looks at what is not sent yet


class Server:
    """Listens on one address; `close` lets what is in flight be finished."""

    def __init__(self, answer: Handler, refuse: Callable[[str], bytes]) -> None:
        self._answer = answer
        self._refuse = refuse
        self._open: set[Connection] = set()
        self._socket: asyncio.Server | None = None

    async def listen(self, address: str, *, tls: ssl.SSLContext | None, shared: bool) -> None:
        """Begins to accept connections; `shared`: other processes do so at the same address. Raises `OSError`."""
        host, _, port = address.rpartition(":")
        self._socket = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._answer, self._refuse, self._open),
            host.strip("[]"),
            int(port),
            ssl=tls,
            reuse_port=shared,
            backlog=_BACKLOG,
        )

    async def close(self, grace: float) -> None:
        """Accepts no more, waits up to `grace` seconds for the requests in flight, and ends those that are left."""
        if self._socket is not None:
            self._socket.close()
        for each in list(self._open):
            each.close_soon()
        await self._quiet(grace)
        for each in list(self._open):
            each.cancel()
        await self._quiet(1.0)
        for each in list(self._open):
            if each.transport is not None:
                each.transport.abort()

    async def _quiet(self, patience: float) -> None:
        """Waits for the tasks to end, and for the clients to take what was written."""
        until = asyncio.get_running_loop().time() + patience
        tasks = [task for task in (each.task for each in self._open) if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        while any(each.unsent for each in self._open) and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_FLUSH_SECONDS)
