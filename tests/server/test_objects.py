"""Retrieve, replay, list and delete responses, as two owners see them."""

import json

import pytest

from proxy.errors import MethodNotAllowed
from proxy.protocol.records import Item
from tests.server.asking import BOB, Asking, Stored

ENVELOPE = b'{"id":"resp_1","object":"response","temperature":1.50,"output":[],"seed":12345678901234567890}'
ANSWER = Item("msg_9", "message", b'{ "id":"msg_9","type":"message","role":"assistant","content":[] }')
CALL = Item("fc_9", "function_call", b'{"id":"fc_9","type":"function_call","call_id":"call_9","n":1.0}', "call_9")
QUESTIONS = tuple(Item(f"msg_{n}", "message", b'{"role":"user","content":"%d"}' % n) for n in range(1, 6))
THOUGHT = Item("rs_1", "reasoning", b'{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"x"}')

LOG = (
    b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n'
    b": a comment\n\n"
    b'event: response.completed\r\ndata: {"type":"response.completed","sequence_number":1}\r\n\r\n'
)
TERMINAL = LOG[LOG.index(b"event: response.completed") :]


async def test_a_response_comes_back_as_the_client_saw_it(ask: Asking):
    await ask.save("resp_1", Stored(output=(ANSWER, CALL), envelope=ENVELOPE))
    reply = await ask.raw("GET /v1/responses/resp_1?include[]=reasoning.encrypted_content&include_obfuscation=false")
    assert reply is not None
    assert (reply.status, reply.headers) == (200, ((b"content-type", b"application/json"),))
    assert reply.body == ENVELOPE.replace(b"[]", b"[" + ANSWER.body + b"," + CALL.body + b"]")


async def test_nothing_is_stripped_from_a_response(ask: Asking):
    await ask.save("resp_1", Stored(output=(THOUGHT,)))
    assert (await ask.ok("GET /v1/responses/resp_1"))["output"] == [json.loads(THOUGHT.body)]


async def test_a_stream_comes_back_byte_for_byte(ask: Asking):
    await ask.save("resp_1", Stored(events=LOG))
    reply = await ask.raw("GET /v1/responses/resp_1?stream=true")
    assert reply is not None
    assert reply.status == 200
    assert reply.headers == (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
    )
    assert reply.body == LOG


@pytest.mark.parametrize(("after", "rest"), [(0, TERMINAL), (1, b""), (2**64 - 1, b"")])
async def test_a_stream_comes_back_from_any_point(ask: Asking, after: int, rest: bytes):
    await ask.save("resp_1", Stored(events=LOG))
    reply = await ask.raw(f"GET /v1/responses/resp_1?stream=true&starting_after={after}")
    assert reply is not None
    assert (reply.status, reply.body) == (200, rest)


async def test_a_long_stream_comes_back_too(ask: Asking):
    deltas = b"".join(
        b'event: response.output_text.delta\ndata: {"delta":"%064d","sequence_number":%d}\n\n' % (n, n)
        for n in range(2000)
    )
    end = b'event: response.completed\ndata: {"sequence_number":2000}\n\n'
    await ask.save("resp_1", Stored(events=deltas + end))
    for query, body in (("", deltas + end), ("&starting_after=1999", end)):
        reply = await ask.raw(f"GET /v1/responses/resp_1?stream=true{query}")
        assert reply is not None
        assert reply.body == body


@pytest.mark.parametrize("log", [None, LOG[:40]])
async def test_without_a_whole_log_there_is_no_replay(ask: Asking, log: bytes | None):
    await ask.save("resp_1", Stored(events=log))
    status, _, param, message = await ask.refused("GET /v1/responses/resp_1?stream=true")
    assert (status, param) == (400, "stream")
    assert "was not streamed" in message
    assert (await ask.ok("GET /v1/responses/resp_1"))["id"] == "resp_1"


async def test_input_items_come_newest_first(ask: Asking):
    await ask.save("resp_1", Stored(input=QUESTIONS))
    page = await ask.ok("GET /v1/responses/resp_1/input_items")
    assert [item["id"] for item in page["data"]] == ["msg_5", "msg_4", "msg_3", "msg_2", "msg_1"]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", "msg_5", "msg_1", False)
    assert page["data"][0] == {
        "id": "msg_5",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "5"}],
    }


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_cover_the_list_once(ask: Asking, order: str):
    await ask.save("resp_1", Stored(input=QUESTIONS))
    address = f"GET /v1/responses/resp_1/input_items?limit=2&order={order}"
    page = await ask.ok(address)
    seen = page["data"]
    while page["has_more"]:
        page = await ask.ok(f"{address}&after={page['last_id']}")
        seen += page["data"]
    ids = [item["id"] for item in seen]
    assert sorted(ids) == [item.id for item in QUESTIONS]
    assert ids == sorted(ids, reverse=order == "desc")


