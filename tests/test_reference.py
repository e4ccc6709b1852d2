"""What an editor, and a reader, is told about the YAML file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from proxy.config import Gateway
from proxy.loader import config_of, filter_names
from proxy.reference import json_schema, reference

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))
PAGE = reference(filter_names())


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_schema_accepts_every_example(validator: Any, path: Path):
    assert [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"wrokers": 1},
        {"workers": 0},
        {"backends": {}},
        {"backends": {"m": {"endpoint": ["http://a"]}}},
        {"listeners": [{"adress": "a:1"}]},
        {"listeners": [{"heartbeat": {"every": 1}}]},
        {"chains": {"default": [{"filter": "nope"}]}},
        {"chains": {"default": [{"filter": "owner", "mod": "x"}]}},
        {"chains": {"default": [{"filter": "owner", "mode": "x"}]}},
        {"chains": {"default": [{"mode": "single_tenant"}]}},
        {"chains": {"default": [{"filter": "upstream", "backnd": "x"}]}},
    ],
)
def test_the_schema_rejects_what_the_gateway_would(validator: Any, wrong: dict[str, Any]):
    good = {"backends": {"m": {"endpoints": ["http://a"]}}}
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, **wrong} if wrong else {})


def test_the_schema_lets_somebody_elses_filter_be(validator: Any):
    chains = {"default": [{"filter": "acme.filters.audit", "loud": True}, {"filter": "upstream"}]}
    assert validator.is_valid({"backends": {"m": {"endpoints": ["http://a"]}}, "chains": chains})


@pytest.mark.parametrize("name", filter_names())
def test_the_page_has_every_option_of_every_filter(name: str):
    section = PAGE.split(f"## Filter `{name}`")[1].split("\n## ")[0]
    for option, info in config_of(importlib.import_module(f"proxy.filters.{name}")).model_fields.items():
        assert f"| `{option}` | " in section
        assert f" | {info.description} |" in section


def test_the_page_has_every_top_level_option():
    for option in Gateway.model_fields:
        assert f"| `{option}` | " in PAGE


def test_the_page_speaks_the_words_of_yaml():
    for word in ("tuple", "dict[", "Optional", "Annotated", "FieldInfo", "<function", "None", "Path |", "SecretStr"):
        assert word not in PAGE


def test_the_page_is_the_same_every_time():
    assert reference(filter_names()) == PAGE
