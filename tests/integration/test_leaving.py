"""A client that asks for more before it is answered, and leaves: the backend learns of it all the same."""

from __future__ import annotations

import asyncio

import pytest

from tests.backend import Exchange, faults
from tests.integration.gateway import Gateway

BODY = b'{"model":"smollm2","input":"count to 9","stream":true}'
ASK = b"POST /v1/responses HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)


@pytest.mark.parametrize(("answered", "waiting"), [(0, 0), (1, 0), (0, 1), (2, 3)])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_asked_for_more_and_leaves_stops_the_backend(
    gateway: Gateway, answered: int, waiting: int, stream: bool
) -> None:
    gateway.backend.script(*[usual] * answered, faults.pause_after(4) if stream else faults.hang)
    async with gateway.client() as client:
        client.writer.write((ASK + BODY) * (answered + 1 + waiting))
        request = await gateway.backend.received(answered + 1)
        if stream:
            await client.until(b"response.in_progress")
    await asyncio.wait_for(request.gone.wait(), 5)


async def usual(exchange: Exchange) -> None:
    await exchange.as_usual()
