"""What the scripted model says: derived from the input alone, so that a test can see which history arrived.

- `call NAME {json}` in the last user text, with tools and a tool_choice of auto: those function calls.
- tool_choice required or named: a call with arguments drawn from the tool's schema.
- `count to N`: N words, for streams that must last.
- text.format json_schema: an instance of the schema.
- otherwise: how many items came, and the last user text or tool output.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

CALL_OVERHEAD = 28
TURN_OVERHEAD = 4
TOKEN = re.compile(r"\s?\w+|\s?[^\w\s]|\s+")


@dataclass(frozen=True)
class Spoken:
    """A message (no name) or a call (a name, and its arguments as text)."""

    text: str
    name: str = ""

    @property
    def tokens(self) -> list[str]:
        return TOKEN.findall(self.text)

    @property
    def overhead(self) -> int:
        return CALL_OVERHEAD if self.name else 0

    @property
    def markup(self) -> str:
        """What the model really writes, before a parser makes a call of it."""
        return f'<tool_call>\n{{"name": "{self.name}", "arguments": {self.text}' if self.name else self.text

    def cut(self, room: int) -> Spoken:
        return replace(self, text="".join(self.tokens[:room]))


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    given = body["input"]
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [])


def item_text(item: dict[str, Any]) -> str:
    """What the prompt holds of an item: no ids, no status."""
    if item.get("type") == "function_call":
        return f"{item['name']} {item['arguments']}"
    if item.get("type") == "function_call_output":
        return text_of(item["output"])
    return text_of(item.get("content") or item.get("summary"))


def prompt_tokens(body: dict[str, Any]) -> list[str]:
    tools = [json.dumps(tool, sort_keys=True) for tool in body.get("tools") or [] if tool.get("type") == "function"]
    turns = [*tools, body.get("instructions") or "", *(item_text(item) for item in items_of(body))]
    return [token for turn in turns for token in [*["<turn>"] * TURN_OVERHEAD, *TOKEN.findall(turn)]]


def spoken_tokens(spoken: list[Spoken]) -> list[str]:
    words = [(f"{part.name} {part.text}" if part.name else part.text) for part in spoken]
    return [token for text in words for token in [*["<turn>"] * TURN_OVERHEAD, *TOKEN.findall(text)]]


def reply_to(body: dict[str, Any]) -> list[Spoken]:
    items = items_of(body)
    wanted = last_user_text(items)
    if chosen := forced_tool(body):
        return [Spoken(json.dumps(sample(chosen.get("parameters") or {})), chosen["name"])]
    free = body.get("tools") and body.get("tool_choice", "auto") == "auto" and speaks_last(items)
    if free and (calls := named_calls(wanted)):
        return calls
    return [Spoken(message(body, items, wanted))]


def message(body: dict[str, Any], items: list[dict[str, Any]], wanted: str) -> str:
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        return json.dumps(sample(form["schema"]))
    if counting := re.search(r"count to (\d+)", wanted, re.IGNORECASE):
        return " ".join(str(number) for number in range(1, int(counting[1]) + 1))
    if not speaks_last(items):
        return f"I got {len(items)} items; the last tool said: {text_of(items[-1].get('output'))}"
    return f"I got {len(items)} items; the last user said: {wanted}"


def last_user_text(items: list[dict[str, Any]]) -> str:
    said = [text_of(item["content"]) for item in items if item.get("role") == "user"]
    return said[-1] if said else ""


def speaks_last(items: list[dict[str, Any]]) -> bool:
    """Whether the turn ends with words rather than with a tool's output."""
    return not str(items[-1].get("type", "message")).endswith("_output")


def forced_tool(body: dict[str, Any]) -> dict[str, Any] | None:
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    functions = [tool for tool in tools if tool.get("type") == "function"]
    if choice == "required":
        return functions[0] if functions else None
    if isinstance(choice, dict) and choice.get("type") == "function":
        return next((tool for tool in functions if tool["name"] == choice["name"]), None)
    return None


def named_calls(text: str) -> list[Spoken]:
    calls = []
    for match in re.finditer(r"call (\w+) (?=\{)", text):
        arguments, end = json.JSONDecoder().raw_decode(text, match.end())
        if isinstance(arguments, dict):
            calls.append(Spoken(text[match.end() : end], match[1]))
    return calls


def sample(schema: dict[str, Any]) -> Any:
    """A value that fits a schema, always the same."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: sample(inner) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [sample(schema.get("items", {"type": "string"}))]
    values: dict[str, Any] = {"string": "word", "integer": 7, "number": 1.5, "boolean": True, "null": None}
    return values[kind if isinstance(kind, str) else kind[0]]
