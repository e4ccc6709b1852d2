"""Which declared tools are the gateway's, and what becomes of a turn that has some."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.errors import ConfigError, InvalidRequest
from proxy.filters.agentic_loop import AgenticLoop, Config, request
from proxy.protocol.events import Head
from proxy.protocol.records import Anchor, History, Item
from proxy.protocol.turn import Draft, Operation
from proxy.services import Services
from tests.hosted import StandIn, declared
from tests.playbook import Step, play, post
from tests.rounds import Rounded, a_call, a_stream, an_answer, message, play_rounds

WEATHER = {"functions": {"weather": {"endpoint": "http://127.0.0.1:9/", "description": "sky"}}}
MINE = {"type": "function", "name": "mine", "parameters": {}}
LOOK = a_call("srv__look", "c1")


def a_loop(services: Services, **options: Any) -> AgenticLoop:
    return AgenticLoop(Config(**options), services)


async def played(loop: AgenticLoop, tools: Any, *scripts: Sequence[Step], **members: Any) -> Rounded:
    hosted = members.pop("hosted", ())
    turn = post({"input": "x", "tools": tools, **members}).replace(hosted=tuple(hosted))
    return await play_rounds([loop], turn, *scripts)


# What is ours


@pytest.mark.parametrize(
    "tools",
    [
        b"",
        b',"tools":null',
        b',"tools":[]',
        b',"tools": [ {"type":"function" , "name":"weather","parameters":{}} ]',
        b',"tools":[{"type":"web_search"}, {"type":"custom","name":"sql"}]',
        b',"tools":{"odd":1}',
    ],
)
async def test_a_turn_without_tools_of_ours_is_not_touched(closed: Services, tools: bytes):
    body = b'{"input" : "x"%b}' % tools
    turn = await play([a_loop(closed, tools={"function": WEATHER})], post(body), *a_stream("resp_1", message("m", "x")))
    assert turn.turn.body.raw == body
    assert next(each for each in turn.heard if isinstance(each, Head)).composed is False


async def test_what_is_no_create_is_not_touched(closed: Services):
    body = {"input": "x", "tools": [{"type": "function", "name": "weather"}]}
    turn = await play([a_loop(closed, tools={"function": WEATHER})], post(body, operation=Operation.INPUT_TOKENS))
    assert turn.sent == body


async def test_a_function_of_ours_is_declared_by_its_name(closed: Services):
    tools = [{"type": "function", "name": "weather"}, MINE]
    turn = await played(a_loop(closed, tools={"function": WEATHER}), tools, an_answer("resp_1", message("m", "x")))
    sent, theirs = turn.sent["tools"]
    assert (sent["name"], sent["description"], theirs) == ("weather", "sky", MINE)
    assert turn.final["tools"] == tools


async def test_tools_that_another_filter_found_are_run_and_closed(closed: Services):
    tool = StandIn()
    scripts = (an_answer("resp_1", LOOK), an_answer("resp_2", message("m", "x")))
    turn = await played(a_loop(closed), [MINE, declared()], *scripts, hosted=[(1, tool)])
    assert turn.output == ["mcp_call", "message"]
    assert [each["name"] for each in turn.sent_all[0]["tools"]] == ["mine", "srv__look"]
    assert tool.closed == 1


@pytest.mark.parametrize("failure", ["error", "bug", "left"])
async def test_tools_are_closed_however_the_turn_ends(closed: Services, failure: str):
    tool = StandIn()
    gate = asyncio.Event()
    steps: dict[str, Step] = {"error": InvalidRequest("no"), "bug": RuntimeError("bug"), "left": gate}
    task = asyncio.ensure_future(played(a_loop(closed), [declared()], [steps[failure]], hosted=[(0, tool)]))
    if failure == "left":
        await asyncio.sleep(0.01)
        task.cancel()
    await asyncio.wait([task])
    assert tool.closed == 1
    assert task.cancelled() or task.exception() or task.result().error


async def test_an_index_that_cannot_be_made_is_a_mistake_of_the_configuration(closed: Services, tmp_path: Any):
    loop = a_loop(closed, tools={"file_search": {"folders": {"house": str(tmp_path / "nowhere")}}})
    with pytest.raises(ConfigError):
        await loop.open()
    await loop.close()


def test_an_unknown_tool_is_a_mistake_of_the_configuration(closed: Services):
    with pytest.raises(ConfigError):
        a_loop(closed, tools={"crystal_ball": {}})
    with pytest.raises(ConfigError):
        a_loop(closed, tools={"web_search": {"provider": "nobody"}})


# Names


async def test_two_tools_cannot_offer_the_same_function(closed: Services):
    both = [declared("srv"), declared("srv")]
    turn = await played(a_loop(closed), both, hosted=[(0, StandIn()), (1, StandIn())])
    assert isinstance(turn.error, InvalidRequest)
    assert turn.error.param == "tools[1]"


async def test_a_function_of_the_clients_cannot_be_called_like_one_of_ours(closed: Services):
    theirs = {"type": "function", "name": "srv__look", "parameters": {}}
    for tools, place in (([declared(), theirs], 0), ([theirs, declared()], 1)):
        tool = StandIn()
        turn = await played(a_loop(closed), tools, hosted=[(place, tool)])
        assert isinstance(turn.error, InvalidRequest)
        assert turn.error.param == f"tools[{1 - place}]"
        assert tool.closed == 1


async def test_custom_tools_and_namespaces_may_be_called_like_ours(closed: Services):
    custom = {"type": "custom", "name": "srv__look"}
    namespace = {"type": "namespace", "name": "srv__look", "tools": [{"type": "function", "name": "srv__look"}]}
    turn = await played(
        a_loop(closed), [declared(), custom, namespace], an_answer("resp_1", message("m", "x")), hosted=[(0, StandIn())]
    )
    assert turn.sent["tools"][1:] == [custom, namespace]


# Tools that nobody serves


async def test_a_type_that_nobody_serves_is_forwarded_and_named_once(
    closed: Services, caplog: pytest.LogCaptureFixture
):
    loop = a_loop(closed)
    tools = [{"type": "web_search"}, {"type": "computer"}, MINE, {"type": "web_search", "x": 1}]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            turn = await played(loop, tools, an_answer("resp_1", message("m", "x")))
            assert turn.sent["tools"] == tools
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["web_search", "computer"]


async def test_a_type_that_nobody_serves_may_be_refused(closed: Services):
    loop = a_loop(closed, unconfigured_tools="reject")
    turn = await played(loop, [MINE, {"type": "computer"}])
    assert isinstance(turn.error, InvalidRequest)
    assert (turn.error.param, "computer" in turn.error.message) == ("tools[1]", True)
    turn = await played(loop, [MINE, {"type": "custom", "name": "a"}], an_answer("resp_1", message("m", "x")))
    assert turn.error is None


@pytest.mark.parametrize("tools", [[1], ["x"], [MINE, None], [[]]])
async def test_a_tool_that_is_no_object_is_refused_by_its_place(closed: Services, tools: list[Any]):
    turn = await played(a_loop(closed), tools)
    assert isinstance(turn.error, InvalidRequest)
    assert turn.error.param == f"tools[{len(tools) - 1}]"


async def test_a_grammar_is_kept_from_the_backend_and_shown_to_the_client(closed: Services):
    custom = {"type": "custom", "name": "sql", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}
    turn = await played(a_loop(closed), [custom], a_stream("resp_1", message("m", "x")))
    assert turn.sent["tools"] == [{"type": "custom", "name": "sql"}]
    assert turn.final["tools"] == [custom]


# Choices and includes


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        ("auto", "auto", ["mine", "srv__look", "srv__find"]),
        (
            {"type": "function", "name": "mine"},
            {"type": "function", "name": "mine"},
            ["mine", "srv__look", "srv__find"],
        ),
        (
            {"type": "mcp", "server_label": "srv", "name": "find"},
            {"type": "function", "name": "srv__find"},
            ["mine", "srv__look", "srv__find"],
        ),
        ({"type": "mcp", "server_label": "srv"}, "required", ["srv__look", "srv__find"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "mcp", "server_label": "srv", "name": "look"}],
            },
            "required",
            ["srv__look"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "none", []),
    ],
)
async def test_a_choice_is_sent_as_functions_and_shown_as_it_was_made(
    closed: Services, choice: Any, sent: Any, offered: list[str]
):
    tool = StandIn(tools=("look", "find"))
    turn = await played(
        a_loop(closed),
        [MINE, declared()],
        a_stream("resp_1", message("m", "x")),
        tool_choice=choice,
        hosted=[(1, tool)],
    )
    assert (turn.sent["tool_choice"], [each["name"] for each in turn.sent["tools"]]) == (sent, offered)
    assert turn.final["tool_choice"] == choice


async def test_a_choice_of_nothing_is_refused_before_anything_is_asked(closed: Services):
    choice = {"type": "allowed_tools", "mode": "required", "tools": []}
    tool = StandIn()
    turn = await played(a_loop(closed), [declared()], tool_choice=choice, hosted=[(0, tool)])
    assert isinstance(turn.error, InvalidRequest)
    assert (turn.error.param, turn.turns, tool.closed) == ("tool_choice", [], 1)


async def test_a_tool_knows_of_the_turn_what_it_may():
    history = History(Anchor(1, 2), (Item("m", "message", b"1"), Item("l", "mcp_list_tools", b"2")), "s")
    turn = post({"input": "x", "include": ["a", 1]}).replace(draft=Draft(keep=True, session="s", history=history))
    known = request(turn)
    assert (known.owner, known.include, known.bearer) == ("ann", frozenset({"a"}), None)
    assert known.history_types == {"message": [b"1"], "mcp_list_tools": [b"2"]}


@pytest.mark.parametrize("include", [None, "x", {}])
async def test_an_odd_include_is_the_backends_to_refuse(include: Any):
    assert request(post({"include": include})).include == frozenset()


@pytest.mark.parametrize(
    "options",
    [{"max_rounds": 0}, {"on_round_limit": "x"}, {"unconfigured_tools": "drop"}, {"max_retained_bytes": 1}, {"odd": 1}],
)
def test_options_are_checked(options: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(options))):
        Config(**options)


async def test_the_limits_reach_the_rounds(closed: Services):
    scripts = [an_answer(f"resp_{n}", a_call("srv__look", f"c{n}")) for n in range(3)]
    loop = a_loop(closed, max_rounds=2, on_round_limit="incomplete")
    turn = await played(loop, [declared()], *scripts, hosted=[(0, StandIn())])
    assert (turn.final["status"], len(turn.turns)) == ("incomplete", 2)
    assert json.loads(turn.turns[1].body.raw)["input"][-1]["type"] == "function_call_output"
