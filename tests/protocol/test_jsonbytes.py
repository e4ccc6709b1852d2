"""JSON taken apart and put together again, every value's bytes as they were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import jsonbytes

VALUES = [
    b"1.50",
    b"1e5",
    b"-0",
    b"12345678901234567890",
    b"0.1000000000000000055511151231257827",
    rb'"\u00e9\/\ud83d\ude00"',
    '"é/😀"'.encode(),
    b'{ "a" : [ 1,\t2 ] , "a":3 }',
    b"[ ]",
    b"null",
    b"true",
    b'""',
]


@pytest.mark.parametrize("spelled", VALUES)
def test_a_value_keeps_its_bytes(spelled: bytes):
    raw = b'{ "first":1 , "it" :  ' + spelled + b' ,"last":2}'
    assert jsonbytes.fields(raw)["it"] == spelled
    assert jsonbytes.with_members(raw, {"first": b"9"}) == b'{"first":9,"it":' + spelled + b',"last":2}'
    assert jsonbytes.elements(b"[0, " + spelled + b" ,2]") == [b"0", spelled, b"2"]


def test_a_repeated_key_keeps_its_first_place_and_its_last_value():
    assert jsonbytes.fields(b'{"input":"a","x":1,"input":"b"}') == {"input": b'"b"', "x": b"1"}


def test_members_are_set_in_place_added_at_the_end_or_removed():
    raw = b'{"a":1,"b":2}'
    assert jsonbytes.with_members(raw, {"a": b"9"}) == b'{"a":9,"b":2}'
    assert jsonbytes.with_members(raw, {"c": b"[ 3 ]"}) == b'{"a":1,"b":2,"c":[ 3 ]}'
    assert jsonbytes.with_members(raw, {"a": None, "never": None}) == b'{"b":2}'
    assert jsonbytes.with_members(b"{}", {}) == b"{}"


def test_keys_are_spelled_anew_but_stay_the_same_keys():
    raw = rb'{"\u0061\n":1,"\"":2}'
    assert json.loads(jsonbytes.with_members(raw, {})) == json.loads(raw)


@pytest.mark.parametrize(
    "raw", [b"", b" ", b"[]", b'"x"', b"nul", b'{"a":}', b'{"a":1}}', b'{"a":1,}', b"{'a':1}", b'{"\xff":1}']
)
def test_what_is_no_object_is_refused(raw: bytes):
    with pytest.raises(jsonbytes.NotJSON):
        jsonbytes.fields(raw)


@pytest.mark.parametrize("raw", [b"", b"{}", b"1", b"[1", b"[1]]", b"[1,,2]"])
def test_what_is_no_array_is_refused(raw: bytes):
    with pytest.raises(jsonbytes.NotJSON):
        jsonbytes.elements(raw)


def test_a_value_nested_too_deep_is_refused_not_a_crash():
    deep = b"[" * 100_000 + b"]" * 100_000
    for take in (jsonbytes.value, jsonbytes.elements):
        with pytest.raises(jsonbytes.NotJSON):
            take(deep)
    with pytest.raises(jsonbytes.NotJSON):
        jsonbytes.fields(b'{"a":' + deep + b"}")


def test_text_is_what_a_string_spells_and_nothing_else():
    assert jsonbytes.text(rb'"\u00e9"') == "é"
    assert jsonbytes.text(b'""') == ""
    assert jsonbytes.text(b"1") is None
    assert jsonbytes.text(b"null") is None
    assert jsonbytes.text(None) is None


def test_null_and_absence_are_both_not_there():
    assert not jsonbytes.present(None)
    assert not jsonbytes.present(b"null")
    assert jsonbytes.present(b"false")


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), _json, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_any_object_rebuilt_means_the_same_and_keeps_each_value(
    members: dict[str, object], ascii_: bool, indent: int | None
):
    try:
        raw = json.dumps(members, ensure_ascii=ascii_, indent=indent).encode()
    except UnicodeEncodeError:  # a lone surrogate can only be escaped
        raw = json.dumps(members, indent=indent).encode()
    taken = jsonbytes.fields(raw)
    assert {key: json.loads(value) for key, value in taken.items()} == members
    assert all(value in raw for value in taken.values())
    assert jsonbytes.fields(jsonbytes.join_object(taken)) == taken
