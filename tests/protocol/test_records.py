"""The records: plain values, so that equal ones are the same."""

import dataclasses

import pytest

from proxy.protocol import records

KINDS = [kind for kind in vars(records).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_is_frozen_and_says_what_it_is(kind: type):
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")


def test_an_items_identity_is_its_content():
    assert records.Item("a", "message", b"{}") == records.Item("a", "message", b"{}")
    assert records.Item("a", "message", b"{}") != records.Item("a", "message", b"{ }")


def test_a_page_query_asks_for_what_the_api_gives_by_default():
    assert records.PageQuery() == records.PageQuery(limit=20, order="desc", after=None)
