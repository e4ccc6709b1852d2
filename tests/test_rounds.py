"""The rounds of one turn, over a scripted backend and a stand-in for the tool."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from proxy import errors
from proxy.chain import Next, Send
from proxy.protocol import jsonbytes
from proxy.protocol.events import Answer, Event, Frames, Head
from proxy.protocol.hosting import Approved, HostedCall
from proxy.protocol.lowering import Tools
from proxy.protocol.turn import Draft, Turn
from proxy.rounds import Bounds, Offer, Rounds
from tests.hosted import StandIn, declared
from tests.playbook import JSON, Step, post, run
from tests.rounds import (
    Rounded,
    Wire,
    a_call,
    a_round,
    a_stream,
    an_answer,
    check,
    message,
    play_rounds,
    read,
    reasoning,
)

both_ways = pytest.mark.parametrize("stream", [True, False])
LOOK = a_call("srv__look", "c1", '{"at":"home"}')
DONE = b"data: [DONE]\n\n"


@dataclass
class Loop:
    """The rounds as a filter, with one declared server (and a function of the client's)."""

    hosted: StandIn
    max_rounds: int = 5
    max_parallel: int = 8
    max_calls: int = 32
    seconds: float = 60
    max_bytes: int = 1 << 20
    incomplete: bool = False
    draft: Draft = field(default_factory=lambda: Draft(keep=True, session="s"))
    approved: Sequence[Approved] = ()

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        raw = jsonbytes.elements(turn.body.fields["tools"])
        bounds = Bounds(
            self.max_rounds, self.max_parallel, self.max_calls, self.seconds, self.max_bytes, self.incomplete
        )
        owners = {each.name: self.hosted for each in self.hosted.functions}
        budget = turn.body.get("max_tool_calls")
        offer = Offer(
            Tools(raw, {0: self.hosted.functions}),
            [self.hosted],
            owners,
            int(budget) if budget else None,
            turn.body.flag("parallel_tool_calls", True),
        )
        numbers = count(1)
        turn = turn.replace(draft=self.draft, approved=tuple(self.approved))
        await Rounds(bounds, offer, turn, send, lambda prefix: f"{prefix}{next(numbers)}").run(call_next)


def asked(**members: Any) -> Turn:
    tools = [declared(headers={"X-Key": "k3y"}), {"type": "function", "name": "mine", "parameters": {}}]
    return post({"model": "m", "input": "x", "tools": tools, **members})


async def played(loop: Loop | StandIn, *scripts: Sequence[Step], **members: Any) -> Rounded:
    loop = Loop(loop) if isinstance(loop, StandIn) else loop
    return await play_rounds([loop], asked(**members), *scripts)


def scripted(*scripts: Sequence[Step]) -> Rounded:
    """A turn that the test itself will run."""
    return Rounded((), scripts=deque(scripts))


# Rounds


@both_ways
async def test_the_model_is_asked_again_with_what_the_tool_said(stream: bool):
    tool = StandIn()
    scripts = (
        a_round(stream, "resp_1", reasoning("rs_1", "hm"), message("msg_1", "wait"), LOOK),
        a_round(stream, "resp_2", a_call("srv__look", "c2", "{}")),
        a_round(stream, "resp_3", message("msg_2", "so")),
    )
    turn = await played(tool, *scripts, tool_choice="required", temperature=0.5)
    assert turn.output == ["reasoning", "message", "mcp_call", "mcp_call", "message"]
    assert turn.final["id"] == "resp_1"
    assert turn.final["usage"] == {"input_tokens": 9}
    first, second, third = turn.sent_all
    assert [each["tool_choice"] for each in (first, second, third)] == ["required", "auto", "auto"]
    raw = [each.body.fields for each in turn.turns]
    for name in ("tools", "model", "temperature"):
        assert raw[0][name] == raw[1][name] == raw[2][name]
    assert second["input"][:1] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
    ]
    assert second["input"][1:] == [
        reasoning("rs_1", "hm"),
        message("msg_1", "wait"),
        LOOK,
        {"type": "function_call_output", "call_id": "c1", "output": 'srv__look {"at":"home"}'},
    ]
    assert raw[2]["input"].startswith(raw[1]["input"][:-1]), "a prompt grows at its end alone"
    assert [(call.call_id, call.arguments) for call in tool.calls] == [("c1", '{"at":"home"}'), ("c2", "{}")]


