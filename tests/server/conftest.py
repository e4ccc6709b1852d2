from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.server.asking import Asking, asking


@pytest_asyncio.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Asking]:
    async with asking(tmp_path) as it:
        yield it
