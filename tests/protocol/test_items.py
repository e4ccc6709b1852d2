"""Input taken apart into items that keep their bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from proxy.errors import InvalidType, InvalidValue
from proxy.protocol import items
from proxy.protocol.records import Item


def ids() -> Callable[[str], str]:
    numbers = count(1)
    return lambda prefix: f"{prefix}{next(numbers)}"


def call(call_id: str, type_: str = "function_call") -> Item:
    return Item(f"fc_{call_id}", type_, b"{}", call_id)


def output(call_id: str, type_: str = "function_call_output") -> Item:
    return Item(f"fco_{call_id}", type_, b"{}", call_id)


def test_a_string_is_one_user_message_with_its_exact_spelling():
    (item,) = items.parse_input(rb'"caf\u00e9"', ids())
    assert (item.id, item.type) == ("msg_1", "message")
    assert item.body == rb'{"type":"message","role":"user","content":[{"type":"input_text","text":"caf\u00e9"}]}'


@pytest.mark.parametrize("raw", [None, b"null", b"[]"])
def test_nothing_is_no_items(raw: bytes | None):
    assert items.parse_input(raw, ids()) == ()


@pytest.mark.parametrize("raw", [b"1", b"{}", b"true"])
def test_an_input_of_another_kind_is_refused(raw: bytes):
    with pytest.raises(InvalidType, match="'input' must be a string or an array"):
        items.parse_input(raw, ids())


def test_each_item_keeps_its_bytes_and_its_id_or_gets_one():
    one, two = b'{ "role":"user", "content": "a" , "x":1.50}', b'{"id":"msg_own","type":"message"}'
    parsed = items.parse_input(b"[" + one + b" , " + two + b"]", ids())
    assert [item.body for item in parsed] == [one, two]
    assert [item.id for item in parsed] == ["msg_1", "msg_own"]


@pytest.mark.parametrize(
    ("raw", "type_"),
    [
        (b'{"role":"user","content":"a"}', "message"),
        (b'{"type":null,"role":"user"}', "message"),
        (b'{"id":"msg_1","role":"assistant"}', "message"),
        (b'{"id":"msg_1"}', "item_reference"),
        (b'{"id":"msg_1","type":null,"role":null}', "item_reference"),
        (b'{"type":"item_reference","id":"msg_1"}', "item_reference"),
        (b"{}", "message"),
        (b'{"id":""}', "message"),
        (b'{"type":"reasoning"}', "reasoning"),
        (b'{"type":"brand_new"}', "brand_new"),
    ],
)
def test_what_an_item_is(raw: bytes, type_: str):
    assert items.parse_item(raw, ids(), "input[0]").type == type_


@pytest.mark.parametrize(
    ("type_", "prefix"),
    [
        ("message", "msg_"),
        ("reasoning", "rs_"),
        ("function_call", "fc_"),
        ("function_call_output", "fco_"),
        ("other", "item_"),
    ],
)
def test_a_fresh_id_shows_the_kind(type_: str, prefix: str):
    item = items.parse_item(b'{"type":"' + type_.encode() + b'"}', ids(), "input[0]")
    assert item.id == f"{prefix}1"


def test_only_calls_and_their_outputs_have_a_call_id():
    types = ["function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "mcp_call"]
    raw = b"[" + b",".join(b'{"type":"%b","call_id":"c"}' % type_.encode() for type_ in types) + b"]"
    assert [item.call_id for item in items.parse_input(raw, ids())] == ["c", "c", "c", "c", None]


@pytest.mark.parametrize(
    ("raw", "error", "param"),
    [
        (b'[{}, "x"]', InvalidType, "input[1]"),
        (b"[[]]", InvalidType, "input[0]"),
        (b'[{"type":7}]', InvalidType, "input[0].type"),
        (b'[{"id":{}}]', InvalidType, "input[0].id"),
        (b'[{"type":"function_call","call_id":1}]', InvalidType, "input[0].call_id"),
        (b'[{"id":"%b"}]' % (b"x" * 513), InvalidValue, "input[0].id"),
        (rb'[{"id":"a\u0000"}]', InvalidValue, "input[0].id"),
        (b"[{},]", InvalidType, "input"),
    ],
)
def test_a_refusal_names_the_place(raw: bytes, error: type[Exception], param: str):
    with pytest.raises(error) as caught:
        items.parse_input(raw, ids())
    assert caught.value.param == param  # type: ignore[attr-defined]


def test_a_call_is_open_until_an_output_comes_after_it():
    assert items.open_calls([call("a"), call("b"), output("b")]) == ["a"]
    assert items.open_calls([output("a"), call("a")]) == ["a"]
    assert items.open_calls([call("a"), output("a"), call("a")]) == ["a"]
    assert items.open_calls([call("a"), call("a"), output("a")]) == []
    assert items.open_calls([call("a", "custom_tool_call"), output("a", "custom_tool_call_output")]) == []


def test_an_output_is_an_orphan_when_no_call_comes_before_it():
    assert items.orphan_outputs([call("a"), output("a"), output("a")]) == []
    assert items.orphan_outputs([output("b"), output("a"), output("b"), call("a")]) == ["b", "a"]


def test_joining_copies_the_bytes():
    assert items.join([Item("a", "message", b"{ }"), Item("b", "message", b'{"x": 1}')]) == b'[{ },{"x": 1}]'
    assert items.join([]) == b"[]"