async def test_a_stream_has_one_head_which_says_that_it_is_composed():
    turn = await played(StandIn(), a_stream("resp_1", LOOK), a_stream("resp_2", message("msg_1", "so")))
    (head,) = [each for each in turn.heard if isinstance(each, Head)]
    assert head.composed
    assert turn.heard[0] is head


async def test_every_response_shows_the_tools_as_declared_less_the_secrets():
    choice = {"type": "mcp", "server_label": "srv"}
    turn = await played(
        StandIn(), a_stream("resp_1", LOOK), a_stream("resp_2", message("msg_1", "so")), tool_choice=choice
    )
    tools = [declared(), {"type": "function", "name": "mine", "parameters": {}}]
    responses = [each["response"] for each in turn.data if "response" in each]
    assert [(each["tools"], each["tool_choice"]) for each in responses] == [(tools, choice)] * 3
    assert "k3y" not in json.dumps(turn.data)


@both_ways
async def test_the_clients_calls_are_left_open(stream: bool):
    tool = StandIn()
    loop = Loop(tool)
    turn = await played(loop, a_round(stream, "resp_1", a_call("mine", "t1"), LOOK))
    assert turn.output == ["function_call", "mcp_call"]
    assert len(turn.turns) == len(tool.calls) == 1
    (kept,) = loop.draft.upstream.values()
    assert [item["call_id"] for item in json.loads(b"[" + kept + b"]")] == ["c1", "c1"]


@both_ways
async def test_a_failed_or_cut_round_runs_nothing(stream: bool):
    for status in ("incomplete", "failed"):
        tool = StandIn()
        script = a_stream("resp_1", LOOK, type_=status) if stream else an_answer("resp_1", LOOK, status=status)
        turn = await played(tool, script)
        assert (turn.output, tool.calls) == (["mcp_call"], [])
        assert (turn.final["status"], turn.final["output"][0]["status"]) == (status, "incomplete")


@both_ways
async def test_bad_arguments_are_told_to_the_model(stream: bool):
    tool = StandIn()
    turn = await played(
        tool,
        a_round(stream, "resp_1", a_call("srv__look", "c1", '{"at')),
        a_round(stream, "resp_2", message("msg_1", "sorry")),
    )
    assert tool.calls == []
    assert turn.final["output"][0]["error"] == "The arguments are not a JSON object."
    assert turn.sent_all[1]["input"][-1]["output"] == "Error: The arguments are not a JSON object."


@both_ways
@pytest.mark.parametrize(("budget", "run_"), [(0, 0), (1, 1), (2, 2), (3, 3)])
async def test_max_tool_calls_counts_over_all_rounds(stream: bool, budget: int, run_: int):
    tool = StandIn()
    scripts = (
        a_round(stream, "resp_1", a_call("srv__look", "c1"), a_call("srv__look", "c2")),
        a_round(stream, "resp_2", a_call("srv__look", "c3")),
        a_round(stream, "resp_3", message("msg_1", "so")),
    )
    turn = await played(tool, *scripts, max_tool_calls=budget)
    assert len(tool.calls) == run_
    statuses = [item["status"] for item in turn.final["output"] if item["type"] == "mcp_call"]
    assert statuses.count("completed") == run_
    assert statuses == sorted(statuses)
    assert (turn.output[-1] == "message") is (budget == 3)


@both_ways
async def test_results_keep_the_order_of_the_calls(stream: bool):
    turns = {"c1": asyncio.Event(), "c2": asyncio.Event(), "c3": asyncio.Event()}
    turns["c3"].set()

    async def backwards(call: HostedCall) -> str:
        await turns[call.call_id].wait()
        before = {"c3": "c2", "c2": "c1"}.get(call.call_id)
        if before:
            turns[before].set()
        return call.call_id

    calls = [a_call("srv__look", call_id) for call_id in turns]
    tool = StandIn(run_=backwards)
    turn = await played(tool, a_round(stream, "resp_1", *calls), a_round(stream, "resp_2", message("msg_1", "so")))
    assert [item.get("output") for item in turn.final["output"]] == ["c1", "c2", "c3", None]
    assert [item.get("output") for item in turn.sent_all[1]["input"]][2::2] == ["c1", "c2", "c3"]
    assert tool.most == 3


