"""The page of hosted tools names every option of every tool, and no other."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from proxy.tools import file_search, function, web_search
from tests.gateways import ROOT

PAGE = (ROOT / "docs/hosted-tools.md").read_text()


def section(tool: str) -> str:
    return PAGE.partition(f"## Options of `{tool}`")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("tool", "config"),
    [("web_search", web_search.Config), ("file_search", file_search.Config), ("function", function.Config)],
)
def test_every_option_has_its_line(tool: str, config: type[BaseModel]):
    inner = [f"functions.NAME.{name}" for name in function.Declared.model_fields] if tool == "function" else []
    told = re.findall(r"^\| `([\w.]+)` \|", section(tool), re.MULTILINE)
    assert sorted(told) == sorted([*config.model_fields, *inner])
