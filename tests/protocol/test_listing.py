"""What the public sees of stored items and responses, byte for byte."""

import json

import pytest

from proxy.protocol.listing import INCLUDABLE, list_body, public_item, response_body
from proxy.protocol.records import Item, Page, ResponseHead, StoredResponse

NOTHING: frozenset[str] = frozenset()
EVERYTHING = frozenset(INCLUDABLE)


def item(body: str, id: str = "msg_1") -> Item:
    return Item(id, "message", body.encode())


def public(body: str, id: str = "msg_1", include: frozenset[str] = NOTHING) -> str:
    return public_item(item(body, id), include).decode()


def response(envelope: str, *bodies: str) -> str:
    head = ResponseHead("resp_1", "completed", 1.0, envelope.encode())
    return response_body(StoredResponse(head, tuple(item(body) for body in bodies))).decode()


def test_a_response_keeps_every_byte_around_its_output():
    envelope = (
        '{ "id" :"resp_1",\n"x":"\\u00e9", "t":1.50,"seed":12345678901234567890, "output" : [] ,'
        '"\\u00fc":{"output":[]} }'
    )
    expected = envelope.replace('"output" : []', '"output" : [{"a": 1},{"b":"\\n"}]')
    assert response(envelope, '{"a": 1}', '{"b":"\\n"}') == expected


def test_an_output_inside_another_value_is_not_the_output():
    envelope = '{"metadata":{"output":[]},"text":"\\"output\\":[]","1":1,"output":[],"z":[]}'
    assert response(envelope, "{}") == envelope.replace('"1":1,"output":[]', '"1":1,"output":[{}]')


def test_a_response_without_output_items():
    assert response('{"id":"resp_1","output":[]}') == '{"id":"resp_1","output":[]}'


def test_an_envelope_without_an_output_gets_one():
    assert response('{"id":"resp_1"}', "{}") == '{"id":"resp_1","output":[{}]}'


def test_a_repeated_key_leaves_a_valid_response():
    assert json.loads(response('{"a":1,"a":2,"output":[]}', '{"b":1}')) == {"a": 2, "output": [{"b": 1}]}


@pytest.mark.parametrize(
    "body",
    [
        '{ "type":"message", "id":"msg_1","role":"user","status":"completed",'
        '"content":[ {"type":"input_text","text":"\\u00e9"} ] }',
        '{"id":"msg_1","type":"function_call_output","call_id":"c","output":"1.50"}',
        '{"id":"msg_1","type":"reasoning","summary":[],"content":null}',
        '{"id":"\\u006dsg_1","type":"something_new","x":1e5}',
    ],
)
def test_an_item_in_public_shape_keeps_its_bytes(body: str):
    assert public(body) == body


def test_a_bare_message_becomes_a_public_one():
    assert public('{"role":"user","content":"a\\u00e9 b"}') == (
        '{"id":"msg_1","role":"user","content":[{"type":"input_text","text":"a\\u00e9 b"}],'
        '"type":"message","status":"completed"}'
    )


def test_an_assistants_text_is_output_text():
    assert json.loads(public('{"role":"assistant","content":"hi"}'))["content"] == [
        {"type": "output_text", "text": "hi", "annotations": []}
    ]


@pytest.mark.parametrize("content", ["", ',"content":null'])
def test_a_message_without_content_has_no_parts(content: str):
    assert json.loads(public('{"role":"user"' + content + "}"))["content"] == []


def test_the_rows_id_rules_over_the_bodys():
    assert public('{"type":"x","id":"other","n":1.0}', "x_1") == '{"id":"x_1","type":"x","n":1.0}'
    assert public('{"type":"x","id":null}', "x_1") == '{"id":"x_1","type":"x"}'


STRIPPED = [
    (
        "file_search_call.results",
        '{"type":"file_search_call","results":[1],"n":1.0}',
        '{"type":"file_search_call","n":1.0}',
    ),
    ("web_search_call.results", '{"type":"web_search_call","results":[1]}', '{"type":"web_search_call"}'),
    (
        "web_search_call.action.sources",
        '{"type":"web_search_call","action":{"type":"search","sources":[{"u":1}],"query":"q"}}',
        '{"type":"web_search_call","action":{"type":"search","query":"q"}}',
    ),
    (
        "message.input_image.image_url",
        '{"type":"message","status":"completed","content":[{"type":"input_image","image_url":"data:x","detail":"low"},'
        ' {"type":"input_text","image_url":1}]}',
        '{"type":"message","status":"completed","content":[{"type":"input_image","detail":"low"},'
        '{"type":"input_text","image_url":1}]}',
    ),
    (
        "message.output_text.logprobs",
        '{"type":"message","status":"completed","content":[{"type":"output_text","text":"x","logprobs":[{"t":1}]}]}',
        '{"type":"message","status":"completed","content":[{"type":"output_text","text":"x"}]}',
    ),
    (
        "computer_call_output.output.image_url",
        '{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:x"}}',
        '{"type":"computer_call_output","output":{"type":"computer_screenshot"}}',
    ),
    (
        "code_interpreter_call.outputs",
        '{"type":"code_interpreter_call","outputs":[1]}',
        '{"type":"code_interpreter_call","outputs":null}',
    ),
    (
        "reasoning.encrypted_content",
        '{"type":"reasoning","summary":[],"encrypted_content":"xyz"}',
        '{"type":"reasoning","summary":[]}',
    ),
]


def test_every_includable_field_has_its_case():
    assert {name for name, _, _ in STRIPPED} == set(INCLUDABLE)


@pytest.mark.parametrize(("name", "stored", "shown"), STRIPPED)
def test_an_includable_field_is_shown_only_when_asked_for(name: str, stored: str, shown: str):
    stored, shown = ('{"id":"i",' + body[1:] for body in (stored, shown))
    assert public(stored, "i", EVERYTHING - {name}) == shown
    assert public(stored, "i", frozenset({name})) == stored


@pytest.mark.parametrize(
    "body",
    [
        '{"id":"i","type":"web_search_call","action":null}',
        '{"id":"i","type":"message","status":"completed","content":[null,"x",{"type":5}]}',
        '{"id":"i","type":"message","status":"completed","content":5}',
        '{"id":"i","type":"computer_call_output","output":"text"}',
        '{"id":"i","type":7}',
    ],
)
def test_an_odd_item_is_shown_as_it_is(body: str):
    assert public(body, "i") == body


def test_a_page_is_openais_list():
    page = Page((item('{"type":"x"}', "a"), item('{"type":"y"}', "b")), True)
    assert list_body(page, NOTHING).decode() == (
        '{"object":"list","data":[{"id":"a","type":"x"},{"id":"b","type":"y"}],"first_id":"a","last_id":"b","has_more":true}'
    )


def test_an_empty_page_has_no_ids():
    assert list_body(Page((), False), NOTHING) == (
        b'{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}'
    )
