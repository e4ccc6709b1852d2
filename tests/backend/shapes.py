"""The objects of vLLM 0.32's Responses API, key by key in the order of the recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from tests.backend.reply import Spoken

Json = dict[str, Any]


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid4().hex[:16]}"


def response_object(body: Json, model: str, limit: int) -> Json:
    tools = body.get("tools") or []
    return {
        "id": body.get("request_id") or new_id("resp_"),
        "created_at": int(time.time()),
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": body.get("model") or model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "temperature": number(body, "temperature"),
        "tool_choice": body.get("tool_choice", "auto") if tools else "none",
        "tools": [echoed_tool(tool) for tool in tools],
        "top_p": number(body, "top_p"),
        "background": body.get("background", False),
        "max_output_tokens": limit,
        "max_tool_calls": body.get("max_tool_calls"),
        "previous_response_id": None,
        "prompt": None,
        "reasoning": body.get("reasoning"),
        "service_tier": body.get("service_tier", "auto"),
        "status": "in_progress",
        "text": echoed_text(body.get("text")),
        "top_logprobs": body.get("top_logprobs"),
        "truncation": body.get("truncation", "disabled"),
        "usage": None,
        "user": body.get("user"),
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def number(body: Json, name: str) -> float:
    value = body.get(name)
    return 1.0 if value is None else float(value)


def echoed_tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        return tool
    echoed = {"name": tool["name"], "parameters": tool.get("parameters"), "strict": tool.get("strict")}
    echoed |= {"type": "function", "allowed_callers": None, "async": None, "defer_loading": None}
    return echoed | {"description": tool.get("description"), "output_schema": None}


def echoed_text(text: Json | None) -> Json | None:
    if not text:
        return None
    form = text.get("format")
    if form and form["type"] == "json_schema":
        form = {
            "name": form["name"],
            "schema": form["schema"],
            "type": "json_schema",
            "description": form.get("description"),
            "strict": form.get("strict"),
        }
    return {"format": form, "verbosity": text.get("verbosity")}


def text_part(text: str, logprobs: list[Any] | None = None) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def message_item(text: str, item_id: str = "") -> Json:
    return {
        "id": item_id or new_id("msg_"),
        "content": [text_part(text)],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }


def call_item(name: str, arguments: str) -> Json:
    return {
        "arguments": arguments,
        "call_id": new_id("chatcmpl-tool-"),
        "name": name,
        "type": "function_call",
        "id": new_id("fc_"),
        "async": None,
        "caller": None,
        "namespace": None,
        "status": "completed",
    }


class Stream:
    """The events of one answer, numbered as they come."""

    def __init__(self, response: Json) -> None:
        self._response = response
        self._sequence = 0
        self._items: list[Json] = []

    def events(self, parts: list[Spoken], outcome: Callable[[list[Json]], Json]) -> Iterator[Json]:
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)
        for part in parts:
            yield from self._call(part) if part.name else self._message(part)
        yield self._event("response.completed", response=self._response | outcome(self._items))

    def _event(self, kind: str, **fields: Any) -> Json:
        """Keys in alphabetical order, as recorded; the name of a finished call comes last."""
        fields |= {"type": kind, "sequence_number": self._sequence}
        self._sequence += 1
        last = {"name": fields.pop("name")} if "name" in fields else {}
        return dict(sorted(fields.items())) | last

    def _message(self, part: Spoken) -> Iterator[Json]:
        item = message_item(part.text)
        at = {"item_id": item["id"], "output_index": len(self._items), "content_index": 0}
        yield self._added(item | {"content": [], "status": "in_progress"})
        yield self._event("response.content_part.added", part=text_part("", []), **at)
        for token in part.tokens:
            yield self._event("response.output_text.delta", delta=token, logprobs=[], **at)
        yield self._event("response.output_text.done", text=part.text, logprobs=[], **at)
        yield self._event("response.content_part.done", part=text_part(part.text), **at)
        yield self._done(item)

    def _call(self, part: Spoken) -> Iterator[Json]:
        item = call_item(part.name, part.text)
        at = {"item_id": item["id"], "output_index": len(self._items)}
        yield self._added(item | {"arguments": "", "status": "in_progress"})
        for token in part.tokens:
            yield self._event("response.function_call_arguments.delta", delta=token, **at)
        done = {"arguments": part.text, "name": part.name}
        yield self._event("response.function_call_arguments.done", **done, **at)
        yield self._done(item)

    def _added(self, item: Json) -> Json:
        return self._event("response.output_item.added", item=item, output_index=len(self._items))

    def _done(self, item: Json) -> Json:
        event = self._event("response.output_item.done", item=item, output_index=len(self._items))
        self._items.append(item)
        return event