@pytest.mark.parametrize(("parallel", "most", "limit"), [(True, 2, 2), (False, 1, 8), (True, 4, 8)])
async def test_calls_run_at_once_within_their_bound(parallel: bool, most: int, limit: int):
    async def slow(call: HostedCall) -> str:
        await asyncio.sleep(0.01)
        return ""

    tool = StandIn(run_=slow)
    calls = [a_call("srv__look", f"c{n}") for n in range(4)]
    loop = Loop(tool, max_parallel=limit)
    await played(loop, a_stream("resp_1", *calls), a_stream("resp_2", message("m", "x")), parallel_tool_calls=parallel)
    assert tool.most == most


async def test_a_call_is_shown_when_it_begins_and_when_it_ends():
    begun, gate = asyncio.Event(), asyncio.Event()

    async def waiting(call: HostedCall) -> str:
        begun.set()
        await gate.wait()
        return "seen"

    turn = scripted(a_stream("resp_1", LOOK), a_stream("resp_2", message("m", "x")))
    task = asyncio.ensure_future(run([Loop(StandIn(run_=waiting))], asked(), turn))
    await begun.wait()
    assert turn.types[-1] == "response.mcp_call.in_progress"
    gate.set()
    await task
    kinds = [each for each in turn.types if "mcp_call" in each or "output_item" in each]
    assert kinds[:4] == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call.completed",
        "response.output_item.done",
    ]


# Before the first round


@both_ways
async def test_openings_stand_before_all_output(stream: bool):
    turn = await played(StandIn(lists=True), a_round(stream, "resp_1", message("msg_1", "hi")))
    assert turn.output == ["mcp_list_tools", "message"]
    if stream:
        assert turn.types[:7] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.mcp_list_tools.in_progress",
            "response.mcp_list_tools.completed",
            "response.output_item.done",
            "response.output_item.added",
        ]


@pytest.mark.parametrize("lines", [(0, -1), (0, 1, -1), (0, 2, 3, 4, 5, 6, 7, 8, -1)])
async def test_openings_are_shown_whatever_the_backend_leaves_out(lines: tuple[int, ...]):
    head, *events = a_stream("resp_1", *([message("msg_1", "")] if len(lines) > 3 else []))
    kept = [part for part in events if isinstance(part, Event | Frames)]
    turn = await played(StandIn(lists=True), [head, *(kept[n] for n in lines if n < len(kept))])
    assert turn.output[0] == "mcp_list_tools"
    assert turn.types[0] == "response.created"


async def test_a_comment_before_the_beginning_begins_nothing():
    turn = await played(StandIn(lists=True), a_stream("resp_1", message("msg_1", "x"), wire=Wire(comments=True)))
    assert turn.output == ["mcp_list_tools", "message"]
    assert turn.heard[1].raw.startswith(b": ping")  # type: ignore[union-attr]


def an_approval(hosted: StandIn | None, request: str = "mcpr_1") -> Approved:
    return Approved(request, "srv__look", '{"at":"sea"}', "mcpa_1", hosted)


@both_ways
async def test_an_approved_call_is_run_before_the_model_is_asked(stream: bool):
    tool = StandIn(lists=True, gated=["look"])
    loop = Loop(tool, approved=[an_approval(tool)])
    turn = await played(loop, a_round(stream, "resp_1", message("msg_1", "so")))
    assert turn.output == ["mcp_list_tools", "mcp_call", "message"]
    call = turn.final["output"][1]
    assert (call["approval_request_id"], call["output"]) == ("mcpr_1", 'srv__look {"at":"sea"}')
    (sent,) = turn.sent_all
    made, said = sent["input"][-2:]
    assert (made["name"], made["arguments"], said["output"]) == ("srv__look", '{"at":"sea"}', call["output"])
    assert made["call_id"] == said["call_id"]
    assert loop.draft.upstream[call["id"]] == b",".join(jsonbytes.elements(turn.turn.body.fields["input"])[-2:])


async def test_a_refusal_runs_nothing():
    tool = StandIn()
    turn = await played(Loop(tool, approved=[an_approval(None)]), a_stream("resp_1", message("msg_1", "so")))
    assert (tool.calls, turn.output) == ([], ["message"])


# Approvals


