"""The main job over both stores: continue, retrieve, replay, list, delete, as if the backend remembered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.backend import ScriptedVLLM, faults
from tests.integration.gateway import OWNERS, Gateway, chain, running


def sent(gateway: Gateway) -> dict[str, Any]:
    """The body of the newest request that the backend got."""
    body: dict[str, Any] = json.loads(gateway.backend.turns[-1].body)
    return body


async def test_a_chain_by_previous_response_id(both: Gateway) -> None:
    first = (await both.create(input="one")).json
    second = await both.create(input="two", previous_response_id=first["id"])
    assert second.json["previous_response_id"] == first["id"]
    replayed = sent(both)["input"]
    assert [item.get("role") for item in replayed] == ["user", "assistant", "user"]
    assert replayed[1] == first["output"][0]
    third = await both.create(input="three", previous_response_id=second.json["id"])
    assert sent(both)["input"][: len(replayed)] == replayed, "history only ever grows at its end"
    assert len(sent(both)["input"]) == 5
    stored = (await both.ask("GET", f"/v1/responses/{third.json['id']}")).body
    assert stored == third.body


async def test_a_streamed_turn_is_restored_in_every_lifecycle_frame(both: Gateway) -> None:
    first = (await both.create(input="one")).json
    stream = await both.create(input="two", previous_response_id=first["id"], stream=True)
    lifecycle = [event["response"] for event in stream.events if "response" in event]
    assert len(lifecycle) == 3
    assert {response["previous_response_id"] for response in lifecycle} == {first["id"]}
    stored = (await both.ask("GET", f"/v1/responses/{lifecycle[-1]['id']}")).json
    assert stored == lifecycle[-1]


async def test_replay_gives_the_frames_again(both: Gateway) -> None:
    stream = await both.create(input="one", stream=True)
    target = f"/v1/responses/{stream.final['response']['id']}?stream=true"
    assert (await both.ask("GET", target)).body == stream.body
    after = await both.ask("GET", f"{target}&starting_after=3")
    assert [event["sequence_number"] for event in after.events] == [e["sequence_number"] for e in stream.events[4:]]


async def test_instructions_and_tools_are_not_inherited(gateway: Gateway) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    first = (await gateway.create(input="one", instructions="be brief", tools=tools)).json
    await gateway.create(input="two", previous_response_id=first["id"])
    assert not {"instructions", "tools"} & set(sent(gateway))


async def test_delete_then_absent_yet_descendants_continue(both: Gateway) -> None:
    first = (await both.create(input="one")).json["id"]
    second = (await both.create(input="two", previous_response_id=first)).json["id"]
    assert (await both.ask("DELETE", f"/v1/responses/{first}")).json["deleted"] is True
    gone = await both.ask("GET", f"/v1/responses/{first}")
    assert (gone.status, gone.error["message"]) == (404, f"Response with id '{first}' not found.")
    lost = await both.create(input="x", previous_response_id=first)
    assert (lost.status, lost.error["code"]) == (400, "previous_response_not_found")
    await both.create(input="three", previous_response_id=second)
    assert len(sent(both)["input"]) == 5


async def test_store_false_leaves_nothing(both: Gateway) -> None:
    for stream in (False, True):
        answer = await both.create(input="one", store=False, stream=stream)
        assert answer.status == 200
        id_ = answer.final["response"]["id"] if stream else answer.json["id"]
        assert (await both.ask("GET", f"/v1/responses/{id_}")).status == 404
    assert await count_rows(both) == {}


async def count_rows(gateway: Gateway) -> dict[str, int]:
    """How many rows each table holds, the empty ones left out."""
    from sqlalchemy import func, select

    from proxy.store import _tables as tables

    counts: dict[str, int] = {}
    database = gateway.app.store.database  # type: ignore[attr-defined]  # looked at from inside on purpose
    async with database.reader.connect() as connection:
        for table in tables.metadata.sorted_tables:
            number = (await connection.execute(select(func.count()).select_from(table))).scalar_one()
            if number:
                counts[table.name] = number
    return counts


async def test_store_false_with_a_conversation_is_still_appended(both: Gateway) -> None:
    conversation = (await both.ask("POST", "/v1/conversations", b"{}")).json["id"]
    answer = await both.create(input="one", store=False, conversation=conversation)
    assert (await both.ask("GET", f"/v1/responses/{answer.json['id']}")).status == 404
    items = (await both.ask("GET", f"/v1/conversations/{conversation}/items?order=asc")).json["data"]
    assert [item["role"] for item in items] == ["user", "assistant"]


@pytest.mark.parametrize("form", ["string", "object"])
async def test_a_conversation_remembers(both: Gateway, form: str) -> None:
    id_ = (await both.ask("POST", "/v1/conversations", b'{"items":[{"role":"system","content":"be brief"}]}')).json[
        "id"
    ]
    selector = id_ if form == "string" else {"id": id_}
    for text in ("one", "two", "three"):
        answer = await both.create(input=text, conversation=selector, stream=text == "two")
        assert answer.status == 200
    assert "conversation" not in sent(both)
    assert [item["role"] for item in sent(both)["input"]] == ["system", *["user", "assistant"] * 2, "user"]


async def test_failed_and_incomplete_turns_do_not_enter_a_conversation(both: Gateway) -> None:
    id_ = (await both.ask("POST", "/v1/conversations", b"{}")).json["id"]
    cut = await both.create(input="one two three four five", conversation=id_, max_output_tokens=2)
    assert cut.json["status"] == "incomplete"
    both.backend.script(faults.cut_after(3000))
    failed = await both.create(input="one", conversation=id_, stream=True)
    assert failed.final["type"] == "response.failed"
    assert (await both.ask("GET", f"/v1/conversations/{id_}/items")).json["data"] == []
    stored = await both.ask("GET", f"/v1/responses/{cut.json['id']}")
    assert stored.json["status"] == "incomplete"


@pytest.mark.parametrize("rounds", [4])
async def test_sending_back_input_and_output_any_number_of_times(both: Gateway, rounds: int) -> None:
    history: list[Any] = [{"role": "user", "content": "one"}]
    for _ in range(rounds):
        answer = await both.create(input=history)
        assert answer.status == 200, answer.body
        history += [*answer.json["output"], {"role": "user", "content": "again"}]
    previous = None
    for _ in range(rounds):
        answer = await both.create(input=history, **({"previous_response_id": previous} if previous else {}))
        assert answer.status == 200, answer.body
        previous = answer.json["id"]


async def test_two_owners_may_send_the_same_items(backend: ScriptedVLLM, store_url: str) -> None:
    async with running(backend, store_url, **OWNERS) as gateway:
        first = (await gateway.create(owner="ann", input="one")).json
        items = [{"role": "user", "content": "one"}, *first["output"], {"role": "user", "content": "x"}]
        for owner in ("ann", "bob", "ann"):
            assert (await gateway.create(owner=owner, input=items)).status == 200


@pytest.mark.parametrize("bare", [True, False])
async def test_item_references_resolve_without_a_selector(both: Gateway, bare: bool) -> None:
    first = (await both.create(input="one")).json
    reference = {"id": first["output"][0]["id"]} | ({} if bare else {"type": "item_reference"})
    answer = await both.create(
        input=[{"role": "user", "content": "one"}, reference, {"role": "user", "content": "two"}]
    )
    assert answer.status == 200, answer.body
    assert sent(both)["input"][1] == first["output"][0]
    unknown = await both.create(input=[{"type": "item_reference", "id": "msg_none"}])
    assert (unknown.status, unknown.error["param"]) == (400, "input")


TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]


async def call(gateway: Gateway, **members: Any) -> dict[str, Any]:
    answer = await gateway.create(input="add", tools=TOOLS, tool_choice="required", **members)
    assert answer.json["output"][-1]["type"] == "function_call", answer.body
    made: dict[str, Any] = answer.json
    return made


def output(response: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": "3"}


async def test_a_tool_loop(both: Gateway) -> None:
    first = await call(both)
    answer = await both.create(input=[output(first)], previous_response_id=first["id"], tools=TOOLS)
    assert answer.status == 200
    assert [item.get("type", "message") for item in sent(both)["input"]] == [
        "message",
        "function_call",
        "function_call_output",
    ]


async def test_tool_outputs_alone_are_bound_by_their_calls(both: Gateway) -> None:
    first = await call(both)
    answer = await both.create(input=[output(first)], tools=TOOLS)
    assert answer.status == 200, answer.body
    assert len(sent(both)["input"]) == 3
    follow = await both.create(input="thanks", previous_response_id=answer.json["id"])
    assert (follow.status, len(sent(both)["input"])) == (200, 5)


async def test_an_open_call_must_be_answered(both: Gateway) -> None:
    first = await call(both)
    answer = await both.create(input="never mind", previous_response_id=first["id"])
    assert answer.status == 400
    assert first["output"][-1]["call_id"] in answer.error["message"]


async def test_outputs_of_nobodys_calls_are_refused(both: Gateway) -> None:
    first = await call(both)
    stray = {"type": "function_call_output", "call_id": "call_stray", "output": "1"}
    for input_ in ([stray], [output(first), stray], [{"role": "user", "content": "x"}, stray]):
        answer = await both.create(input=input_)
        assert (answer.status, answer.error["param"]) == (400, "input")
        assert "'call_stray'" in answer.error["message"]
    asked = len(both.backend.turns)
    assert asked == 1, "the backend was never asked"


async def test_explicit_nulls_are_no_selectors(gateway: Gateway) -> None:
    answer = await gateway.create(input="a", previous_response_id=None, conversation=None, truncation=None, tools=None)
    assert answer.status == 200, answer.body
    assert "truncation" not in sent(gateway)


async def test_refusals_name_the_field(gateway: Gateway) -> None:
    cases: list[tuple[dict[str, Any], int, str, str | None]] = [
        (
            {"previous_response_id": "a", "conversation": "b"},
            400,
            "mutually_exclusive_parameters",
            "previous_response_id",
        ),
        ({"previous_response_id": "resp_no"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"previous_response_id": 7}, 400, "invalid_type", "previous_response_id"),
        ({"conversation": "conv_no"}, 404, "conversation_not_found", "conversation"),
        ({"conversation": 7}, 400, "invalid_type", "conversation"),
        ({"conversation": {"x": 1}}, 400, "invalid_type", "conversation"),
        ({"background": True}, 400, "unsupported_parameter", "background"),
        ({"prompt": {"id": "p"}}, 400, "unsupported_parameter", "prompt"),
        ({"stream": "yes"}, 400, "invalid_type", "stream"),
        ({"input": [7]}, 400, "invalid_type", "input[0]"),
    ]
    for members, status, code, param in cases:
        for stream in ({}, {"stream": True}):
            answer = await gateway.create(**{"input": "a", **stream, **members})
            assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param), members
    assert gateway.backend.turns == []


async def test_only_completed_responses_continue(gateway: Gateway) -> None:
    cut = await gateway.create(input="one two three four five", max_output_tokens=2, stream=True)
    assert cut.final["type"] == "response.incomplete"
    answer = await gateway.create(input="x", previous_response_id=cut.final["response"]["id"])
    assert (answer.status, answer.error["message"]) == (400, "cannot continue from response with status 'incomplete'")


async def test_input_tokens_gets_the_history_too(gateway: Gateway) -> None:
    first = (await gateway.create(input="one")).json
    await gateway.ask("POST", "/v1/responses/input_tokens", gateway.body(input="two", previous_response_id=first["id"]))
    assert [item["role"] for item in json.loads(gateway.backend.requests[-1].body)["input"]] == [
        "user",
        "assistant",
        "user",
    ]


async def test_backend_errors_pass_as_they_are(gateway: Gateway) -> None:
    for stream in (False, True):
        gateway.backend.script(
            faults.status(
                429, b'{"error":{"message":"slow down"}}', [("Retry-After", "7"), ("content-type", "application/json")]
            )
        )
        answer = await gateway.create(input="a", stream=stream)
        assert (answer.status, answer.body) == (429, b'{"error":{"message":"slow down"}}')
        assert answer.headers(b"retry-after") == [b"7"]
    wrong = await gateway.create(input="a", model="nope")
    assert (wrong.status, wrong.error["code"]) == (404, 404)


async def test_owners_never_meet(backend: ScriptedVLLM, store_url: str) -> None:
    async with running(backend, store_url, **OWNERS) as gateway:
        mine = (await gateway.create(owner="ann", input="one", stream=True)).final["response"]["id"]
        conversation = (
            await gateway.ask("POST", "/v1/conversations", b'{"items":[{"role":"user","content":"x"}]}', owner="ann")
        ).json["id"]
        items = await gateway.ask("GET", f"/v1/conversations/{conversation}/items", owner="ann")
        item = items.json["data"][0]["id"]
        targets = [
            ("GET", "/v1/responses/{r}", b""),
            ("GET", "/v1/responses/{r}?stream=true", b""),
            ("GET", "/v1/responses/{r}/input_items", b""),
            ("DELETE", "/v1/responses/{r}", b""),
            ("POST", "/v1/responses", b'{"input":"x","previous_response_id":"{r}"}'),
            ("POST", "/v1/responses", b'{"input":"x","conversation":"{c}"}'),
            ("POST", "/v1/responses", b'{"input":[{"type":"item_reference","id":"{i}"}]}'),
            ("GET", "/v1/conversations/{c}", b""),
            ("POST", "/v1/conversations/{c}", b'{"metadata":{"a":"b"}}'),
            ("DELETE", "/v1/conversations/{c}", b""),
            ("GET", "/v1/conversations/{c}/items", b""),
            ("POST", "/v1/conversations/{c}/items", b'{"items":[{"role":"user","content":"x"}]}'),
            ("GET", "/v1/conversations/{c}/items/{i}", b""),
            ("DELETE", "/v1/conversations/{c}/items/{i}", b""),
        ]
        for method, target, body in targets:
            foreign, absent = [], []
            for names, seen in (((mine, conversation, item), foreign), (("resp_0", "conv_0", "msg_0"), absent)):
                filled = fill(target, names), fill(body.decode(), names).encode()
                answer = await gateway.ask(method, filled[0], filled[1], owner="bob")
                seen.append((answer.status, unfill(answer.body.decode(), names)))
            assert foreign == absent, (method, target)
            assert foreign[0][0] in (400, 404)
        assert (await gateway.ask("GET", f"/v1/responses/{mine}", owner="ann")).status == 200
        nobody = await gateway.create(input="x")
        assert (nobody.status, nobody.error["code"]) == (401, "missing_state_owner")
        assert backend.turns[-1].header("x-rejoinder-owner") is None


def fill(template: str, names: tuple[str, str, str]) -> str:
    for mark, name in zip(("{r}", "{c}", "{i}"), names, strict=True):
        template = template.replace(mark, name)
    return template


def unfill(text: str, names: tuple[str, str, str]) -> str:
    for mark, name in zip(("{r}", "{c}", "{i}"), names, strict=True):
        text = text.replace(name, mark)
    return text


async def test_sessions_stay_the_same_over_a_chain(both: Gateway) -> None:
    first = (await both.create(input="one")).json["id"]
    root = both.backend.turns[-1].header("x-session-id")
    assert root
    second = (await both.create(input="two", previous_response_id=first)).json["id"]
    await both.create(input="branch", previous_response_id=first)
    await both.create(input="three", previous_response_id=second)
    assert {turn.header("x-session-id") for turn in both.backend.turns} == {root}


async def test_a_routers_session_token_is_echoed(both: Gateway) -> None:
    body = json.dumps({"id": "resp_t", "object": "response", "status": "completed", "output": []}).encode()
    both.backend.script(faults.status(200, body, [("content-type", "application/json"), ("x-session-token", "abc")]))
    first = await both.create(input="one")
    assert first.status == 200
    await both.create(input="two", previous_response_id="resp_t")
    assert both.backend.turns[-1].header("x-session-token") == "abc"


async def test_parallel_turns_of_a_conversation_queue(both: Gateway) -> None:
    id_ = (await both.ask("POST", "/v1/conversations", b"{}")).json["id"]
    answers = await asyncio.gather(*(both.create(input=f"turn {n}", conversation=id_) for n in range(8)))
    assert {answer.status for answer in answers} == {200}
    items = (await both.ask("GET", f"/v1/conversations/{id_}/items?order=asc&limit=100")).json["data"]
    assert [item["role"] for item in items] == ["user", "assistant"] * 8
    lengths = sorted(len(json.loads(turn.body)["input"]) for turn in both.backend.turns)
    assert lengths == [1, 3, 5, 7, 9, 11, 13, 15]


async def test_a_conversation_is_named_in_the_response(both: Gateway) -> None:
    id_ = (await both.ask("POST", "/v1/conversations", b"{}")).json["id"]
    answer = await both.create(input="one", conversation=id_)
    assert answer.json["conversation"] == {"id": id_}
    stream = await both.create(input="two", conversation={"id": id_}, stream=True)
    named = [event["response"]["conversation"] for event in stream.events if "response" in event]
    assert named == [{"id": id_}] * 3
    stored = await both.ask("GET", f"/v1/responses/{stream.final['response']['id']}")
    assert stored.json["conversation"] == {"id": id_}


async def test_incomplete_responses_continue_where_that_is_allowed(backend: ScriptedVLLM, store_url: str) -> None:
    async with running(
        backend, store_url, **chain(rehydrate={"continue_from": ["completed", "incomplete"]})
    ) as gateway:
        first = await gateway.create(input="one")
        cut = await gateway.create(input="two three four", previous_response_id=first.json["id"], max_output_tokens=2)
        assert cut.json["status"] == "incomplete"
        for text in ("one way", "another way"):
            answer = await gateway.create(input=text, previous_response_id=cut.json["id"])
            assert (answer.status, len(sent(gateway)["input"])) == (200, 5)
