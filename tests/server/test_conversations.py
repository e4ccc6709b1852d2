"""Conversations and their items, as two owners see them."""

import json

import pytest

from proxy.protocol.records import Item
from tests.server.asking import BOB, Asking, Stored

HELLO = {"role": "user", "content": "hello"}
REPLY = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}
PICTURE = {
    "id": "msg_p",
    "type": "message",
    "role": "user",
    "status": "completed",
    "content": [{"type": "input_image", "detail": "auto", "image_url": "data:x"}],
}


async def conversation(ask: Asking, *items: object) -> str:
    return str((await ask.ok("POST /v1/conversations", {"items": items}))["id"])


async def listed(ask: Asking, conversation_id: str, query: str = "order=asc&limit=100") -> list[str]:
    page = await ask.ok(f"GET /v1/conversations/{conversation_id}/items?{query}")
    return [item["id"] for item in page["data"]]


@pytest.mark.parametrize("body", [b"", b" ", b"{}", b'{"items":null,"metadata":null}', b'{"items":[],"new":1}'])
async def test_a_conversation_without_anything(ask: Asking, body: bytes):
    reply = await ask.raw("POST /v1/conversations", body)
    assert reply is not None
    expected = b'{"id":"conv_0001","object":"conversation","created_at":1700000000,"metadata":{}}'
    assert (reply.status, reply.body) == (200, expected)
    again = await ask.raw("GET /v1/conversations/conv_0001")
    assert again == reply


async def test_metadata_keeps_its_bytes(ask: Asking):
    await ask.raw("POST /v1/conversations", b'{"metadata":{ "a" : "\\u00e9" }}')
    reply = await ask.raw("GET /v1/conversations/conv_0001")
    assert reply is not None
    assert reply.body.endswith(b'"metadata":{ "a" : "\\u00e9" }}')


async def test_metadata_is_replaced_as_a_whole(ask: Asking):
    created = await ask.ok("POST /v1/conversations", {"metadata": {"a": "1", "b": "2"}})
    updated = await ask.ok(f"POST /v1/conversations/{created['id']}", {"metadata": {"c": "3"}})
    assert updated == created | {"metadata": {"c": "3"}}
    assert await ask.ok(f"GET /v1/conversations/{created['id']}") == updated


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "missing_required_parameter"),
        (b"{}", "missing_required_parameter"),
        (b'{"metadata":null}', "invalid_type"),
        (b'{"metadata":"x"}', "invalid_type"),
        (b'{"metadata":{"a":1}}', "invalid_type"),
        (json.dumps({"metadata": {"k" * 65: ""}}).encode(), "invalid_value"),
    ],
)
async def test_an_update_needs_metadata(ask: Asking, body: bytes, code: str):
    id_ = await conversation(ask)
    assert (await ask.refused(f"POST /v1/conversations/{id_}", body))[:3] == (400, code, "metadata")


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"1",
        b"{",
        b'{"a":"\\ud800"}',
        b"\xff",
        b'{"metadata":{"a":"\xff"}}',
        b'{"items":[{"role":"user","content":"\xff"}]}',
        b'{"a":' + b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("path", ["", "/conv_1", "/conv_1/items"])
async def test_a_body_is_a_json_object(ask: Asking, path: str, body: bytes):
    assert (await ask.refused(f"POST /v1/conversations{path}", body))[0] == 400


async def test_items_come_with_the_conversation(ask: Asking):
    id_ = await conversation(ask, HELLO, REPLY)
    page = await ask.ok(f"GET /v1/conversations/{id_}/items")
    assert page == {
        "object": "list",
        "data": [
            {"id": "msg_0003", "status": "completed", **REPLY},
            {
                "id": "msg_0002",
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": "hello"}],
            },
        ],
        "first_id": "msg_0003",
        "last_id": "msg_0002",
        "has_more": False,
    }


async def test_added_items_come_back_in_the_order_given(ask: Asking):
    id_ = await conversation(ask, HELLO)
    items = [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": ""},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "1"},
        {"type": "mcp_list_tools", "server_label": "s", "tools": []},
        {"id": None, **HELLO},
        {"id": "mine", **HELLO},
    ]
    added = await ask.ok(f"POST /v1/conversations/{id_}/items", {"items": items})
    ids = [item["id"] for item in added["data"]]
    assert ids == ["rs_0003", "fc_0004", "fco_0005", "ctc_0006", "ctco_0007", "item_0008", "msg_0009", "mine"]
    assert (added["object"], added["first_id"], added["last_id"], added["has_more"]) == ("list", ids[0], "mine", False)
    assert added["data"][1] == {"id": "fc_0004", **items[1]}
    assert await listed(ask, id_) == ["msg_0002", *ids]