@both_ways
async def test_a_gated_call_waits_and_its_sibling_runs(stream: bool):
    tool = StandIn(tools=("look", "wipe"), gated=["wipe"])
    loop = Loop(tool)
    turn = await played(
        loop, a_round(stream, "resp_1", a_call("srv__wipe", "c1", '{"all":true}'), LOOK | {"call_id": "c2"})
    )
    asked_, done = turn.final["output"]
    assert asked_ == {
        "id": asked_["id"],
        "type": "mcp_approval_request",
        "server_label": "srv",
        "name": "wipe",
        "arguments": '{"all":true}',
    }
    assert asked_["id"].startswith("mcpr_")
    assert (done["type"], done["status"]) == ("mcp_call", "completed")
    assert [call.name for call in tool.calls] == ["srv__look"]
    assert len(turn.turns) == 1
    assert [(each.id, each.target) for each in loop.draft.approvals] == [(asked_["id"], tool.fingerprint)]
    assert loop.draft.upstream[asked_["id"]] == b""


@both_ways
async def test_nothing_can_wait_in_a_response_that_is_not_stored(stream: bool):
    tool = StandIn(gated=["look"])
    loop = Loop(tool, draft=Draft(keep=False, session=""))
    turn = await played(loop, a_round(stream, "resp_1", LOOK))
    assert isinstance(turn.error, errors.InvalidRequest)
    assert turn.error.param == "store"
    assert tool.calls == []


# The end


@pytest.mark.parametrize(("first", "last"), [(True, True), (True, False), (False, True), (False, False)])
async def test_done_is_said_exactly_if_the_last_round_said_it(first: bool, last: bool):
    turn = await played(
        StandIn(),
        a_stream("resp_1", LOOK, wire=Wire(done=first)),
        a_stream("resp_2", message("m", "x"), wire=Wire(done=last)),
    )
    raw = [event.raw for event in turn.events]
    assert raw.count(DONE) == last
    assert (raw[-1] == DONE) is last
    check(turn.events)


async def test_a_comment_is_no_end():
    wire = Wire(comments=True)
    turn = await played(
        StandIn(), a_stream("resp_1", LOOK, wire=wire), a_stream("resp_2", message("m", "x"), wire=wire)
    )
    assert turn.events[-1].type == "response.completed"
    assert sum(event.raw.startswith(b":") for event in turn.events) > 5


async def test_nothing_follows_the_end_of_a_round():
    late = Wire(first=50)
    begun = late.event("response.output_item.added", output_index=3, item=message("msg_9", "late"))
    delta = late.event("response.output_text.delta", output_index=3, item_id="msg_9", delta="late")
    again = late.event("response.completed", response={"id": "resp_9", "output": [LOOK]})
    after = [part for raw in (begun, delta, again, begun, delta) for part in read(raw)]
    turn = await played(
        StandIn(),
        [*a_stream("resp_1", LOOK), *after],
        [*a_stream("resp_2", message("m", "x")), *after],
    )
    assert turn.output == ["mcp_call", "message"]
    assert b"late" not in b"".join(event.raw for event in turn.events)


@both_ways
async def test_the_round_limit_is_an_error_with_the_response_so_far(stream: bool):
    tool = StandIn()
    scripts = [a_round(stream, f"resp_{n}", a_call("srv__look", f"c{n}")) for n in range(3)]
    turn = await played(Loop(tool, max_rounds=2), *scripts)
    assert isinstance(turn.error, errors.RoundLimit)
    response = json.loads(turn.error.response)
    assert (response["status"], response["id"]) == ("incomplete", "resp_0")
    assert response["incomplete_details"] == {"reason": "max_rounds"}
    assert [item["type"] for item in response["output"]] == ["mcp_call", "mcp_call"]
    assert len(turn.turns) == 2


@both_ways
async def test_the_round_limit_may_end_in_an_incomplete_response(stream: bool):
    scripts = [a_round(stream, f"resp_{n}", a_call("srv__look", f"c{n}")) for n in range(3)]
    turn = await played(Loop(StandIn(), max_rounds=2, incomplete=True), *scripts)
    assert turn.error is None
    assert (turn.final["status"], turn.output) == ("incomplete", ["mcp_call", "mcp_call"])
    if stream:
        assert turn.types[-1] == "response.incomplete"


async def test_a_merged_body_does_not_keep_the_digest_of_another():
    bound = (*JSON, (b"ETag", b'"1"'), (b"Content-Digest", b"sha-256=:x:"), (b"X-Other", b"kept"))
    turn = await played(StandIn(), an_answer("resp_1", LOOK), an_answer("resp_2", message("m", "x"), headers=bound))
    (answer,) = turn.heard
    assert isinstance(answer, Answer)
    assert answer.headers == (*JSON, (b"X-Other", b"kept"))


