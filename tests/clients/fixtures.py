"""What every client suite is handed; `backend_url` comes from the folder that runs the suite."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from tests.clients.gateway import Gateway, running_gateway


@pytest.fixture(scope="session")
def gateway(backend_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(backend_url, tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def gateway_url(gateway: Gateway) -> str:
    return gateway.url


@pytest.fixture(scope="session")
def model(backend_url: str) -> str:
    with urllib.request.urlopen(f"{backend_url}/v1/models", timeout=10) as answer:
        return str(json.load(answer)["data"][0]["id"])


@pytest.fixture(scope="session")
def client(gateway_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway_url}/v1", api_key="test", max_retries=0, timeout=120) as client:
        yield client


@pytest_asyncio.fixture
async def async_client(gateway_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key="test", max_retries=0, timeout=120) as client:
        yield client
