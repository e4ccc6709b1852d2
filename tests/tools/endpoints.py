"""A plain HTTP endpoint on loopback that remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

from proxy.protocol.hosting import HostedCall, Kit, Request
from proxy.protocol.records import Owner

Answering = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class Endpoint:
    """Where it is, and what it was asked."""

    url: str = ""
    requests: list[web.BaseRequest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def endpoint(answer: Answering) -> AsyncIterator[Endpoint]:
    """An endpoint that answers so."""
    found = Endpoint()

    async def noted(request: web.BaseRequest) -> web.StreamResponse:
        found.requests.append(request)
        found.bodies.append(await request.read())
        return await answer(request)

    runner = web.ServerRunner(web.Server(noted, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        await runner.cleanup()


def saying(value: Any, status: int = 200) -> Answering:
    """An endpoint that always says the same: text, or JSON."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        text = value if isinstance(value, str) else json.dumps(value)
        return web.Response(status=status, text=text)

    return answer


def kit() -> Kit:
    """What a tool is handed."""
    numbers = count()
    return Kit(lambda prefix: f"{prefix}{next(numbers)}", lambda: 0.0)


def request(*include: str) -> Request:
    """A turn that declares a tool."""
    return Request(Owner("ann"), frozenset(include), {})


def a_call(name: str, arguments: str) -> HostedCall:
    """A call of the model's."""
    return HostedCall("call_1", "item_1", name, arguments)
