"""What every filter is, found by walking the package: none can be forgotten."""

from __future__ import annotations

import importlib
import inspect

import pytest
from pydantic import ValidationError

from proxy.config import Model
from proxy.config.shape import FilterEntry
from proxy.loader import class_name, config_of, filter_names, plan
from proxy.protocol.events import Chunk, Head, Message
from proxy.protocol.turn import Operation
from proxy.services import Services
from tests.playbook import play, post

NAMES = filter_names()


def test_there_are_filters():
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_its_module_says_what_it_does_in_a_first_sentence(name: str):
    text = inspect.getdoc(importlib.import_module(f"proxy.filters.{name}"))
    assert text
    assert "." in text.split("\n\n")[0]


@pytest.mark.parametrize("name", NAMES)
def test_its_class_is_named_after_it_and_says_what_it_does(name: str):
    kind = getattr(importlib.import_module(f"proxy.filters.{name}"), class_name(name))
    assert inspect.getdoc(kind)
    assert list(inspect.signature(kind).parameters) == ["config", "services"]
    assert list(inspect.signature(kind.__call__).parameters)[1:] == ["turn", "send", "call_next"]
    assert inspect.iscoroutinefunction(kind.__call__)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_default_and_a_meaning(name: str):
    config = config_of(importlib.import_module(f"proxy.filters.{name}"))
    assert issubclass(config, Model)
    config()
    for option, info in config.model_fields.items():
        assert info.description, option
        assert info.description.endswith("."), option


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_refused(name: str):
    config = config_of(importlib.import_module(f"proxy.filters.{name}"))
    with pytest.raises(ValidationError):
        config.model_validate({"no_such_option": 1})


@pytest.mark.parametrize("name", NAMES)
def test_it_needs_only_filters_that_exist(name: str):
    assert plan(FilterEntry(filter=name), "here").after <= set(NAMES) - {name}


@pytest.mark.parametrize("name", NAMES)
async def test_it_leaves_what_is_not_a_turn_untouched(name: str, closed: Services):
    made = plan(FilterEntry(filter=name), "here")
    page: list[Message] = [Head(200, b"OK", ((b"content-type", b"text/html"),)), Chunk(b"\x00\xff")]
    turn = post(b"\xff not json", operation=Operation.OTHER)
    played = await play([made.factory(made.config, closed)], turn, page)
    assert played.heard == page
    assert played.turn.body is turn.body
    assert played.turn.headers == turn.headers