# What goes wrong

REFUSAL = Answer(429, b"Slow Down", (*JSON, (b"Retry-After", b"3")), b'{"error":{"message":"later","code":"rate"}}')


@both_ways
async def test_a_backend_that_refuses_the_first_round_answers_for_itself(stream: bool):
    turn = await played(StandIn(lists=True), [REFUSAL], stream=stream)
    assert turn.heard == [REFUSAL]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (REFUSAL, {"code": "rate", "message": "later"}),
        (Answer(500, b"", JSON, b'{"error":"odd"}'), {"code": "server_error", "message": "The backend answered 500."}),
        (Answer(500, b"", JSON, b'{"error":{}}'), {"code": "server_error", "message": "The backend answered 500."}),
        (Answer(500, b"", JSON, b"oops"), {"code": "server_error", "message": "The backend answered 500."}),
        (Answer(500, b"", JSON, b"[]"), {"code": "server_error", "message": "The backend answered 500."}),
        (
            Answer(400, b"", JSON, b'{"error":{"message":"m","code":400}}'),
            {"code": "server_error", "message": "m"},
        ),
    ],
)
async def test_a_refusal_of_a_later_round_fails_the_response(refusal: Answer, error: dict[str, str]):
    turn = await played(StandIn(), a_stream("resp_1", message("msg_1", "wait"), LOOK), [refusal])
    assert turn.types[-1] == "response.failed"
    assert (turn.final["error"], turn.final["status"], turn.final["id"]) == (error, "failed", "resp_1")
    assert turn.output == ["message", "mcp_call"]


async def test_a_refusal_of_a_later_round_without_a_stream_is_the_answer():
    turn = await played(StandIn(), an_answer("resp_1", LOOK), [REFUSAL])
    assert turn.heard == [REFUSAL]


@pytest.mark.parametrize(
    ("event", "message_"),
    [
        (Wire().event("error", message="out of memory", code="x"), "out of memory"),
        (Wire().event("error"), "The backend reported an error."),
        (Wire().event("error", error={"message": "within"}), "within"),
    ],
)
async def test_an_error_event_in_a_later_round_fails_the_response(event: bytes, message_: str):
    head, *begun = a_stream("resp_2", message("msg_2", "half"))[:4]
    turn = await played(StandIn(), a_stream("resp_1", LOOK), [head, *begun[:2], *read(event)])
    assert turn.types[-1] == "response.failed"
    assert turn.final["error"]["message"] == message_
    assert turn.output == ["mcp_call"]


async def test_an_error_event_in_the_first_round_stands():
    head, created, *_ = a_stream("resp_1")
    turn = await played(StandIn(), [head, created, *read(Wire().event("error", message="m"))])
    assert turn.types == ["response.created", "error"]
    assert (turn.data[-1]["message"], turn.data[-1]["sequence_number"]) == ("m", 1)


async def test_an_error_event_before_any_response_shows_no_openings():
    head, *_ = a_stream("resp_1")
    turn = await played(StandIn(lists=True), [head, *read(Wire().event("error", message="m"))])
    assert turn.types == ["error"]


@pytest.mark.parametrize("error", [errors.UpstreamDropped(), errors.StreamCut(), errors.IdleTimeout()])
async def test_a_backend_that_breaks_down_in_a_later_round_fails_the_response(error: errors.UpstreamError):
    for begun in (0, 1, 3, 5):
        turn = await played(
            StandIn(), a_stream("resp_1", LOOK), [*a_stream("resp_2", message("m", "x"))[:begun], error]
        )
        assert turn.error is None
        assert turn.types[-1] == "response.failed"
        response = turn.data[-1]["response"]
        assert (response["id"], response["error"]["message"]) == ("resp_1", error.message)
        assert response["output"][0]["type"] == "mcp_call"


async def test_a_backend_that_breaks_down_before_anything_was_shown_is_an_error():
    for scripts in ([[errors.UpstreamDropped()]], [an_answer("resp_1", LOOK), [errors.UpstreamDropped()]]):
        turn = await played(StandIn(), *scripts)
        assert isinstance(turn.error, errors.UpstreamDropped)
        assert turn.heard == []


@pytest.mark.parametrize("begun", [1, 2, 3, 5])
async def test_a_first_round_without_an_end_is_cut(begun: int):
    turn = await played(StandIn(), a_stream("resp_1", LOOK)[:begun])
    assert isinstance(turn.error, errors.StreamCut)


