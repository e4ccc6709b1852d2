"""What filters are handed in their tests: the real services, over a real SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from proxy.services import Services
from proxy.store import sqlite

NOW = 1_700_000_000.0


@pytest.fixture
def closed(sqlite_url: str) -> Services:
    """Services whose store was never opened, for filters that must not ask it."""
    return Services(sqlite.create(sqlite_url), {})


@pytest_asyncio.fixture
async def services(sqlite_url: str) -> AsyncIterator[Services]:
    """Services over an empty store; ids are counted, the clock stands still."""
    numbers = count(1)
    store = sqlite.create(sqlite_url)
    await store.open()
    made = Services(store, {}, now=lambda: NOW, new_id=lambda prefix: f"{prefix}{next(numbers)}")
    yield made
    await made.background.close()
    await store.close()
