"""Whose state a request is about."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from proxy.errors import InvalidOwner, MissingOwner
from proxy.filters.owner import Config, Owner
from proxy.protocol.headers import Headers
from proxy.services import Services
from tests.playbook import JSON, answer, play, post

TRUSTED = Config(mode="trusted_header")


async def test_with_one_tenant_everybody_is_the_same(closed: Services):
    headers: Headers = (*JSON, (b"x-rejoinder-owner", b"eve"))
    played = await play([Owner(Config(tenant_id="us"), closed)], post(b"{}", owner="", headers=headers), answer("r"))
    assert played.turn.owner == "us"
    assert played.turn.headers == headers


async def test_the_trusted_header_names_the_owner_and_goes_no_further(closed: Services):
    headers: Headers = ((b"X-Rejoinder-Owner", b"ann@example.org"), *JSON)
    played = await play([Owner(TRUSTED, closed)], post(b"{}", owner="", headers=headers), answer("r"))
    assert played.turn.owner == "ann@example.org"
    assert played.turn.headers == JSON


async def test_the_header_may_have_another_name(closed: Services):
    owner = Owner(Config(mode="trusted_header", header="X-Tenant"), closed)
    assert owner.identify(((b"x-tenant", b"ann"),)) == "ann"
    with pytest.raises(MissingOwner, match="'x-tenant' is missing"):
        owner.identify(((b"x-rejoinder-owner", b"ann"),))


async def test_a_request_without_the_header_is_401_and_reaches_nobody(closed: Services):
    played = await play([Owner(TRUSTED, closed)], post(b"{}"), answer("r"))
    assert played.error is not None
    assert (played.error.status, played.error.code) == (401, "missing_state_owner")
    assert played.turns == []


@pytest.mark.parametrize("value", [b"", b" ", b"a b", b"a\tb", b"x" * 257, b"caf\xe9", b"a\x00", b"ann\n"])
def test_a_malformed_header_is_refused(closed: Services, value: bytes):
    with pytest.raises(InvalidOwner) as caught:
        Owner(TRUSTED, closed).identify(((b"x-rejoinder-owner", value),))
    assert (caught.value.status, caught.value.code) == (400, "invalid_state_owner")


def test_two_headers_are_refused_even_if_they_agree(closed: Services):
    with pytest.raises(InvalidOwner):
        Owner(TRUSTED, closed).identify(((b"x-rejoinder-owner", b"a"), (b"X-Rejoinder-Owner", b"a")))


def test_256_visible_characters_are_the_most(closed: Services):
    assert Owner(TRUSTED, closed).identify(((b"x-rejoinder-owner", b"~" * 256),)) == "~" * 256


@pytest.mark.parametrize("options", [{"mode": "open"}, {"tenant_id": ""}, {"header": "a b"}, {"header": ""}])
def test_options_that_cannot_work_are_refused(options: dict[str, str]):
    with pytest.raises(ValidationError):
        Config.model_validate(options)