async def test_rounds_that_disagree_about_streaming_are_the_backends_fault():
    turn = await played(StandIn(), a_stream("resp_1", LOOK), an_answer("resp_2", message("m", "x")))
    assert turn.types[-1] == "response.failed"
    assert turn.output == ["mcp_call"]
    turn = await played(StandIn(), an_answer("resp_1", LOOK), a_stream("resp_2", message("m", "x")))
    assert isinstance(turn.error, errors.UpstreamProtocol)
    assert turn.heard == []


@pytest.mark.parametrize("body", [b"", b"[]", b"nope", b'"x"'])
async def test_an_answer_that_is_no_response_is_the_backends_fault(body: bytes):
    for before in ([], [an_answer("resp_1", LOOK)]):
        turn = await played(StandIn(), *before, [Answer(200, b"OK", JSON, body)])
        assert isinstance(turn.error, errors.UpstreamProtocol)


async def test_a_body_of_another_kind_is_the_backends_fault():
    turn = await played(StandIn(), [Head(200, b"OK", ((b"content-type", b"text/html"),))])
    assert isinstance(turn.error, errors.UpstreamProtocol)


@both_ways
async def test_a_tool_that_takes_too_long_is_given_up(stream: bool):
    async def hanging(call: HostedCall) -> str:
        await asyncio.Event().wait()
        return ""

    tool = StandIn(run_=hanging)
    turn = await played(
        Loop(tool, seconds=0.01), a_round(stream, "resp_1", LOOK), a_round(stream, "resp_2", message("m", "x"))
    )
    call = turn.final["output"][0]
    assert (call["status"], call["error"]) == ("failed", "The tool did not answer within 0.01 seconds.")
    assert turn.sent_all[1]["input"][-1]["output"].startswith("Error: ")
    assert tool.running == 0


@both_ways
async def test_more_calls_than_a_round_may_have_are_not_begun(stream: bool):
    tool = StandIn()
    calls = [a_call("srv__look", f"c{n}") for n in range(3)]
    turn = await played(Loop(tool, max_calls=2), a_round(stream, "resp_1", *calls))
    assert "more than 2 calls" in broken_off(turn, stream)
    assert tool.calls == []


def broken_off(turn: Rounded, stream: bool) -> str:
    """Why the turn was broken off after its first round: an event of the stream says it, else an error."""
    if not stream:
        assert isinstance(turn.error, errors.UpstreamProtocol)
        return turn.error.message
    assert turn.error is None
    last = turn.events[-1]
    assert last.type == "response.failed"
    message: str = json.loads(last.fields["response"])["error"]["message"]
    return message


@both_ways
async def test_outputs_beyond_what_is_kept_end_the_turn(stream: bool):
    async def much(call: HostedCall) -> str:
        return "x" * 5000

    turn = await played(Loop(StandIn(run_=much), max_bytes=4096), a_round(stream, "resp_1", LOOK))
    assert "4096" in broken_off(turn, stream)


async def test_what_one_tool_breaks_stops_its_siblings():
    async def breaking(call: HostedCall) -> str:
        if call.call_id == "c1":
            raise RuntimeError("a bug")
        await asyncio.Event().wait()
        return ""

    tool = StandIn(run_=breaking)
    with pytest.raises(RuntimeError):
        await played(tool, a_stream("resp_1", LOOK, a_call("srv__look", "c2")))
    assert tool.running == 0


# A client that leaves


@both_ways
async def test_leaving_while_a_tool_runs_stops_it_at_once(stream: bool):
    begun = asyncio.Event()

    async def hanging(call: HostedCall) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    tool = StandIn(run_=hanging)
    turn = scripted(a_round(stream, "resp_1", LOOK, a_call("srv__look", "c2")))
    task = asyncio.ensure_future(run([Loop(tool)], asked(), turn))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tool.running == 0
    assert len(turn.turns) == 1


async def test_leaving_in_a_later_round_ends_it():
    tool = StandIn()
    second = a_stream("resp_2", message("m", "x"))
    turn = scripted(a_stream("resp_1", LOOK), [*second[:5], asyncio.Event(), *second[5:]])
    task = asyncio.ensure_future(run([Loop(tool)], asked(), turn))
    await turn.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not {"response.completed", "response.failed", "error"} & set(turn.types)
