"""Reading the YAML file: variables, secrets from files, and messages that say where a mistake is and what would do."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from proxy.config.shape import Gateway
from proxy.errors import ConfigError

ModelT = TypeVar("ModelT", bound=BaseModel)

_SHOULD = re.compile(r"\A(Value error, |\w+ should(?= ))")
_PYTHONIC = {"a valid tuple": "a list", "a valid dictionary": "a mapping", " after validation": ""}
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def load(path: Path) -> Gateway:
    """Reads and checks a YAML file. Raises `ConfigError`."""
    return parse(read(path), str(path))


def read(path: Path) -> dict[str, Any]:
    """What a YAML file says, not yet checked. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.load(text, Loader=_Loader)  # noqa: S506  # it is a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_broken(error)}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML: {type(error).__name__}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deep") from None
    if not isinstance(data or {}, dict):
        raise ConfigError(f"{path}: must be a mapping; known keys: {', '.join(Gateway.model_fields)}")
    return data or {}


def _broken(error: yaml.YAMLError) -> str:
    # Not the error's own text: it quotes the line, and a secret may stand there.
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{place}not valid YAML: {problem or type(error).__name__}"


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse(data: dict[str, Any], source: str) -> Gateway:
    """Expands and validates what a YAML file said. Raises `ConfigError` with one line for each mistake."""
    try:
        expanded = expand(data, source)
    except RecursionError:  # an alias within what it stands for
        raise ConfigError(f"{source}: is nested too deep") from None
    return validated(Gateway, expanded, source)


def validated(model: type[ModelT], data: object, where: str) -> ModelT:
    """An options object of `model`. Raises `ConfigError` naming the path, the value and what is allowed."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        entries = error.errors(include_url=False)
        lines = [f"{where}: {_explain(entry, data, model)}" for entry in entries if not _follows(entry, entries)]
        raise ConfigError("\n".join(lines)) from None


def expand(data: Any, where: str) -> Any:
    """Replaces `${VAR}`, `${VAR:-default}` and `file:/path` in every string. Raises `ConfigError` naming the place."""
    if isinstance(data, dict):
        return {key: expand(value, f"{where}: {key}") for key, value in data.items()}
    if isinstance(data, list):
        return [expand(value, f"{where}[{index}]") for index, value in enumerate(data)]
    if not isinstance(data, str):
        return data
    text = _VARIABLE.sub(lambda match: _variable(match, where), data)
    return _file(text.removeprefix("file:"), where) if text.startswith("file:") else text


def _variable(match: re.Match[str], where: str) -> str:
    value = os.environ.get(match[1], match[2])
    if value is None:
        raise ConfigError(f"{where}: the environment variable {match[1]} is not set")
    return value


def _file(path: str, where: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot read {path}: {error}") from error


def _follows(entry: Any, entries: Sequence[Any]) -> bool:
    # A list whose one element is wrong is also said to be too short.
    size = len(entry["loc"])
    return entry["type"] == "too_short" and any(
        other["loc"][:size] == entry["loc"] and len(other["loc"]) > size for other in entries
    )


def _explain(entry: Any, data: object, model: type[BaseModel]) -> str:
    place = _spelled(entry["loc"])
    if entry["type"] == "extra_forbidden":
        known = _model_at(model, entry["loc"][:-1])
        return f"{place}: unknown key; known: {', '.join(known.model_fields) if known else 'none'}"
    if entry["type"] == "missing":
        return f"{place}: is missing"
    if entry["type"] == "model_type":  # its value is not shown: what stands there may be a secret
        known = _model_at(model, entry["loc"])
        return f"{place}: must be a mapping; known keys: {', '.join(known.model_fields) if known else 'none'}"
    message = _message(entry["msg"])
    value = _value_at(data, entry["loc"])
    shown = f": {_shown(value)}" if isinstance(value, str | int | float | bool) and not _secret(entry["loc"]) else ""
    return f"{place}{shown}: {message}" if place else message


def _message(text: str) -> str:
    text = _SHOULD.sub(lambda match: "must" if match[1].endswith("should") else "", text)
    for long, short in _PYTHONIC.items():
        text = text.replace(long, short)
    return text


def _shown(value: str | float | bool) -> str:
    return _CREDENTIALS.sub("//***@", repr(value))


def _spelled(loc: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _secret(loc: tuple[str | int, ...]) -> bool:
    return bool({"url", "api_key", "key", "password", "token"} & {str(part) for part in loc[-1:]})


def _value_at(data: Any, loc: tuple[str | int, ...]) -> Any:
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _model_at(model: type[BaseModel] | None, loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    for part in loc:
        if model is None:
            return None
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
