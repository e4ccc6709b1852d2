"""Calls that wait for a person: asked for, answered, used once, by whoever may, for what was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from proxy.chain import Filter
from proxy.errors import InvalidRequest, ToolError
from proxy.filters import agentic_loop, mcp_tools, rehydrate, response_store, validate
from proxy.protocol.hosting import Hosted, Request
from proxy.protocol.turn import Operation
from proxy.services import Services
from tests.hosted import StandIn, StandInTool, declared
from tests.playbook import Step, play, post
from tests.rounds import Rounded, a_call, a_round, an_answer, message, play_rounds
from tests.store.records import connect

both_ways = pytest.mark.parametrize("stream", [True, False])
CALL = a_call("srv__wipe", "c1", '{"all":true}')


class Gateway:
    """The filters that keep state and run tools, over a store; the servers are stand-ins."""

    def __init__(self, services: Services, tool: StandInTool, patch: pytest.MonkeyPatch) -> None:
        self.tool = tool
        patch.setattr(mcp_tools, "Mcp", lambda config, kit: tool)
        self.filters: list[Filter] = [
            validate.Validate(validate.Config(), services),
            response_store.ResponseStore(response_store.Config(), services),
            rehydrate.Rehydrate(rehydrate.Config(), services),
            mcp_tools.McpTools(mcp_tools.Config(), services),
            agentic_loop.AgenticLoop(agentic_loop.Config(), services),
        ]
        self.store = services.store

    async def turn(self, input_: Any, *scripts: Sequence[Step], owner: str = "ann", **members: Any) -> Rounded:
        """One turn that declares the server."""
        body = {"input": input_, "tools": [declared()], **members}
        return await play_rounds(self.filters, post(body, owner=owner), *scripts)

    async def asked(
        self, *calls: dict[str, Any], stream: bool = False, id_: str = "resp_1", **members: Any
    ) -> list[str]:
        """A turn that ends with approval requests; gives their ids."""
        turn = await self.turn("go", a_round(stream, id_, *(calls or (CALL,))), stream=stream, **members)
        assert turn.error is None
        return [item["id"] for item in turn.final["output"] if item["type"] == "mcp_approval_request"]


Make = Callable[..., Awaitable[Gateway]]


@pytest_asyncio.fixture
async def make(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Gateways over one database, each as a process of its own would be."""
    opened: list[Services] = []

    async def another(server: StandIn, *more: StandIn) -> Gateway:
        opened.append(Services(await connect(store_url), {}))
        return Gateway(opened[-1], StandInTool({each.label: each for each in (server, *more)}), monkeypatch)

    yield another
    for services in opened:
        await services.background.close()
        await services.store.close()


def a_server(**fields: Any) -> StandIn:
    return StandIn(**{"tools": ("look", "wipe"), "gated": ["wipe"], **fields})


def answer(request_id: str, approve: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve, **more}


