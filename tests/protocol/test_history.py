"""What a continued turn sends upstream, and what it may not leave open."""

from __future__ import annotations

import pytest

from proxy.errors import InvalidRequest
from proxy.protocol import history
from proxy.protocol.history import extended
from proxy.protocol.records import Item
from tests.protocol.test_items import call, output


def said(body: bytes, type_: str = "message") -> Item:
    return Item("msg_1", type_, body)


USER = said(b'{ "role":"user","content": "hi" }')
ANSWER = said(b'{"role":"assistant","content":[{"type":"output_text","text":"ho"}]}')


def test_the_history_comes_first_and_every_item_keeps_its_bytes():
    assert (
        history.upstream_input([USER, ANSWER], [USER]) == b"[" + b",".join([USER.body, ANSWER.body, USER.body]) + b"]"
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"role":"assistant","content":[{"type":"output_text","text":"\\n\\n"}]}',
        b'{"role":"assistant","content":[{"type":"output_text","text":""},{"type":"output_text","text":" "}]}',
        b'{"role":"assistant","content":[]}',
        b'{"role":"assistant","content":[{"type":"output_text","text":null}]}',
    ],
)
def test_an_assistant_message_that_says_nothing_is_left_out(body: bytes):
    assert history.upstream_input([USER, said(body)], [said(body)]) == b"[" + USER.body + b"]"


@pytest.mark.parametrize(
    "item",
    [
        said(b'{"role":"user","content":[]}'),
        said(b'{"role":"assistant","content":""}'),
        said(b'{"role":"assistant","content":[{"type":"refusal","refusal":""}]}'),
        said(b'{"role":"assistant"}'),
        said(b'{"role":"assistant","content":[{"type":"output_text","text":"."}]}'),
        said(b'{"role":"assistant","content":[]}', "reasoning"),
        said(b"not json"),
        said(b'{"role":"assistant","content":[{"type":"output_text","text":"%b"}]}' % (b" " * 1024)),  # not looked into
    ],
)
def test_every_other_item_is_kept(item: Item):
    assert history.upstream_input([], [item]) == b"[" + item.body + b"]"


def test_parallel_calls_answered_in_any_order_are_fine():
    history.check_answers([USER, call("a"), call("b")], [output("b"), output("a")])
    history.check_answers([], [call("a"), output("a"), call("b")])


@pytest.mark.parametrize(
    ("before", "own", "message"),
    [
        ([call("a"), call("b")], [output("b")], "No tool output found for function call with call_id 'a'."),
        ([call("a"), call("b")], [USER], "No tool output found for function calls with call_id 'a', 'b'."),
        ([], [output("x")], "No tool call found for function call output with call_id 'x': replay"),
        ([call("a"), output("a"), call("a")], [USER], "No tool output found"),
        ([USER], [output("a"), call("a")], "No tool call found"),
    ],
)
def test_what_is_left_open_is_named(before: list[Item], own: list[Item], message: str):
    with pytest.raises(InvalidRequest) as caught:
        history.check_answers(before, own)
    assert caught.value.message.startswith(message)
    assert (caught.value.param, caught.value.status) == ("input", 400)


def test_a_call_of_the_turns_own_may_stay_open():
    history.check_answers([USER], [call("a")])
    history.check_answers([call("a")], [output("a"), call("a")])


def test_outputs_alone_say_what_they_continue():
    assert history.only_outputs([output("a"), output("b")])
    assert not history.only_outputs([output("a"), USER])
    assert not history.only_outputs([])


@pytest.mark.parametrize(
    ("raw", "added", "whole"),
    [
        (b'"hi"', [b"{}"], b'[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},{}]'),
        (b"[]", [b"{}"], b"[{}]"),
        (b' [ {"a": 1.50} ] ', [b"{}", b""], b'[{"a": 1.50},{}]'),
        (b'[{"a": 1},2]', [], b'[{"a": 1},2]'),
    ],
)
def test_an_input_grows_at_its_end(raw: bytes, added: list[bytes], whole: bytes):
    assert extended(raw, added) == whole
