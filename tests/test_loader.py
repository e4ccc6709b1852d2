"""A filter is found by its name, and its options are its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.config.shape import FilterEntry
from proxy.errors import ConfigError
from proxy.loader import END, EndConfig, class_name, filter_names, plan


def planned(**entry: Any) -> Any:
    return plan(FilterEntry.model_validate(entry), "chains.default[0]")


def told(**entry: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(**entry)
    return str(caught.value)


def test_a_name_is_a_module_is_a_class():
    assert class_name("response_store") == "ResponseStore"
    found = planned(filter="response_store", failure_mode="open")
    assert (found.name, found.factory.__name__) == ("response_store", "ResponseStore")
    assert found.config.failure_mode == "open"
    assert found.after == {"owner", "validate"}


def test_the_end_is_no_filter():
    found = planned(filter=END, backend="main")
    assert found.factory is None
    assert found.config == EndConfig(backend="main")
    assert END not in filter_names()


def test_an_unknown_filter_is_told_with_the_known_ones():
    assert told(filter="reponse_store") == (
        "chains.default[0].filter: 'reponse_store': unknown filter; known: " + ", ".join([*filter_names(), "upstream"])
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"filter": "owner", "mod": "x"}, "chains.default[0]: mod: unknown key; known: mode, tenant_id, header"),
        (
            {"filter": "owner", "mode": "x"},
            "chains.default[0]: mode: 'x': must be 'single_tenant' or 'trusted_header'",
        ),
        ({"filter": "upstream", "backnd": "x"}, "chains.default[0]: backnd: unknown key; known: backend"),
        (
            {"filter": "rehydrate", "conversation_queue": -1},
            "chains.default[0]: conversation_queue: -1: must be greater than or equal to 0",
        ),
    ],
)
def test_a_wrong_option_is_told_with_its_place(entry: dict[str, Any], message: str):
    assert told(**entry) == message


FOREIGN = """
from proxy.config import Model

AFTER = {"owner"}


class Config(Model):
    loud: bool = False


class Audit:
    def __init__(self, config, services):
        self.loud = config.loud

    async def __call__(self, turn, send, call_next):
        await call_next(turn, send)
"""


def test_a_dotted_name_is_somebody_elses_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "acme_filters"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "audit.py").write_text(FOREIGN)
    (package / "empty.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = planned(filter="acme_filters.audit", loud=True)
        assert (found.name, found.factory(found.config, None).loud, found.after) == ("audit", True, {"owner"})
        assert (
            told(filter="acme_filters.empty")
            == "chains.default[0].filter: the module acme_filters.empty has no class Empty"
        )
    finally:
        for name in [name for name in sys.modules if name.startswith("acme_filters")]:
            del sys.modules[name]


def test_a_module_that_is_not_there_is_told():
    assert told(filter="no_such_package.audit").startswith(
        "chains.default[0].filter: 'no_such_package.audit' cannot be imported: No module named"
    )
