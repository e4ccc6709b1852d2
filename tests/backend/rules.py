"""What vLLM 0.32 refuses, and in which words: taken from the error cassettes."""

from __future__ import annotations

import json
from typing import Any

UNSUPPORTED_ITEMS = {
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "computer_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "apply_patch_call",
    "tool_search_call",
    "item_reference",
    "compaction",
    "compaction_trigger",
}
NULLS = {
    "tools": "{'type': 'list_type', 'loc': 'body.tools', 'msg': 'Input should be a valid list', 'input': 'None'}",
    "tool_choice": "{'type': 'literal_error', 'loc': 'body.tool_choice', 'msg': \"Input should be 'none', 'auto' or "
    "'required'\", 'input': 'None', 'ctx': {'expected': \"'none', 'auto' or 'required'\"}}",
    "service_tier": "{'type': 'literal_error', 'loc': 'body.service_tier', 'msg': \"Input should be 'auto', 'default',"
    " 'flex', 'scale' or 'priority'\", 'input': 'None', 'ctx': {'expected': \"'auto', 'default', 'flex', 'scale' or "
    "'priority'\"}}",
    "include_reasoning": "{'type': 'bool_type', 'loc': 'body.include_reasoning', 'msg': 'Input should be a valid "
    "boolean', 'input': 'None'}",
}
LATE_NULLS = {
    "truncation": "Input should be 'auto' or 'disabled' [type=literal_error, input_value=None, input_type=NoneType]\n"
    "    For further information visit https://errors.pydantic.dev/2.14/v/literal_error",
    "background": "Input should be a valid boolean [type=bool_type, input_value=None, input_type=NoneType]\n"
    "    For further information visit https://errors.pydantic.dev/2.14/v/bool_type",
}
NO_STORE = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
    "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)


