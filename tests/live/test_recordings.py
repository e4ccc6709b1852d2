"""The recordings that the scripted backend is built on still say what the real vLLM says."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests import cassettes
from tests.live.record import exchange


@pytest.mark.parametrize("name", [name for name in cassettes.names() if name.startswith("error_")])
async def test_refusals(backend_url: str, name: str) -> None:
    recorded = cassettes.load(name)
    url = urlsplit(backend_url)
    answer = await exchange(url.hostname or "", url.port or 80, recorded.request_head + recorded.request_body)
    assert answer.head.split(b"\r\n")[0] == recorded.response_head.split(b"\r\n")[0]
    assert (b"".join(answer.chunks), answer.ended) == (recorded.body, recorded.ended)
