"""The configuration reference and the JSON Schema, both made from the models themselves."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from proxy.config import Gateway
from proxy.loader import END, PACKAGE, EndConfig, config_of, filter_names

_WORDS = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    Path: "path",
    SecretStr: "secret string",
    NoneType: "null",
    Any: "anything",
}
_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the YAML file, every filter's options included."""
    schema = Gateway.model_json_schema()
    definitions = schema["$defs"]
    entries = [_entry_schema(name, definitions) for name in [*filter_names(), END]]
    foreign = {"type": "object", "required": ["filter"], "properties": {"filter": {"type": "string", "pattern": r"\."}}}
    definitions["FilterEntry"] = {"anyOf": [*entries, foreign]}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Rejoinder configuration"
    return schema


def _entry_schema(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    entry = _options(name).model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(entry.pop("$defs", {}))
    entry["properties"] = {"filter": {"const": name}, **entry.get("properties", {})}
    entry["required"] = ["filter", *entry.get("required", [])]
    entry["title"] = name
    return entry


def _options(name: str) -> type[BaseModel]:
    return EndConfig if name == END else config_of(importlib.import_module(f"{PACKAGE}.{name}"))


def reference(filters: list[str]) -> str:
    """A Markdown page with every option, its type, default and meaning."""
    parts = ["# Configuration\n\nMade by `rejoinder reference`; a test keeps it true. Values may hold `${VARIABLE}`, "]
    parts.append("`${VARIABLE:-default}`, or be `file:/path`, which stands for that file's content.\n")
    parts.append(_tables(Gateway, "", {}))
    for name in filters:
        module = importlib.import_module(f"{PACKAGE}.{name}")
        parts.append(f"\n## Filter `{name}`\n\n{inspect.getdoc(module)}\n")
        parts.append(_table(config_of(module)))
    return "".join(parts)


def _tables(model: type[BaseModel], path: str, seen: dict[str, type[BaseModel]]) -> str:
    title = f"`{path}`" if path else "Top level"
    text = f"\n## {title}\n\n{(inspect.getdoc(model) or '')}\n" + _table(model)
    for name, info in model.model_fields.items():
        inner = _model(info.annotation)
        if inner is None or inner.__name__ == "FilterEntry":
            continue
        text += _tables(inner, f"{path}.{name}".lstrip(".") + _many(info.annotation), seen)
    return text


def _table(model: type[BaseModel]) -> str:
    rows = [
        f"| `{name}` | {_type(info)} | {_default(info)} | {info.description or ''} |"
        for name, info in model.model_fields.items()
    ]
    return "\n| Option | Type | Default | Meaning |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model(inner))), None)


def _many(annotation: Any) -> str:
    text = str(annotation)
    return "[]" if text.startswith("tuple") else ".NAME" if text.startswith("dict") else ""


def _type(info: FieldInfo) -> str:
    return ", ".join([_spelled(info.annotation), *_bounds(info)])


def _spelled(kind: Any) -> str:
    """A type in the words of YAML."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is None:
        return "mapping" if issubclass(kind, BaseModel) else _WORDS[kind]
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        return f"list of {_spelled(inner[0])}"
    if origin is dict:
        return f"mapping of name to {_spelled(inner[1])}"
    return " or ".join(_spelled(each) for each in (inner[:1] if origin is Annotated else inner))


def _bounds(info: FieldInfo) -> list[str]:
    found = []
    for constraint in info.metadata:
        found += [f"{sign} {getattr(constraint, name):g}" for name, sign in _SIGNS.items() if hasattr(constraint, name)]
    return found


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, BaseModel) or (isinstance(value, tuple) and value and isinstance(value[0], BaseModel)):
        return "see below"
    if value in ({}, ()):
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
