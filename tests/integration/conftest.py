"""A scripted backend, and a gateway in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.backend import ScriptedVLLM
from tests.integration.gateway import Gateway, running


@pytest.fixture
async def backend() -> AsyncIterator[ScriptedVLLM]:
    async with ScriptedVLLM() as server:
        yield server


@pytest.fixture
async def gateway(backend: ScriptedVLLM, sqlite_url: str) -> AsyncIterator[Gateway]:
    async with running(backend, sqlite_url) as started:
        yield started


@pytest.fixture
async def both(backend: ScriptedVLLM, store_url: str) -> AsyncIterator[Gateway]:
    """The gateway over each kind of store in turn."""
    async with running(backend, store_url) as started:
        yield started
