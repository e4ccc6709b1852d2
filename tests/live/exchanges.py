"""What the cassettes record: one exchange per behaviour of the backend that the gateway must know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exchange:
    name: str
    shows: str
    method: str
    path: str
    body: str | None = None
    content_type: str = "application/json"


def create(name: str, shows: str, **fields: Any) -> Exchange:
    body = {"model": "smollm2", "temperature": 0, **fields}
    return Exchange(name, shows, "POST", "/v1/responses", json.dumps(body))


def get(name: str, shows: str, path: str) -> Exchange:
    return Exchange(name, shows, "GET", path)


CALL: dict[str, Any] = {
    "input": "What is the weather in Oslo?",
    "tool_choice": "required",
    "tools": [
        {
            "type": "function",
            "name": "weather",
            "description": "The weather of a city",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Oslo", "Bergen"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        }
    ],
}
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Paris.", "annotations": [], "logprobs": None}],
    "phase": None,
}
CAPITAL = "What is the capital of France?"
FRANCE: dict[str, Any] = {"input": CAPITAL, "max_output_tokens": 24}
TWO_TURNS = [{"role": "user", "content": CAPITAL}, ANSWER, {"role": "user", "content": "And of Norway?"}]
FORMAT = {
    "type": "json_schema",
    "name": "city",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
SHORT = {"input": "Say yes.", "max_output_tokens": 8}
MCP_CALL = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "arguments": "{}", "output": "1"}

EXCHANGES = (
    create("json_turn", "a plain turn, JSON", input="Say yes."),
    create("sse_turn", "a plain turn, SSE", input="Say yes.", stream=True),
    create(
        "sse_second_turn",
        "history replayed verbatim, with metadata and instructions, SSE",
        input=TWO_TURNS,
        instructions="Be short.",
        metadata={"k": "v"},
        max_output_tokens=64,
        stream=True,
    ),
    create(
        "json_cut",
        "max_output_tokens reached, JSON: status incomplete, the item completed",
        **FRANCE | {"max_output_tokens": 3},
    ),
    create(
        "sse_cut",
        "max_output_tokens reached, SSE: response.completed with status incomplete",
        **FRANCE | {"max_output_tokens": 3},
        stream=True,
    ),
    create("json_call", "a function call, JSON", **CALL),
    create("sse_call", "a function call, SSE", **CALL, stream=True),
    create(
        "sse_call_cut",
        "a function call cut at max_output_tokens, SSE: shown as completed",
        **CALL,
        stream=True,
        max_output_tokens=36,
    ),
    create(
        "sse_call_cut_early",
        "a function call cut before its arguments, SSE: no item at all",
        **CALL,
        stream=True,
        max_output_tokens=16,
    ),
    create(
        "json_call_cut",
        "a function call cut at max_output_tokens, JSON: a message with the raw text",
        **CALL,
        max_output_tokens=36,
    ),
    create("json_format", "structured output, JSON", input="Name a city.", text={"format": FORMAT}),
    create("error_wrong_model", "404 for a model that is not served", model="nope", input="x"),
    create("error_context_tokens", "400 for a prompt longer than the context", input="hi " * 4200),
    create(
        "error_context_max_output", "400 for max_output_tokens beyond the context", input="x", max_output_tokens=5000
    ),
    Exchange(
        "error_bad_json",
        "400 for a body that is not JSON",
        "POST",
        "/v1/responses",
        '{"model": "smollm2", "input": "x"',
    ),
    create(
        "error_null_truncation_json",
        "explicit null truncation, JSON: 400 after the generation",
        **SHORT,
        truncation=None,
    ),
    create(
        "error_null_truncation_sse",
        "explicit null truncation, SSE: 200, then the body is cut without an event",
        **SHORT,
        truncation=None,
        stream=True,
    ),
    create("error_null_background_json", "explicit null background, JSON", **SHORT, background=None),
    create("error_null_tools", "explicit null tools", **SHORT, tools=None),
    create("error_null_tool_choice", "explicit null tool_choice", **SHORT, tool_choice=None),
    create("error_null_service_tier", "explicit null service_tier", **SHORT, service_tier=None),
    create("error_null_include_reasoning", "explicit null include_reasoning", **SHORT, include_reasoning=None),
    create("error_item_type", "400 for an item type that is not supported", input=[MCP_CALL]),
    create("error_item_reference", "400 for an item_reference", input=[{"type": "item_reference", "id": "msg_1"}]),
    create(
        "error_encrypted",
        "400 for encrypted reasoning",
        input=[
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"role": "user", "content": "x"},
        ],
    ),
    create("error_item_null_id", "400 for an output item replayed with a null id", input=[ANSWER | {"id": None}]),
    create("error_item_null_content", "400 for null content", input=[{"role": "user", "content": None}]),
    Exchange(
        "error_media_type", "400 for a body that is not declared as JSON", "POST", "/v1/responses", "{}", "text/plain"
    ),
    create(
        "error_previous_response", "404 for any previous_response_id", input="x", previous_response_id="resp_unknown"
    ),
    create("error_background", "400 for background", input="x", background=True),
    create("error_prompt", "400 for a prompt template", input="x", prompt={"id": "pmpt_1"}),
    create("error_empty_input", "400 for an empty list", input=[]),
    create("error_missing_input", "400 without input"),
    create("error_temperature", "400 for a sampling parameter out of range", input="x", temperature=3),
    create("error_tool_choice_alone", "400 for tool_choice required without tools", input="x", tool_choice="required"),
    get("models", "the served models", "/v1/models"),
    get("health", "the health probe: 200 with no body", "/health"),
    get("version", "the version", "/version"),
    get("error_retrieve", "404: nothing is stored", "/v1/responses/resp_unknown"),
    get("error_route", "404 for a route that does not exist", "/v1/nowhere"),
    get("error_method", "405", "/v1/responses"),
)