class Refused(Exception):
    def __init__(self, status: int, body: dict[str, Any], headers: list[tuple[str, str]] | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = headers or []
        super().__init__(body)


def error(message: str, param: str | None, kind: str = "BadRequestError", status: int = 400) -> Refused:
    return Refused(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


def invalid(param: str, *details: str) -> Refused:
    """What the validation of the request's model says, before any rule of the engine is asked."""
    plural = "error" if len(details) == 1 else "errors"
    lines = "".join(f"\n  {detail}" for detail in details)
    return error(f"{len(details)} validation {plural}:{lines}", param, "Bad Request")


def no_route(method: str, path: str) -> Refused:
    if path == "/v1/responses":
        return Refused(405, {"detail": "Method Not Allowed"}, [("allow", "POST")])
    if method == "GET" and path.startswith("/v1/responses/") and path.count("/") == 3:
        return not_found(path.rpartition("/")[2])
    return Refused(404, {"detail": "Not Found"})


def not_found(response_id: str) -> Refused:
    return error(f"Response with id '{response_id}' not found.", "response_id", "invalid_request_error", 404)


def context_overflow(limit: int) -> Refused:
    return error(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        f"prompt. (parameter=input_tokens, value={limit + 1})",
        "input_tokens",
    )


def null_in_answer(body: dict[str, Any]) -> Refused | None:
    """These nulls fail only when the answer is put together: JSON gets a 400, a stream is cut."""
    for name, words in LATE_NULLS.items():
        if name in body and body[name] is None:
            return error(f"1 validation error for ResponsesResponse\n{name}\n  {words}", None)
    return None


def parse(content_type: str | None, raw: bytes) -> dict[str, Any]:
    if (content_type or "").partition(";")[0].strip() != "application/json":
        only = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise error(only, None, "Bad Request")
    try:
        body = json.loads(raw)
    except json.JSONDecodeError as bad:
        where = f"body.{bad.pos}"
        detail = f"{{'type': 'json_invalid', 'loc': '{where}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>'"
        raise invalid(where, f"{detail}, 'ctx': {{'error': \"{bad.msg}\"}}}}") from bad
    except UnicodeDecodeError as bad:
        raise Refused(400, {"detail": "There was an error parsing the body"}) from bad
    if not isinstance(body, dict):
        raise invalid("body", "{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be an object'}")
    return body


def check(body: dict[str, Any], model: str, max_model_len: int) -> None:
    """In vLLM's order: the shape, then the model, then what the engine does not do."""
    check_shape(body)
    if body.get("model") not in (None, "", model):
        message = f"The model `{body['model']}` does not exist. Valid aliases: {model}."
        raise error(message, "model", "NotFoundError", 404)
    check_features(body)
    check_items(body["input"])
    check_sampling(body, max_model_len)


def check_shape(body: dict[str, Any]) -> None:
    for name, detail in NULLS.items():
        if name in body and body[name] is None:
            raise invalid(f"body.{name}", detail)
    if body.get("input") is None:
        seen = f"'input': '<dict of {len(body)} items>'"
        raise invalid("body.input", f"{{'type': 'missing', 'loc': 'body.input', 'msg': 'Field required', {seen}}}")
    if isinstance(body["input"], list):
        for number, item in enumerate(body["input"]):
            check_item_shape(number, item)


def check_item_shape(number: int, item: Any) -> None:
    wrong = "item" if not isinstance(item, dict) else wrong_key(item)
    if wrong:
        where = f"body.input.{number}.{wrong}"
        raise invalid(where, f"{{'type': 'union_error', 'loc': '{where}', 'msg': 'Input does not fit any item type'}}")


def wrong_key(item: dict[str, Any]) -> str | None:
    """The key of an item that the union of item types does not take."""
    kind = item.get("type", "message")
    if kind == "function_call":
        return None if isinstance(item.get("arguments"), str) else "arguments"
    if kind == "function_call_output":
        return None if isinstance(item.get("output"), str | list) else "output"
    if kind == "reasoning":
        return "summary" if item.get("summary") is None else "id" if item.get("id", "") is None else None
    if kind == "message":
        return wrong_message_key(item)
    return None if kind is not None else "type"


def wrong_message_key(item: dict[str, Any]) -> str | None:
    content = item.get("content")
    if content is None or item.get("role") not in ("user", "assistant", "system", "developer"):
        return "content" if content is None else "role"
    if item["role"] == "assistant" and isinstance(content, list):
        nulls = (key for key in ("id", "status") if item.get(key, "") is None)
        return "type" if "type" not in item else next(nulls, None)
    return None


def check_features(body: dict[str, Any]) -> None:
    if body.get("background"):
        raise error(NO_STORE, "background", "invalid_request_error")
    if body.get("prompt") is not None:
        raise error("prompt template is not supported (parameter=prompt)", "prompt")
    if body.get("previous_response_id") is not None:
        raise not_found(body["previous_response_id"])
    if body.get("tool_choice", "auto") not in ("auto", "none") and not body.get("tools"):
        message = "Tool choice 'required' must be specified with 'tools' parameter. (parameter=tool_choice)"
        raise error(message, "tool_choice")


def check_items(given: str | list[dict[str, Any]]) -> None:
    if given == []:
        raise error("Cannot apply chat template to an empty conversation. Provide at least one message.", None)
    for item in given if isinstance(given, list) else []:
        if item.get("type") in UNSUPPORTED_ITEMS:
            raise error(f"Unsupported input item type: {item['type']} (parameter=input)", "input")
        if item.get("type") == "reasoning" and item.get("encrypted_content"):
            raise error("Encrypted content is not supported. (parameter=input)", "input")


def check_sampling(body: dict[str, Any], max_model_len: int) -> None:
    temperature, limit = body.get("temperature"), body.get("max_output_tokens")
    if temperature is not None and not 0 <= temperature <= 2:
        value = float(temperature)
        message = f"temperature must be in [0, 2], got {value}. (parameter=temperature, value={value})"
        raise error(message, "temperature")
    if limit is not None and limit > max_model_len:
        raise error(
            f"max_output_tokens={limit} cannot be greater than max_model_len={max_model_len}. Please request fewer "
            f"output tokens. (parameter=max_output_tokens, value={limit})",
            "max_output_tokens",
        )
