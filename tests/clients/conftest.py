"""Here a scripted backend stands behind the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.fixtures import async_client, client, gateway, gateway_url, model
from tests.clients.gateway import running_scripted_backend

__all__ = ["async_client", "client", "gateway", "gateway_url", "model"]
pytest.register_assert_rewrite("tests.clients.openai_suite", "tests.clients.state_suite", "tests.clients.agents_suite")


@pytest.fixture(scope="session")
def backend_url() -> Iterator[str]:
    with running_scripted_backend("--token-seconds", "0.01") as url:  # the pace makes long streams last
        yield url