async def test_no_items_are_added_gladly(ask: Asking):
    id_ = await conversation(ask)
    added = await ask.ok(f"POST /v1/conversations/{id_}/items", {"items": []})
    assert added == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_what_a_list_shows_can_be_sent_back(ask: Asking):
    id_ = await conversation(ask, HELLO, REPLY, PICTURE)
    page = await ask.ok(f"GET /v1/conversations/{id_}/items?order=asc")
    assert page["data"][2] == PICTURE, "its image included"
    copy = await conversation(ask, *page["data"])
    assert await ask.ok(f"GET /v1/conversations/{copy}/items?order=asc") == page


async def test_one_item(ask: Asking):
    id_ = await conversation(ask, PICTURE)
    assert await ask.ok(f"GET /v1/conversations/{id_}/items/msg_p") == PICTURE


async def test_what_was_not_asked_for_is_not_shown(ask: Asking):
    thought = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x"}
    short = {"id": "rs_1", "type": "reasoning", "summary": []}
    id_ = await conversation(ask)
    items = f"/v1/conversations/{id_}/items"
    assert (await ask.ok(f"POST {items}", {"items": [thought]}))["data"] == [short]
    asked = "?include[]=reasoning.encrypted_content"
    for query, shown in (("", short), (asked, thought)):
        assert (await ask.ok(f"GET {items}{query}"))["data"] == [shown]
        assert await ask.ok(f"GET {items}/rs_1{query}") == shown
    other = {**thought, "id": "rs_2"}
    assert (await ask.ok(f"POST {items}{asked}", {"items": [other]}))["data"] == [other]


async def test_pages_cover_a_conversation_once(ask: Asking):
    id_ = await conversation(ask, *[{"id": f"m{n}", **HELLO} for n in range(5)])
    assert await listed(ask, id_, "limit=2") == ["m4", "m3"]
    assert await listed(ask, id_, "limit=2&after=m3") == ["m2", "m1"]
    assert await listed(ask, id_, "limit=2&after=m1") == ["m0"]
    assert await listed(ask, id_, "order=asc&after=m2") == ["m3", "m4"]
    assert (await ask.ok(f"GET /v1/conversations/{id_}/items?limit=5"))["has_more"] is False
    assert (await ask.refused(f"GET /v1/conversations/{id_}/items?after=x"))[:3] == (400, "invalid_value", "after")


async def test_a_deleted_item_is_gone(ask: Asking):
    id_ = await conversation(ask, {"id": "a", **HELLO}, {"id": "b", **HELLO})
    assert await ask.ok(f"DELETE /v1/conversations/{id_}/items/a") == await ask.ok(f"GET /v1/conversations/{id_}")
    assert await listed(ask, id_) == ["b"]
    gone = (404, None, None, f"Item with id 'a' not found in conversation '{id_}'.")
    assert await ask.refused(f"GET /v1/conversations/{id_}/items/a") == gone
    assert await ask.refused(f"DELETE /v1/conversations/{id_}/items/a") == gone


async def test_a_deleted_conversation_is_gone(ask: Asking):
    id_ = await conversation(ask, HELLO)
    gone = await ask.ok(f"DELETE /v1/conversations/{id_}")
    assert gone == {"id": id_, "object": "conversation.deleted", "deleted": True}
    assert await ask.refused(f"GET /v1/conversations/{id_}") == not_found(id_)


async def test_at_most_twenty_items_at_once(ask: Asking):
    id_ = await conversation(ask, *[HELLO] * 20)
    for request in ("POST /v1/conversations", f"POST /v1/conversations/{id_}/items"):
        status, _, param, message = await ask.refused(request, {"items": [HELLO] * 21})
        assert (status, param) == (400, "items")
        assert "20" in message
        assert "21" in message
    assert len(await listed(ask, id_)) == 20


@pytest.mark.parametrize(
    ("items", "param"),
    [
        (b"5", "items"),
        (b'"hello"', "items"),
        (b"{}", "items"),
        (b"[1]", "items[0]"),
        (b'[{"role":"user","content":"x"},{}]', "items[1].role"),
        (b'[{"content":"x"}]', "items[0].role"),
        (b'[{"type":"message","content":"x"}]', "items[0].role"),
        (b'[{"type":5}]', "items[0].type"),
        (b'[{"role":"user","id":5}]', "items[0].id"),
        (b'[{"type":"item_reference"}]', "items[0].id"),
        (b'[{"role":"user","id":"a\\u0000"}]', "items[0].id"),
        (b'[{"role":"user","id":"%s"}]' % (b"x" * 513), "items[0].id"),
        (b'[{"type":"function_call","call_id":"\\u0000"}]', "items[0].call_id"),
        (b'[{"role":"user","id":"a"},{"role":"user","id":"a"}]', "items"),
    ],
)
async def test_an_item_that_is_none_is_named(ask: Asking, items: bytes, param: str):
    id_ = await conversation(ask)
    for request in ("POST /v1/conversations", f"POST /v1/conversations/{id_}/items"):
        status, _, named, _ = await ask.refused(request, b'{"items":' + items + b"}")
        assert (status, named) == (400, param)
    assert await listed(ask, id_) == []


