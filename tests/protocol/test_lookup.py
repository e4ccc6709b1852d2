"""Which ids a store may be asked about at all."""

import pytest

from proxy.protocol.lookup import MAX_ID_CHARS, json_reply, storable_id


@pytest.mark.parametrize("id_", ["resp_1", "x", "é", "a b", "x" * MAX_ID_CHARS])
def test_an_id_of_visible_characters_may_be_stored(id_: str):
    assert storable_id(id_)


@pytest.mark.parametrize("id_", ["", "x" * (MAX_ID_CHARS + 1), "a\0b", "a\nb", "\ud800", "\x7f"])
def test_an_id_that_a_database_may_refuse_is_never_asked_for(id_: str):
    assert not storable_id(id_)


def test_a_json_reply_is_200_with_its_media_type():
    reply = json_reply(b"{}")
    assert (reply.status, reply.headers, reply.body) == (200, ((b"content-type", b"application/json"),), b"{}")
