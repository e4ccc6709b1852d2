"""The answers of a benchmark's backend: the JSON body and the frames of a stream, in the shape of vLLM's."""

from __future__ import annotations

import json
from typing import Any

LIFECYCLE = 8  # events of a text stream that are no delta
_RESPONSE: dict[str, Any] = {
    "created_at": 1796000000,
    "object": "response",
    "model": "canned",
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": 0.0,
    "top_p": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "background": False,
    "max_output_tokens": 256,
    "max_tool_calls": None,
    "previous_response_id": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "truncation": "disabled",
    "incomplete_details": None,
    "usage": None,
    "user": None,
}


def frame(type_: str, number: int, **members: Any) -> bytes:
    """One event as a chunk of a chunked body."""
    data = json.dumps({**members, "sequence_number": number, "type": type_}, separators=(",", ":"))
    raw = f"event: {type_}\ndata: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(raw), raw)


def lifecycle(kind: str, number: int, id_: str, status: str, output: list[Any]) -> bytes:
    return frame(f"response.{kind}", number, response=response(id_, status, output))


def response(id_: str, status: str, output: list[Any]) -> dict[str, Any]:
    used = {"input_tokens": 40, "output_tokens": 200, "total_tokens": 240}
    return {"id": id_, **_RESPONSE, "status": status, "output": output, "usage": used if output else None}


def message(id_: str, tokens: int) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": " token" * tokens, "annotations": [], "logprobs": None}
    return {"id": id_, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def text_round(id_: str, deltas: int, item_id: str = "msg_1") -> list[bytes]:
    """A stream that says so many tokens."""
    place = {"output_index": 0, "content_index": 0, "item_id": item_id}
    item = message(item_id, deltas)
    (part,) = item["content"]
    head = [
        lifecycle("created", 0, id_, "in_progress", []),
        lifecycle("in_progress", 1, id_, "in_progress", []),
        frame("response.output_item.added", 2, output_index=0, item={**item, "status": "in_progress", "content": []}),
        frame("response.content_part.added", 3, **place, part={**part, "text": ""}),
    ]
    body = [frame("response.output_text.delta", 4 + n, **place, delta=" token", logprobs=[]) for n in range(deltas)]
    tail = [
        frame("response.output_text.done", 4 + deltas, **place, text=part["text"], logprobs=[]),
        frame("response.content_part.done", 5 + deltas, **place, part=part),
        frame("response.output_item.done", 6 + deltas, output_index=0, item=item),
        lifecycle("completed", 7 + deltas, id_, "completed", [item]),
    ]
    return [*head, *body, *tail]
