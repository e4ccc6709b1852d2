"""The gateway is asked to stop while requests are in flight."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from proxy import app
from tests.backend import ScriptedVLLM, faults
from tests.integration.gateway import running

JSON = ((b"Content-Type", b"application/json"),)
STREAM = b'{"model":"smollm2","input":"count to 9","stream":true}'


async def test_a_stream_in_flight_is_finished_and_kept(backend: ScriptedVLLM, sqlite_url: str) -> None:
    gate = asyncio.Event()
    backend.script(faults.pause_after(6, gate))
    stack = AsyncExitStack()
    gateway = await stack.enter_async_context(running(backend, sqlite_url))
    async with gateway.client() as client, asyncio.TaskGroup() as tasks:
        await client.send("POST", "/v1/responses", STREAM, JSON)
        await client.until(b"response.created")
        tasks.create_task(stack.aclose())
        await refused(gateway.port)
        gate.set()
        answer = await client.answer()
    assert answer.final["type"] == "response.completed"
    async with running(backend, sqlite_url) as again:
        kept = await again.ask("GET", f"/v1/responses/{answer.final['response']['id']}")
    assert kept.json == answer.final["response"]


async def test_what_does_not_end_is_cut_when_the_grace_is_over(
    backend: ScriptedVLLM, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_GRACE", 1.0)
    backend.script(faults.hang)
    stack = AsyncExitStack()
    gateway = await stack.enter_async_context(running(backend, sqlite_url))
    async with gateway.client() as client:
        await client.send("POST", "/v1/responses", STREAM, JSON)
        request = await backend.received(1)
        async with asyncio.timeout(1.9):
            await stack.aclose()
        assert await client.rest() == b""
    await asyncio.wait_for(request.gone.wait(), 5)


async def refused(port: int) -> None:
    """Returns when nobody listens any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return
        writer.transport.abort()
        await asyncio.sleep(0.01)
