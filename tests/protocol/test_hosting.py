"""The port of hosted tools: who stands behind it has all that it asks for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from proxy.protocol import hosting
from proxy.tools import file_search, function, mcp, web_search
from tests.hosted import StandIn, StandInTool

TOOLS = [mcp.Mcp, web_search.WebSearch, file_search.FileSearch, function.Function, StandInTool]
DECLARED = [mcp.Server, web_search._Hosted, web_search._Nothing, file_search._Hosted, function._Hosted, StandIn]


def members(port: Any) -> set[str]:
    return {name for name in vars(port) if not name.startswith("_")}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda one: one.__name__)
def test_every_tool_has_the_methods_of_the_port(tool: Any):
    assert members(hosting.Tool) <= set(dir(tool))
    for name in ("declare", "open", "close"):
        assert inspect.iscoroutinefunction(getattr(tool, name))


@pytest.mark.parametrize("hosted", DECLARED, ids=lambda one: f"{one.__module__}.{one.__name__}")
def test_every_declaration_has_the_methods_of_the_port(hosted: Any):
    attributes = {"functions", "opening"}  # set in __init__ by some
    assert members(hosting.Hosted) - attributes <= set(dir(hosted))
    for name in ("run", "close"):
        assert inspect.iscoroutinefunction(getattr(hosted, name))
    for name in ("start", "approval", "annotate"):
        assert not inspect.iscoroutinefunction(getattr(hosted, name))


def test_types_are_served_by_one_tool_each():
    seen: set[str] = set()
    for tool in (mcp.Mcp, web_search.WebSearch, file_search.FileSearch, function.Function):
        assert not seen & tool.types
        seen |= tool.types
