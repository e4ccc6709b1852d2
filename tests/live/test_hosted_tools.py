"""Two rounds over a real engine: it calls the gateway's tool because it must, and answers with what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from proxy.config import DEFAULT_CHAIN
from tests.clients.gateway import running_gateway

TOOL: Any = {"type": "file_search", "vector_store_ids": ["house"]}


@pytest.fixture(scope="module")
def searching(backend_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder: Path = tmp_path_factory.mktemp("hosted")
    (folder / "files").mkdir()
    (folder / "files" / "guide.md").write_text("# Guide\n\nThe password of the cellar is plum.\n")
    tools = {"file_search": {"folders": {"house": str(folder / "files")}}}
    chain = [{"filter": name, **({"tools": tools} if name == "agentic_loop" else {})} for name in DEFAULT_CHAIN]
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"chains": {"default": chain}}))
    with (
        running_gateway(backend_url, folder, config) as gateway,
        OpenAI(base_url=f"{gateway.url}/v1", api_key="test", max_retries=0, timeout=120) as client,
    ):
        yield client


def test_two_streamed_rounds_are_one_response_that_continues(searching: OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "temperature": 0, "max_output_tokens": 300}
    fields["instructions"] = "You answer in one short sentence."
    question = "What is the password of the cellar?"
    with searching.responses.stream(input=question, tools=[TOOL], tool_choice="required", **fields) as stream:
        events = list(stream)
        response = stream.get_final_response()
    kinds = [event.type for event in events]
    searched = kinds.index("response.file_search_call.completed")
    assert searched < kinds.index("response.output_text.delta")
    numbers = [event.sequence_number for event in events if event.type != "keepalive"]
    assert numbers == list(range(len(numbers)))
    assert [item.type for item in response.output] == ["file_search_call", "message"]
    assert response.usage is not None
    assert response.usage.output_tokens > 0
    follow = searching.responses.create(input="Thank you.", previous_response_id=response.id, **fields)
    assert follow.usage is not None
    assert follow.usage.input_tokens > response.usage.input_tokens / 2, "both rounds are in the prompt"
    assert [item.type for item in searching.responses.retrieve(response.id).output] == ["file_search_call", "message"]
