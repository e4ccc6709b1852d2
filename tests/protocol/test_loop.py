"""What follows a round, decided from what the model said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.errors import UpstreamProtocol
from proxy.protocol.loop import Decision, Fate, decide, replayed, result, said

HOSTED = {"weather", "srv__look"}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": []}


def a_call(name: str, call_id: str = "c1", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        **more,
    }


def decided(
    *items: dict[str, Any], type_: str = "response.completed", budget: int | None = None, **response: Any
) -> Decision:
    raw = json.dumps({"id": "resp_1", "output": items, **response}).encode()
    return decide(result(type_, raw, ()), HOSTED, budget)


def fates(decision: Decision) -> list[tuple[str, str]]:
    return [(call.call_id, call.fate.value) for call in decision.calls]


MINE = a_call("weather", "m1")
ALSO_MINE = a_call("srv__look", "m2")
THEIRS = a_call("lookup", "t1")
BAD = a_call("weather", "b1", '{"city": "Ly')


@pytest.mark.parametrize(
    ("items", "options", "calls", "go_on"),
    [
        ([], {}, [], False),
        ([MESSAGE, REASONING], {}, [], False),
        ([THEIRS], {}, [], False),
        ([MINE], {}, [("m1", "run")], True),
        ([REASONING, MESSAGE, MINE, ALSO_MINE], {}, [("m1", "run"), ("m2", "run")], True),
        ([MINE, THEIRS], {}, [("m1", "run")], False),
        ([THEIRS, MINE], {}, [("m1", "run")], False),
        ([MINE, {"type": "custom_tool_call", "call_id": "x", "name": "mine"}], {}, [("m1", "run")], False),
        # A custom call, or one within a namespace, is the client's whatever it is called.
        ([{"type": "custom_tool_call", "call_id": "x", "name": "weather", "input": ""}], {}, [], False),
        ([a_call("weather", namespace="theirs")], {}, [], False),
        ([a_call("weather", namespace=None)], {}, [("c1", "run")], True),
        # What cannot be run is told to the model, which may do better.
        ([BAD], {}, [("b1", "bad_arguments")], True),
        ([a_call("weather", arguments="[]")], {}, [("c1", "bad_arguments")], True),
        ([a_call("weather", arguments='"x"')], {}, [("c1", "bad_arguments")], True),
        ([a_call("weather", arguments="")], {}, [("c1", "bad_arguments")], True),
        ([a_call("weather", arguments='{"a":1} x')], {}, [("c1", "bad_arguments")], True),
        ([BAD, MINE], {}, [("b1", "bad_arguments"), ("m1", "run")], True),
        # A round that did not end well runs nothing.
        ([MINE], {"type_": "response.incomplete"}, [("m1", "unfinished")], False),
        ([MINE], {"type_": "response.failed"}, [("m1", "unfinished")], False),
        ([MINE, BAD], {"type_": "response.incomplete"}, [("m1", "unfinished"), ("b1", "unfinished")], False),
        # vLLM says `completed` of a response that is not, and only its status tells.
        ([MINE], {"status": "incomplete"}, [("m1", "unfinished")], False),
        ([MINE], {"status": "completed"}, [("m1", "run")], True),
        ([a_call("weather", status="incomplete")], {}, [("c1", "unfinished")], False),
        ([a_call("weather", status="in_progress")], {}, [("c1", "run")], True),
        # The budget.
        ([MINE, ALSO_MINE], {"budget": 2}, [("m1", "run"), ("m2", "run")], True),
        ([MINE, ALSO_MINE], {"budget": 1}, [("m1", "run"), ("m2", "unfinished")], False),
        ([MINE], {"budget": 0}, [("m1", "unfinished")], False),
        ([THEIRS, MESSAGE], {"budget": 0}, [], False),
        ([BAD, MINE], {"budget": 1}, [("b1", "bad_arguments"), ("m1", "run")], True),
    ],
)
def test_what_follows_a_round(
    items: list[dict[str, Any]], options: dict[str, Any], calls: list[tuple[str, str]], go_on: bool
):
    decision = decided(*items, **options)
    assert fates(decision) == calls
    assert decision.go_on is go_on


def test_a_planned_call_keeps_its_bytes():
    raw = b'{"type":"function_call" ,"call_id":"c\\u0031","name":"weather","arguments":"{\\"x\\": 1.50}"}'
    decision = decide(result("response.completed", b'{"output":[ %b ]}' % raw, ()), HOSTED, None)
    (call,) = decision.calls
    assert (call.raw, call.call_id, call.arguments, call.fate) == (raw, "c1", '{"x": 1.50}', Fate.RUN)


@pytest.mark.parametrize(
    "items",
    [
        [a_call("weather", "c"), a_call("weather", "c")],
        [a_call("weather", "c"), a_call("srv__look", "c")],
        [a_call("weather", "")],
        [a_call("weather") | {"call_id": None}],
    ],
)
def test_calls_that_cannot_be_told_apart_are_the_backends_fault(items: list[dict[str, Any]]):
    with pytest.raises(UpstreamProtocol):
        decided(*items)


def test_two_calls_of_the_client_are_not_ours_to_judge():
    assert decided(a_call("lookup", "c"), a_call("lookup", "c")).calls == ()


def test_items_are_the_responses_own_else_those_that_streamed():
    streamed = [json.dumps(MINE).encode()]
    assert result("x", b'{"output":[]}', streamed).items == tuple(streamed)
    assert result("x", b'{"output":null}', streamed).items == tuple(streamed)
    assert result("x", b"{}", streamed).items == tuple(streamed)
    assert result("x", b'{"output":[{"a": 1}]}', streamed).items == (b'{"a": 1}',)


def test_a_call_and_its_output_are_replayed_side_by_side():
    (call,) = decided(MINE).calls
    again = json.loads(b"[" + replayed(call, 'said "so"\n') + b"]")
    assert again == [MINE, {"type": "function_call_output", "call_id": "m1", "output": 'said "so"\n'}]
    assert replayed(call, "x").startswith(call.raw)


def test_what_was_said_is_everything_but_hosted_calls():
    namespaced = a_call("weather", "n", namespace="theirs")
    raw = json.dumps({"output": [REASONING, MESSAGE, MINE, THEIRS, namespaced]}).encode()
    kept = said(result("response.completed", raw, ()), HOSTED)
    assert [json.loads(item.body) for item in kept] == [REASONING, MESSAGE, THEIRS, namespaced]