@pytest.mark.parametrize(("body", "code"), [({}, "missing_required_parameter"), ({"items": None}, "invalid_type")])
async def test_items_are_required_where_they_are_added(ask: Asking, body: object, code: str):
    id_ = await conversation(ask)
    assert (await ask.refused(f"POST /v1/conversations/{id_}/items", body))[:3] == (400, code, "items")


async def test_an_id_that_is_already_there(ask: Asking):
    id_ = await conversation(ask, {"id": "a", **HELLO})
    items = {"items": [{"id": "b", **HELLO}, {"id": "a", **HELLO}]}
    status, _, param, message = await ask.refused(f"POST /v1/conversations/{id_}/items", items)
    assert (status, param) == (400, "items")
    assert "'a'" in message
    assert await listed(ask, id_) == ["a"], "all or nothing"


@pytest.mark.parametrize("reference", [{"type": "item_reference", "id": "fc_9"}, {"id": "fc_9"}])
async def test_a_reference_becomes_what_it_names(ask: Asking, reference: object):
    body = b'{"id":"fc_9","type":"function_call","call_id":"c","name":"f","arguments":"{ }"}'
    await ask.save("resp_1", Stored(output=(Item("fc_9", "function_call", body, "c"),)))
    id_ = await conversation(ask, reference)
    assert (await ask.ok(f"GET /v1/conversations/{id_}/items"))["data"] == [json.loads(body)]
    again = await ask.ok(f"POST /v1/conversations/{id_}/items", {"items": [reference, reference]})
    copies = [item["id"] for item in again["data"]]
    assert len({"fc_9", *copies}) == 3
    assert all(copy.startswith("fc_") for copy in copies)
    assert again["data"][0] == json.loads(body) | {"id": copies[0]}


async def test_a_reference_to_nothing(ask: Asking):
    id_ = await conversation(ask)
    nothing = (404, None, "items", "Item with id 'msg_p' not found.")
    references = {"items": [{"type": "item_reference", "id": "msg_p"}]}
    for foreign in (False, True):
        if foreign:
            await conversation(ask.by(BOB), PICTURE)
        assert await ask.refused("POST /v1/conversations", references) == nothing
        assert await ask.refused(f"POST /v1/conversations/{id_}/items", references) == nothing


def not_found(id_: str) -> tuple[int, str, None, str]:
    return 404, "conversation_not_found", None, f"Conversation with id '{id_}' not found."


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        ("GET /v1/conversations/conv_0001", None),
        ("POST /v1/conversations/conv_0001", {"metadata": {}}),
        ("DELETE /v1/conversations/conv_0001", None),
        ("GET /v1/conversations/conv_0001/items", None),
        ("GET /v1/conversations/conv_0001/items?after=msg_p", None),
        ("POST /v1/conversations/conv_0001/items", {"items": [HELLO]}),
        ("POST /v1/conversations/conv_0001/items", {"items": []}),
        ("POST /v1/conversations/conv_0001/items", {"items": [PICTURE]}),
        ("GET /v1/conversations/conv_0001/items/msg_p", None),
        ("DELETE /v1/conversations/conv_0001/items/msg_p", None),
    ],
)
async def test_a_foreign_conversation_is_as_an_absent_one(ask: Asking, request_: str, body: object):
    assert await ask.by(BOB).refused(request_, body) == not_found("conv_0001")
    created = await ask.ok("POST /v1/conversations", {"items": [PICTURE], "metadata": {"a": "1"}})
    foreign = request_.replace("conv_0001", created["id"])
    assert await ask.by(BOB).refused(foreign, body) == not_found(created["id"])
    assert await ask.ok(f"GET /v1/conversations/{created['id']}") == created
    assert await listed(ask, created["id"]) == ["msg_p"]


@pytest.mark.parametrize("id_", ["a%2Fb", "%00", "x" * 600])
async def test_ids_that_nothing_can_have(ask: Asking, id_: str):
    known = await conversation(ask)
    for request in (
        f"GET /v1/conversations/{id_}",
        f"DELETE /v1/conversations/{id_}",
        f"GET /v1/conversations/{id_}/items",
        f"GET /v1/conversations/{known}/items/{id_}",
        f"DELETE /v1/conversations/{known}/items/{id_}",
    ):
        assert (await ask.refused(request))[0] == 404


async def test_a_slash_at_the_end_changes_nothing(ask: Asking):
    id_ = await conversation(ask, PICTURE)
    assert await ask.ok(f"GET /v1/conversations/{id_}/items/msg_p/") == PICTURE
    assert await ask.raw(f"GET /v1/conversations/{id_}/items/msg_p/x") is None