def reference(id_: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": id_}


SO = message("msg_so", "so")


def last(id_: str = "resp_2", stream: bool = False) -> Sequence[Step]:
    return a_round(stream, id_, SO)


# Answers


@both_ways
async def test_an_approved_call_runs_with_the_arguments_that_were_asked(make: Make, stream: bool):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked(stream=stream)
    assert server.calls == []
    turn = await gateway.turn([answer(id_)], last(stream=stream), previous_response_id="resp_1", stream=stream)
    assert turn.output == ["mcp_call", "message"]
    call = turn.final["output"][0]
    assert (call["approval_request_id"], call["arguments"], call["name"]) == (id_, '{"all":true}', "wipe")
    assert [each.arguments for each in server.calls] == ['{"all":true}']
    made, said = turn.sent["input"][-2:]
    assert (made["name"], said["output"]) == ("srv__wipe", call["output"])
    assert not [item for item in turn.sent["input"] if "mcp" in item["type"]]
    third = await gateway.turn("more", last("resp_3"), previous_response_id="resp_2")
    assert third.turn.body.fields["input"].startswith(turn.turn.body.fields["input"][:-1])


async def test_a_refusal_is_read_by_the_model_now_and_always(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    turn = await gateway.turn(
        [answer(id_, approve=False, reason='too "risky"'), {"role": "user", "content": "and?"}],
        last(),
        previous_response_id="resp_1",
    )
    assert turn.output == ["message"]
    assert server.calls == []
    call, output, user = turn.sent["input"][-3:]
    assert (call["name"], call["arguments"], call["call_id"]) == ("srv__wipe", '{"all":true}', output["call_id"])
    assert output["output"] == 'The user did not approve this call: too "risky"'
    assert user == {"role": "user", "content": "and?"}
    third = await gateway.turn("more", last("resp_3"), previous_response_id="resp_2")
    before = turn.turn.body.fields["input"][:-1]
    assert third.turn.body.fields["input"].startswith(before), "byte for byte"


@pytest.mark.parametrize("reason", [None, ""])
async def test_a_refusal_needs_no_reason_and_no_tool(make: Make, reason: str | None):
    gateway = await make(a_server())
    (id_,) = await gateway.asked()
    turn = await gateway.turn(
        [answer(id_, approve=False, reason=reason)], last(), previous_response_id="resp_1", tools=[]
    )
    assert turn.sent["input"][-1]["output"] == "The user did not approve this call."
    assert turn.output == ["message"]


async def test_a_gated_call_and_a_free_one_of_a_round(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked(CALL, a_call("srv__look", "c2"))
    assert [call.name for call in server.calls] == ["srv__look"]
    turn = await gateway.turn([answer(id_)], last(), previous_response_id="resp_1")
    names = [item.get("name") for item in turn.sent["input"] if item["type"] == "function_call"]
    assert names == ["srv__look", "srv__wipe"]
    assert [call.name for call in server.calls] == ["srv__look", "srv__wipe"]


async def test_several_are_answered_at_once_each_its_own_way(make: Make):
    server = a_server()
    gateway = await make(server)
    one, two, three = await gateway.asked(*(a_call("srv__wipe", f"c{n}", f'{{"n":{n}}}') for n in range(3)))
    turn = await gateway.turn(
        [answer(three), answer(one, approve=False), answer(two)], last(), previous_response_id="resp_1"
    )
    assert turn.output == ["mcp_call", "mcp_call", "message"]
    assert [call.arguments for call in server.calls] == ['{"n":2}', '{"n":1}']
    outputs = [item["output"] for item in turn.sent["input"] if item["type"] == "function_call_output"]
    assert [each.split()[0] for each in outputs] == ["The", "srv__wipe", "srv__wipe"]


async def test_an_approved_call_is_not_asked_for_again(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    again = a_round(False, "resp_2", a_call("srv__wipe", "c9"))
    turn = await gateway.turn([answer(id_)], again, previous_response_id="resp_1")
    assert turn.output == ["mcp_call", "mcp_approval_request"], "but another call is"


# Forms without previous_response_id


@both_ways
async def test_a_request_may_be_named_by_reference_alone(make: Make, stream: bool):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    user = {"role": "user", "content": "go"}
    turn = await gateway.turn([user, reference(id_), answer(id_)], last(stream=stream), stream=stream)
    assert turn.output == ["mcp_call", "message"]
    assert turn.sent["input"][0] == user
    assert [item["type"] for item in turn.sent["input"][1:]] == ["function_call", "function_call_output"]
    third = await gateway.turn("more", last("resp_3"), previous_response_id="resp_2")
    assert third.turn.body.fields["input"].startswith(turn.turn.body.fields["input"][:-1])


async def test_a_replayed_request_is_what_was_asked_whatever_a_client_makes_of_it(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    forged = {
        "id": id_,
        "type": "mcp_approval_request",
        "server_label": "srv",
        "name": "look",
        "arguments": '{"all":"of it"}',
    }
    for members in ({}, {"previous_response_id": "resp_1"}):
        if not members:
            turn = await gateway.turn([forged, answer(id_)], last())
            assert [(call.name, call.arguments) for call in server.calls] == [("srv__wipe", '{"all":true}')]
        else:
            turn = await gateway.turn([forged, answer(id_)], last("resp_3"), **members)
            assert isinstance(turn.error, InvalidRequest)


async def test_a_client_that_replays_everything_is_not_refused_for_its_past(make: Make):
    server = a_server()
    gateway = await make(server)
    one, two = await gateway.asked(CALL, a_call("srv__wipe", "c2"))
    history: list[Any] = [
        {"role": "user", "content": "go"},
        *(item for id_ in (one, two) for item in (reference(id_), answer(id_, approve=id_ == one))),
    ]
    turn = await gateway.turn(history, last())
    assert turn.output == ["mcp_call", "message"]
    history += [*turn.final["output"], {"role": "user", "content": "more"}]
    again = await gateway.turn(history, last("resp_3"))
    assert again.error is None
    assert len(server.calls) == 1
    outputs = [item["output"] for item in again.sent["input"] if "output" in item]
    assert again.turn.body.fields["input"].startswith(turn.turn.body.fields["input"][:-1]), "byte for byte"
    assert sorted(each.split()[0] for each in outputs) == ["The", "srv__wipe"], "the refusal is told again"


# What is refused


async def refused(turn: Rounded) -> str:
    assert isinstance(turn.error, InvalidRequest), turn.heard
    assert turn.turns == []
    return turn.error.message


async def test_an_approval_is_used_once(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    await gateway.turn([answer(id_)], last(), previous_response_id="resp_1")
    for approve in (True, False):
        again = await gateway.turn([answer(id_, approve)], last("resp_3"), previous_response_id="resp_1")
        assert "already been used" in await refused(again)
    assert len(server.calls) == 1


async def test_a_refused_call_cannot_be_approved_later(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    await gateway.turn([answer(id_, approve=False)], last(), previous_response_id="resp_1")
    again = await gateway.turn([reference(id_), answer(id_)], last("resp_3"))
    assert "already been used" in await refused(again)
    assert server.calls == []


async def test_one_answer_that_cannot_be_used_leaves_the_others(make: Make):
    server = a_server()
    gateway = await make(server)
    one, two = await gateway.asked(CALL, a_call("srv__wipe", "c2"))
    await gateway.turn([answer(one)], last(), previous_response_id="resp_1")
    both = await gateway.turn([answer(two), answer(one)], last("resp_3"), previous_response_id="resp_1")
    assert "already been used" in await refused(both)
    turn = await gateway.turn([answer(two)], last("resp_4"), previous_response_id="resp_1")
    assert turn.error is None
    assert len(server.calls) == 2


async def test_a_request_is_not_answered_twice_at_once(make: Make):
    gateway = await make(a_server())
    (id_,) = await gateway.asked()
    for second in (True, False):
        turn = await gateway.turn([answer(id_), answer(id_, second)], last(), previous_response_id="resp_1")
        assert "twice" in await refused(turn)
    assert (await gateway.turn([answer(id_)], last(), previous_response_id="resp_1")).error is None


@pytest.mark.parametrize(
    "bad",
    [
        answer("mcpr_nobody"),
        answer("a\0b"),
        answer("x" * 1000),
        {"type": "mcp_approval_response", "approve": True},
        {"type": "mcp_approval_response", "approval_request_id": 1, "approve": True},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_nobody"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_nobody", "approve": "yes"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_nobody", "approve": None},
    ],
)
async def test_an_answer_to_nothing_is_refused(make: Make, bad: dict[str, Any]):
    gateway = await make(a_server())
    await gateway.asked()
    turn = await gateway.turn([bad], last(), previous_response_id="resp_1")
    await refused(turn)
    assert turn.error is not None
    assert turn.error.param == "input"


async def test_a_request_that_was_never_stored_is_unknown(make: Make):
    server = a_server()
    gateway = await make(server)
    made_up = {
        "id": "mcpr_x",
        "type": "mcp_approval_request",
        "server_label": "srv",
        "name": "wipe",
        "arguments": "{}",
    }
    assert "not found" in await refused(await gateway.turn([made_up, answer("mcpr_x")], last()))
    assert server.calls == []


async def test_a_target_that_has_changed_needs_another_approval(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    server.fingerprint = "srv elsewhere"
    for gated in (["wipe"], []):  # nor does it help to need none now
        server.gated = gated
        turn = await gateway.turn([answer(id_)], last(), previous_response_id="resp_1")
        assert "another target" in await refused(turn)
    assert server.calls == []
    turn = await gateway.turn([answer(id_, approve=False)], last(), previous_response_id="resp_1")
    assert turn.error is None, "a refusal holds for any"


async def test_an_approved_tool_must_be_declared(make: Make):
    server = a_server()
    gateway = await make(server, StandIn("other", tools=("wipe",)))
    (id_,) = await gateway.asked()
    for tools in ([], [declared("other")]):
        turn = await gateway.turn([answer(id_)], last(), previous_response_id="resp_1", tools=tools)
        assert "wipe" in await refused(turn)
    server.tools = ("look",)
    await refused(await gateway.turn([answer(id_)], last(), previous_response_id="resp_1"))
    server.tools = ("look", "wipe")
    assert (await gateway.turn([answer(id_)], last(), previous_response_id="resp_1")).error is None


async def test_nobody_answers_for_another(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    request = {"id": id_, "type": "mcp_approval_request", "server_label": "srv", "name": "wipe", "arguments": "{}"}
    for input_ in ([reference(id_), answer(id_)], [request, answer(id_)], [request, answer(id_, approve=False)]):
        assert "not found" in await refused(await gateway.turn(input_, last(), owner="bob"))
    assert server.calls == []
    assert (await gateway.turn([answer(id_)], last(), previous_response_id="resp_1")).error is None


async def test_two_replicas_that_race_use_it_once(make: Make):
    server = a_server()
    one, two = await make(server), await make(server)
    (id_,) = await one.asked()
    turns = await asyncio.gather(
        *(
            gateway.turn([answer(id_)], last(f"resp_x{n}"), previous_response_id="resp_1")
            for n, gateway in enumerate([one, two] * 4)
        )
    )
    assert len([turn for turn in turns if turn.error is None]) == 1
    assert {turn.error.message for turn in turns if turn.error} == {f"approval '{id_}' has already been used"}
    assert len(server.calls) == 1


@both_ways
async def test_an_approval_needs_a_stored_response(make: Make, stream: bool):
    server = a_server()
    gateway = await make(server)
    turn = await gateway.turn("go", a_round(stream, "resp_1", CALL), store=False, stream=stream)
    assert isinstance(turn.error, InvalidRequest)
    assert (turn.error.param, server.calls) == ("store", [])
    assert not stream or turn.types[-1] != "response.completed"


async def test_an_approval_may_be_answered_in_a_turn_that_is_not_stored(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    turn = await gateway.turn([answer(id_)], last(), previous_response_id="resp_1", store=False)
    assert (turn.output, len(server.calls)) == (["mcp_call", "message"], 1)


async def test_a_deleted_response_takes_its_requests_with_it(make: Make):
    server = a_server()
    gateway = await make(server)
    (id_,) = await gateway.asked()
    assert await gateway.store.delete_response("ann", "resp_1")  # type: ignore[arg-type]
    request = {"id": id_, "type": "mcp_approval_request", "server_label": "srv", "name": "wipe", "arguments": "{}"}
    assert "not found" in await refused(await gateway.turn([request, answer(id_)], last()))


# Declarations


async def test_a_turn_without_servers_is_not_touched(make: Make):
    gateway = await make(a_server())
    tool = mcp_tools.McpTools(mcp_tools.Config(), Services(gateway.store, {}))
    for body in (
        b'{"input" : "mcp"}',
        b'{"input":"x","tools":[ {"type":"function","name":"mcp"} ]}',
        b'{"tools":"mcp"}',
    ):
        turn = await play([tool], post(body), *an_answer("resp_1", SO))
        assert turn.turn.body.raw == body
        assert turn.turn.hosted == ()
    turn = await play([tool], post({"tools": [declared()]}, operation=Operation.COMPACT), *an_answer("resp_1", SO))
    assert turn.turn.hosted == ()
    assert gateway.tool.requests == []


async def test_servers_are_found_by_place_and_know_what_was_listed(make: Make):
    one, two = StandIn("one", lists=True), StandIn("two")
    gateway = await make(one, two)
    tools = [{"type": "function", "name": "f", "parameters": {}}, declared("one"), declared("nobody"), declared("two")]
    turn = await gateway.turn("x", last("resp_1"), tools=tools)
    assert [each.get("name", each.get("server_label")) for each in turn.sent["tools"]] == [
        *("f", "one__look", "nobody", "two__look"),
    ]
    assert [request.history_types for request in gateway.tool.requests[:1]] == [{"mcp_list_tools": []}]
    gateway.tool.requests.clear()
    await gateway.turn("x", last(), previous_response_id="resp_1", tools=tools)
    (listed,) = gateway.tool.requests[0].history_types["mcp_list_tools"]
    assert json.loads(listed)["server_label"] == "one"
    assert (one.closed, two.closed) == (2, 2)


async def test_a_server_that_is_down_lets_go_of_the_others(make: Make):
    one = StandIn("one")
    gateway = await make(one)
    turn = await gateway.turn("x", tools=[declared("one"), declared("down")])
    assert isinstance(turn.error, ToolError)
    assert (turn.turns, one.closed) == ([], 1)


async def test_a_client_that_leaves_meanwhile_lets_go_of_all(make: Make):
    one = StandIn("one")
    gateway = await make(one)
    waiting = asyncio.Event()

    class Slow(StandInTool):
        async def declare(self, declaration: Any, request: Request) -> Hosted | None:
            if declaration["server_label"] == "slow":
                waiting.set()
                await asyncio.Event().wait()
            return await super().declare(declaration, request)

    gateway.filters[3]._mcp = Slow({"one": one})  # type: ignore[attr-defined]
    task = asyncio.ensure_future(gateway.turn("x", tools=[declared("one"), declared("slow")]))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert one.closed == 1


async def test_what_is_refused_after_listing_lets_go_too(make: Make):
    server = a_server()
    gateway = await make(server)
    await refused(await gateway.turn([answer("mcpr_nobody")]))
    assert server.closed == 1


@asynccontextmanager
async def opened(tool: StandInTool, services: Services) -> AsyncIterator[None]:
    made = mcp_tools.McpTools(mcp_tools.Config(), services)
    await made.open()
    yield
    await made.close()


async def test_the_tool_lives_as_long_as_the_gateway(make: Make):
    gateway = await make(a_server())
    async with opened(gateway.tool, Services(gateway.store, {})):
        assert gateway.tool.opened == 1
    assert gateway.tool.opened == 0