async def test_a_page_after_the_last_item_is_empty(ask: Asking):
    await ask.save("resp_1", Stored(input=QUESTIONS))
    page = await ask.ok("GET /v1/responses/resp_1/input_items?after=msg_1")
    assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_what_was_not_asked_for_is_not_listed(ask: Asking):
    await ask.save("resp_1", Stored(input=(THOUGHT,)))
    address = "GET /v1/responses/resp_1/input_items"
    assert "encrypted_content" not in (await ask.ok(address))["data"][0]
    included = await ask.ok(address + "?include[]=reasoning.encrypted_content")
    assert included["data"] == [json.loads(THOUGHT.body)]


async def test_a_cursor_that_names_no_input_item(ask: Asking):
    await ask.save("resp_1", Stored(input=QUESTIONS, output=(ANSWER,)))
    for cursor in ("msg_9", "nothing", "%00", "x" * 600):
        status, _, param, _ = await ask.refused(f"GET /v1/responses/resp_1/input_items?after={cursor}")
        assert (status, param) == (400, "after")


async def test_a_deleted_response_is_gone(ask: Asking):
    await ask.save("resp_1", Stored(input=QUESTIONS, output=(ANSWER,), events=LOG))
    gone = await ask.ok("DELETE /v1/responses/resp_1")
    assert gone == {"id": "resp_1", "object": "response.deleted", "deleted": True}
    for request in REQUESTS:
        assert await ask.refused(request) == NOT_FOUND


REQUESTS = (
    "GET /v1/responses/resp_1",
    "GET /v1/responses/resp_1?stream=true",
    "GET /v1/responses/resp_1?stream=true&starting_after=5",
    "GET /v1/responses/resp_1/input_items",
    "GET /v1/responses/resp_1/input_items?after=msg_1",
    "DELETE /v1/responses/resp_1",
)
NOT_FOUND = (404, None, None, "Response with id 'resp_1' not found.")


@pytest.mark.parametrize("request_", REQUESTS)
async def test_a_foreign_response_is_as_an_absent_one(ask: Asking, request_: str):
    assert await ask.by(BOB).refused(request_) == NOT_FOUND
    await ask.save("resp_1", Stored(input=QUESTIONS, output=(ANSWER,), events=LOG))
    assert await ask.by(BOB).refused(request_) == NOT_FOUND
    assert await ask.raw("GET /v1/responses/resp_1")


@pytest.mark.parametrize(
    ("spelled", "id_"),
    [
        ("a%2Fb", "a/b"),
        ("%00", "\0"),
        ("..", ".."),
        ("x" * 5000, "x" * 5000),
        ("%C3%A9", "é"),
        ("\udcff", "?"),
        ("%FF", "�"),
    ],
)
async def test_an_id_that_nothing_can_have(ask: Asking, spelled: str, id_: str):
    for request in (f"GET /v1/responses/{spelled}", f"DELETE /v1/responses/{spelled}"):
        assert await ask.refused(request) == (404, None, None, f"Response with id '{id_}' not found.")


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        ("POST /v1/responses/resp_1", b"GET, DELETE"),
        ("HEAD /v1/responses/resp_1", b"GET, DELETE"),
        ("DELETE /v1/responses/resp_1/input_items", b"GET"),
        ("GET /v1/conversations", b"POST"),
        ("PATCH /v1/conversations/conv_1", b"GET, POST, DELETE"),
        ("DELETE /v1/conversations/conv_1/items", b"GET, POST"),
        ("POST /v1/conversations/conv_1/items/msg_1", b"GET, DELETE"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(ask: Asking, request_: str, allowed: bytes):
    with pytest.raises(MethodNotAllowed) as error:
        await ask.raw(request_)
    assert (error.value.status, error.value.headers) == (405, ((b"allow", allowed),))


@pytest.mark.parametrize(
    "request_",
    [
        "POST /v1/responses",
        "GET /v1/responses",
        "GET /v1/responses/",
        "POST /v1/responses/resp_1/cancel",
        "POST /v1/responses/input_tokens",
        "POST /v1/responses/compact",
        "GET /v1/models",
        "GET /v1/responses/resp_1/input_items/x",
    ],
)
async def test_any_other_path_is_somebody_elses(ask: Asking, request_: str):
    assert await ask.raw(request_) is None
