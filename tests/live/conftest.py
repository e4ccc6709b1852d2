"""Here a real vLLM stands behind the gateway: $REJOINDER_TEST_BACKEND, or one that is installed and started."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from proxy.demo import vllm
from tests.clients.fixtures import async_client, client, gateway, gateway_url, model
from tests.live.progress import say

__all__ = ["async_client", "client", "gateway", "gateway_url", "model"]
pytest.register_assert_rewrite("tests.clients.openai_suite", "tests.clients.state_suite", "tests.clients.agents_suite")


@pytest.fixture(scope="session")
def backend_url() -> Iterator[str]:
    if given := os.environ.get("REJOINDER_TEST_BACKEND"):
        yield given.rstrip("/")
        return
    server = vllm.start(vllm.install(vllm.default_home(), say), say)
    try:
        yield server.url
    finally:
        server.stop()
