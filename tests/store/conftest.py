"""Stores for the contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from proxy.store._sql import SqlStore
from tests.store.records import OpenStore, connect


@pytest_asyncio.fixture
async def store(store_url: str) -> AsyncIterator[SqlStore]:
    """An open store over an empty database."""
    opened = await connect(store_url)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def open_store(store_url: str) -> AsyncIterator[OpenStore]:
    """Opens as many stores over the test's database as it wants."""
    opened: list[SqlStore] = []

    async def another(**options: object) -> SqlStore:
        opened.append(await connect(store_url, **options))
        return opened[-1]

    yield another
    for one in opened:
        await one.close()
