import json

import pytest

from proxy.errors import InvalidType, InvalidValue
from proxy.protocol.metadata import checked_metadata


@pytest.mark.parametrize(
    "raw",
    [
        "{}",
        '{ "a" : "\\u00e9" }',
        json.dumps({f"k{n}": "v" for n in range(16)}),
        json.dumps({"é" * 64: "é" * 512}, ensure_ascii=False),
    ],
)
def test_metadata_within_the_limits_keeps_its_bytes(raw: str):
    assert checked_metadata(raw.encode()) == raw.encode()


@pytest.mark.parametrize(
    "raw", ["[]", '"x"', "null", '{"a":1}', '{"a":null}', '{"a":{}}', '{"a":"\\ud800"}', "[" * 100_000]
)
def test_metadata_is_an_object_of_strings(raw: str):
    with pytest.raises(InvalidType) as error:
        checked_metadata(raw.encode())
    assert error.value.param == "metadata"


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({f"k{n}": "v" for n in range(17)}, "17"),
        ({"k" * 65: "v"}, "65"),
        ({"key": "v" * 513}, "'key' has 513"),
    ],
)
def test_metadata_beyond_a_limit_is_refused_by_name(pairs: dict[str, str], said: str):
    with pytest.raises(InvalidValue, match=said):
        checked_metadata(json.dumps(pairs).encode())
