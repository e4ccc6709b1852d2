"""What the backend is sent instead of what it does not know: the same bytes, always."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.errors import InvalidRequest
from proxy.protocol.hosting import Function
from proxy.protocol.lowering import LOWERED, Tools, output_item, pair, upstream_bytes, without_own_includes
from proxy.protocol.records import Item
from proxy.tools._mcp_listing import Listed, functions
from tests.hosted import function

MCP_CALL = {
    "id": "mcp_1",
    "type": "mcp_call",
    "server_label": "srv",
    "name": "look",
    "arguments": '{"x":1}',
    "output": "seen",
    "error": None,
}
LIST = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "srv", "tools": []}
ASKED = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "srv", "name": "look", "arguments": "{}"}
ANSWER = {"id": "mcpa_1", "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
WEB = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "sky"}}
FILES = {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["plum"], "results": None}
NOT_KEPT = "The results of this earlier call were not kept."


def an_item(value: dict[str, Any], **fields: Any) -> Item:
    return Item(value["id"], value["type"], json.dumps(value).encode(), **fields)


def sent(value: dict[str, Any], **fields: Any) -> list[Any]:
    found: list[Any] = json.loads(b"[" + upstream_bytes(an_item(value, **fields)) + b"]")
    return found


def a_pair(name: str, arguments: str, output: str, id_: str) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments},
        {"type": "function_call_output", "call_id": id_, "output": output},
    ]


# Items


@pytest.mark.parametrize(
    ("item", "stand_in"),
    [
        (MCP_CALL, a_pair("srv__look", '{"x":1}', "seen", "mcp_1")),
        ({**MCP_CALL, "output": ""}, a_pair("srv__look", '{"x":1}', "", "mcp_1")),
        ({**MCP_CALL, "output": None, "error": "gone"}, a_pair("srv__look", '{"x":1}', "Error: gone", "mcp_1")),
        (
            {**MCP_CALL, "output": None, "error": {"code": 1}},
            a_pair("srv__look", '{"x":1}', "Error: it failed", "mcp_1"),
        ),
        (
            {**MCP_CALL, "output": None, "error": {"type": "http_error", "message": "gone"}},
            a_pair("srv__look", '{"x":1}', "Error: gone", "mcp_1"),
        ),
        ({**MCP_CALL, "arguments": None}, a_pair("srv__look", "{}", "seen", "mcp_1")),
        (WEB, a_pair("web_search", '{"query":"sky"}', NOT_KEPT, "ws_1")),
        ({**WEB, "action": None}, a_pair("web_search", "{}", NOT_KEPT, "ws_1")),
        (FILES, a_pair("file_search", '{"queries":["plum"]}', NOT_KEPT, "fs_1")),
        (
            {**FILES, "results": [{"text": "x"}]},
            a_pair("file_search", '{"queries":["plum"]}', '[{"text": "x"}]', "fs_1"),
        ),
        (LIST, []),
        (ASKED, []),
        (ANSWER, []),
    ],
    ids=lambda one: one["type"] if isinstance(one, dict) else "",
)
def test_what_stands_in_for_a_hosted_item(item: dict[str, Any], stand_in: list[Any]):
    assert item["type"] in LOWERED
    assert sent(item) == stand_in
    assert upstream_bytes(an_item(item)) == upstream_bytes(an_item(item))


def test_every_lowered_type_has_its_stand_in():
    covered = {item["type"] for item in (MCP_CALL, LIST, ASKED, ANSWER, WEB, FILES)}
    assert covered == LOWERED


def test_what_the_store_kept_comes_before_any_stand_in():
    kept = pair("call_1", "srv__look", "{}", "what it really read")
    assert upstream_bytes(an_item(MCP_CALL, upstream=kept)) == kept
    assert upstream_bytes(an_item(LIST, upstream=b"")) == b""


def test_other_items_are_themselves():
    raw = b'{"type":"message" ,"role":"user","content":"\\u00e9"}'
    assert upstream_bytes(Item("msg_1", "message", raw)) is raw
    raw = b'{"type":"code_interpreter_call","id":"ci_1"}'
    assert upstream_bytes(Item("ci_1", "code_interpreter_call", raw)) is raw


@pytest.mark.parametrize("body", [b"not json", b"[]", b'{"id":"mcp_1","type":"mcp_call"'])
def test_what_cannot_be_read_is_not_sent(body: bytes):
    assert upstream_bytes(Item("mcp_1", "mcp_call", body)) == b""


@pytest.mark.parametrize("odd", [{**WEB, "action": [1]}, {**WEB, "action": "x"}, {**FILES, "queries": {"a": 1}}])
def test_odd_shapes_still_stand_for_something(odd: dict[str, Any]):
    call, output = sent(odd)
    assert call["call_id"] == output["call_id"] == odd["id"]


def test_a_pair_is_spelled_the_same_each_time():
    assert pair("c", "f", "{}", 'é"\n') == (
        b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},'
        b'{"type":"function_call_output","call_id":"c","output":"\xc3\xa9\\"\\n"}'
    )
    assert output_item("c", "") == b'{"type":"function_call_output","call_id":"c","output":""}'


# Tools

MINE = b'{ "type":"function","name":"mine","parameters":{"b":1,"a":1.0} }'
SERVER = (
    b'{"type":"mcp","server_label":"srv","server_url":"https://x","headers":{"X-Key":"k3y"},"authorization":"t0ken"}'
)
SEARCH = b'{"type":"web_search"}'
BACKENDS = b'{"type":"code_interpreter","container":{"type":"auto"}}'
FUNCTIONS = {1: [function("srv__look"), function("srv__find")], 2: [function("web_search")]}


def tools() -> Tools:
    return Tools([MINE, SERVER, SEARCH, BACKENDS], FUNCTIONS)


def names(raw: bytes) -> list[str]:
    return [tool.get("name") or tool["type"] for tool in json.loads(raw)]


def test_functions_stand_where_their_tool_was_declared_and_the_rest_keeps_its_bytes():
    lowered = tools().lowered()
    assert names(lowered) == ["mine", "srv__look", "srv__find", "web_search", "code_interpreter"]
    definitions = [each.definition for place in (1, 2) for each in FUNCTIONS[place]]
    assert lowered == b"[" + b",".join([MINE.strip(), *definitions, BACKENDS]) + b"]"
    assert lowered == tools().lowered()


def test_only_what_is_allowed_is_lowered():
    assert names(tools().lowered(frozenset({"srv__find", "mine"}))) == ["mine", "srv__find"]
    assert tools().lowered(frozenset()) == b"[]"


def test_the_client_sees_its_declaration_less_the_secrets():
    shown = tools().public()
    assert b"k3y" not in shown
    assert b"t0ken" not in shown
    assert json.loads(shown) == [
        json.loads(MINE),
        {"type": "mcp", "server_label": "srv", "server_url": "https://x"},
        json.loads(SEARCH),
        json.loads(BACKENDS),
    ]
    assert MINE.strip() in shown


@pytest.mark.parametrize("spelling", [b'"he\\u0061ders"', b'"headers"'])
def test_secrets_go_however_their_name_is_spelled(spelling: bytes):
    raw = b'{"type":"mcp","server_label":"a",%b:{"X":"k3y"},"authorization" : "t0ken"}' % spelling
    assert Tools([raw], {0: []}).public() == b'[{"type":"mcp","server_label":"a"}]'


def test_headers_of_tools_that_are_no_servers_stay():
    raw = b'{"type":"function","name":"f","headers":{"a":"b"}}'
    assert Tools([raw], {}).public() == b"[" + raw + b"]"


def test_a_grammar_goes_and_the_description_stays():
    custom = b'{"type":"custom","name":"sql","description":"d","format":{"type":"grammar","syntax":"lark"}}'
    function_ = b'{"type":"function","name":"f","parameters":{"properties":{"grammar":{}}}}'
    both = Tools([custom, function_], {})
    assert json.loads(both.lowered()) == [
        {"type": "custom", "name": "sql", "description": "d"},
        json.loads(function_),
    ]
    assert function_ in both.lowered()
    assert both.public() == b"[" + custom + b"," + function_ + b"]"


# Choices


@pytest.mark.parametrize("raw", [None, b"null", b'"auto"', b'"required"', b'"none"'])
def test_a_plain_choice_is_passed_on(raw: bytes | None):
    assert tools().choice(raw) == (raw, None)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"function" ,"name":"mine"}',
        b'{"type":"custom","name":"mine"}',
        b'{"name":"mine"}',
        b'{"type":"code_interpreter"}',
        b'{"type":"mcp","server_label":"other"}',
        b'{"type":"file_search"}',
    ],
)
def test_a_choice_of_what_is_not_ours_is_passed_on(raw: bytes):
    assert tools().choice(raw) == (raw, None)


@pytest.mark.parametrize(
    ("choice", "lowered", "only"),
    [
        ({"type": "web_search"}, {"type": "function", "name": "web_search"}, None),
        (
            {"type": "mcp", "server_label": "srv", "name": "look"},
            {"type": "function", "name": "srv__look"},
            None,
        ),
        ({"type": "mcp", "server_label": "srv"}, "required", {"srv__look", "srv__find"}),
        ({"type": "mcp", "server_label": "srv", "name": None}, "required", {"srv__look", "srv__find"}),
    ],
)
def test_a_named_hosted_tool_becomes_its_functions(choice: Any, lowered: Any, only: set[str] | None):
    raw, allowed = tools().choice(json.dumps(choice).encode())
    assert raw is not None
    assert json.loads(raw) == lowered
    assert allowed == (None if only is None else frozenset(only))


def test_a_tool_whose_name_ends_like_anothers_is_not_taken_for_it():
    both = Tools([SERVER], {0: [function("srv__get__look"), function("srv__look")]})
    raw, only = both.choice(b'{"type":"mcp","server_label":"srv","name":"look"}')
    assert raw == b'{"type":"function","name":"srv__look"}'
    assert only is None


@pytest.mark.parametrize("name", ["look", "files.find", "Zürich wetter", "x" * 80])
def test_a_tool_is_chosen_by_its_own_name_whatever_its_function_is_called(name: str):
    offered = [each for each, _ in functions("srv", (Listed(name, {}),)).values()]
    choice = json.dumps({"type": "mcp", "server_label": "srv", "name": name}).encode()
    raw, _ = Tools([SERVER], {0: offered}).choice(choice)
    assert raw is not None
    assert json.loads(raw) == {"type": "function", "name": offered[0].name}
    assert sent({**MCP_CALL, "name": name})[0]["name"] == offered[0].name


@pytest.mark.parametrize("name", ["ghost", "ook", ""])
def test_a_tool_that_its_server_does_not_have_cannot_be_chosen(name: str):
    with pytest.raises(InvalidRequest) as caught:
        tools().choice(json.dumps({"type": "mcp", "server_label": "srv", "name": name}).encode())
    assert caught.value.param == "tool_choice"


def test_a_server_without_tools_cannot_be_chosen():
    with pytest.raises(InvalidRequest):
        Tools([SERVER], {0: []}).choice(b'{"type":"mcp","server_label":"srv"}')


def allowed(mode: str | None, *entries: dict[str, Any]) -> tuple[Any, frozenset[str] | None]:
    choice = {"type": "allowed_tools", "tools": entries} | ({} if mode is None else {"mode": mode})
    raw, only = tools().choice(json.dumps(choice).encode())
    assert raw is not None
    return json.loads(raw), only


@pytest.mark.parametrize(
    ("mode", "entries", "lowered", "only"),
    [
        ("auto", [{"type": "function", "name": "mine"}], "auto", {"mine"}),
        (None, [{"type": "function", "name": "mine"}], "auto", {"mine"}),
        ("required", [{"type": "mcp", "server_label": "srv"}], "required", {"srv__look", "srv__find"}),
        ("required", [{"type": "mcp", "server_label": "srv", "name": "find"}], "required", {"srv__find"}),
        ("auto", [{"type": "web_search"}, {"type": "function", "name": "mine"}], "auto", {"web_search", "mine"}),
        ("auto", [], "none", set()),
        ("auto", [{"type": "mcp", "server_label": "srv", "name": "ghost"}], "none", set()),
    ],
)
def test_allowed_tools(mode: str | None, entries: list[Any], lowered: str, only: set[str]):
    assert allowed(mode, *entries) == (lowered, frozenset(only))


@pytest.mark.parametrize("entries", [[], [{"type": "mcp", "server_label": "srv", "name": "ghost"}]])
def test_a_required_choice_of_nothing_is_refused(entries: list[Any]):
    with pytest.raises(InvalidRequest) as caught:
        allowed("required", *entries)
    assert caught.value.param == "tool_choice"


def test_functions_of_ours_that_are_declared_by_name_are_allowed_by_name():
    by_name = Tools([b'{"type":"function","name":"weather"}', MINE], {0: [function("weather")]})
    raw, only = by_name.choice(b'{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"weather"}]}')
    assert (raw, only) == (b'"auto"', frozenset({"weather"}))
    assert names(by_name.lowered(only)) == ["weather"]
    choice = b'{"type":"function","name":"weather"}'
    assert by_name.choice(choice) == (choice, None)


def test_a_function_may_be_called_like_a_type():
    odd = Tools([b'{"type":"function","name":"weather"}'], {0: [Function("weather", b"{}")]})
    assert odd.lowered() == b"[{}]"


# Includes


@pytest.mark.parametrize(
    ("raw", "sent_"),
    [
        (None, None),
        (b"null", b"null"),
        (b'"web_search_call.results"', b'"web_search_call.results"'),
        (b'[ "reasoning.encrypted_content" ]', b'[ "reasoning.encrypted_content" ]'),
        (b'["file_search_call.results"]', b'["file_search_call.results"]'),
        (
            b'["web_search_call.action.sources", "reasoning.encrypted_content", 1]',
            b'["reasoning.encrypted_content",1]',
        ),
        (b'["web_search_call.results"]', b"[]"),
    ],
)
def test_includes_of_our_own_are_not_sent(raw: bytes | None, sent_: bytes | None):
    assert without_own_includes(raw) == sent_
