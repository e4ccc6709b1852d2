"""Whom a tool may contact, however the address is spelled, and however often the name server changes its mind."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web
from pydantic import ValidationError

from proxy.tools import _mcp_http
from proxy.tools._callout import (
    Callout,
    CalloutError,
    CalloutOptions,
    Origin,
    Refused,
    TooLarge,
    TooSlow,
    Unreachable,
    parse,
)
from proxy.tools._callout_addresses import METADATA, may_contact
from tests import certificates

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"]
PUBLIC_IN_DISGUISE = ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"]
PRIVATE = [
    "127.0.0.1",
    "127.8.9.10",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.127.255.255",
    "169.254.1.1",
    "192.0.0.8",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "240.0.0.1",
    "255.255.255.255",
    "0.1.2.3",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fdff::1",
    "fec0::1",
    "2001:db8::1",
    "2001:2::1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "::10.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::10.0.0.1",
    "64:ff9b:1::8.8.8.8",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2001:0:808:808::f5ff:fffe",  # Teredo of 10.0.0.1
]
NEVER = [
    "0.0.0.0",
    "::",
    "::ffff:0.0.0.0",
    "224.0.0.1",
    "239.255.255.250",
    "ff02::1",
    "64:ff9b::224.0.0.1",
    *map(str, METADATA),
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::169.254.169.254",
    "64:ff9b::100.100.100.200",
    "2002:a9fe:a9fe::1",
    "2001:0:a9fe:a9fe::1",  # a Teredo server
    "2001:0:808:808::5601:5601",  # Teredo of 169.254.169.254
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:a9fe:a9:fe00::",  # RFC 6052, a prefix of 48 bits
    "64:ff9b:1:a9:fe:a9fe::",  # of 56
    "64:ff9b:1:0:a9:fea9:fe00:0",  # of 64
    "fd00:ec2::254%eth0",
]


@pytest.mark.parametrize("address", PUBLIC + PUBLIC_IN_DISGUISE)
def test_public_addresses_may_be_contacted(address: str):
    assert may_contact(ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_only_where_the_origin_is_allowed(address: str):
    assert not may_contact(ip_address(address))
    assert may_contact(ip_address(address), private=True)


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_contacted(address: str):
    assert not may_contact(ip_address(address))
    assert not may_contact(ip_address(address), private=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http:///x",
        "http://:80/",
        "http://u@example.com/",
        "http://u:p@example.com/",
        "http://@example.com/",
        "http://example.com@127.0.0.1/",
        "http://example.com/#x",
        "http://example.com#@127.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http://exa mple.com/",
        "http://example.com/\r\nx: y",
        "http://example.com/\x00",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://example.com:x/",
        "http://example.com./",
        "http://127.0.0.1./",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://127.0.0.1.1/",
        "http://08.8.8.8/",
        "http://[fe80::1%25eth0]/",
        "http://[::1/",
        "http://[example.com]/",
        "http://a..b/",
        "http://-a.example/",
        "http://a_.-/",
        "http://%31%32%37.0.0.1/",
        "http://exam%70le.com/",
        "http://" + "a" * 300 + "/",
        "http://h/" + "a" * 9000,
    ],
)
def test_urls_that_two_readers_might_read_differently_are_refused(url: str):
    with pytest.raises(Refused) as caught:
        parse(url)
    assert "example" not in caught.value.reason


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://Example.COM/a?b=c", "example.com", 80),
        ("https://example.com:8443", "example.com", 8443),
        ("http://my_host-1.internal/", "my_host-1.internal", 80),
        ("http://bücher.example/", "xn--bcher-kva.example", 80),
        ("http://１２７.０.０.１/", "127.0.0.1", 80),
        ("http://[::1]:80/", "::1", 80),
        ("http://[::ffff:7f00:1]/", "::ffff:7f00:1", 80),
    ],
)
def test_a_url_names_one_host(url: str, host: str, port: int):
    assert Origin.of(parse(url))[1:] == (host, port)


@pytest.mark.parametrize(
    "url", ["http://１２７.０.０.１/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://169.254.169.254/latest"]
)
async def test_addresses_in_urls_are_checked_too(url: str):
    callout = Callout(CalloutOptions())
    with pytest.raises(Refused, match="may not be contacted"):
        await callout.destination(url)
    with pytest.raises(Refused, match="may not be contacted"):
        await callout.fetch("GET", url, {})


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "ⓛocalhost"])
async def test_the_systems_names_are_checked(name: str):
    callout = Callout(CalloutOptions())
    with pytest.raises(CalloutError) as caught:
        await callout.destination(f"http://{name}/")
    assert isinstance(caught.value, Refused)


class Names:
    """A name server that answers differently each time it is asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize("answer", [["8.8.8.8", "127.0.0.1"], ["8.8.8.8", "::ffff:169.254.169.254"], ["nonsense"]])
async def test_every_address_of_a_name_is_checked(answer: list[str]):
    callout = Callout(CalloutOptions(), Names(answer))
    with pytest.raises(Refused):
        await callout.destination("http://example.com/")
    with pytest.raises(Refused):
        await callout.fetch("GET", "http://example.com/", {})
    await callout.close()


async def test_a_name_without_an_address_is_unreachable():
    async def fails(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror("no such name")

    for names in (fails, Names([])):
        callout = Callout(CalloutOptions(), names)
        with pytest.raises(Unreachable):
            await callout.destination("http://example.com/")
        with pytest.raises(Unreachable):
            await callout.fetch("GET", "http://example.com/", {})
        await callout.close()


async def test_only_the_exact_origin_may_be_private():
    names = Names(["10.0.0.1"])
    callout = Callout(CalloutOptions(allowed_private_origins=("https://tools.internal:8443",)), names)
    found = await callout.destination("https://tools.internal:8443/mcp?key=hidden")
    assert found.addresses == ("10.0.0.1",)
    assert "hidden" not in repr(found)
    for url in (
        "http://tools.internal:8443/",
        "https://tools.internal/",
        "https://tools.internal:8444/",
        "https://a.tools.internal:8443/",
    ):
        with pytest.raises(Refused):
            await callout.destination(url)
        with pytest.raises(Refused):
            await callout.fetch("GET", url, {})
    names.answers = [["169.254.169.254"]]
    with pytest.raises(Refused):
        await callout.destination("https://tools.internal:8443/")
    await callout.close()


@pytest.mark.parametrize("origin", ["tools.internal", "http://h/path", "http://u:p@h", "ftp://h", "http://h/?a"])
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str):
    with pytest.raises(ValidationError, match="must be an origin"):
        CalloutOptions(allowed_private_origins=(origin,))


# Real connections


@pytest.fixture
async def site() -> AsyncIterator[Any]:
    """Answers what it was asked, and misbehaves where it is told to."""

    async def answer(request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/redirect":
                return web.Response(status=302, headers={"location": "http://169.254.169.254/"})
            case "/large":
                return web.Response(body=b"x" * 2000)
            case "/gzip":
                return web.Response(body=b"x", headers={"content-encoding": "gzip"})
            case "/silent":
                await asyncio.Event().wait()
            case "/drop":
                response = web.StreamResponse(headers={"content-length": "10"})
                await response.prepare(request)
                await response.write(b"x")
                assert request.transport is not None
                request.transport.abort()
                return response
        said = {"host": request.host, "path": request.path_qs, "body": (await request.read()).decode()}
        return web.json_response({**said, "headers": dict(request.headers)})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner
    await runner.cleanup()


def port_of(site: Any) -> int:
    return int(site.addresses[0][1])


async def test_fetch_sends_and_answers(site: Any, monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    origin = f"http://127.0.0.1:{port_of(site)}"
    callout = Callout(CalloutOptions(allowed_private_origins=(origin,)))
    answer = await callout.fetch("POST", f"{origin}/a?b=c", {"x-key": "1"}, b"{}")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert b'"body": "{}"' in answer.body
    assert b'"path": "/a?b=c"' in answer.body
    assert b'"identity"' in answer.body
    redirected = await callout.fetch("GET", f"{origin}/redirect", {})
    assert redirected.status == 302
    await callout.close()


@pytest.mark.parametrize(
    ("path", "error"),
    [("/large", TooLarge), ("/gzip", Unreachable), ("/silent", TooSlow), ("/drop", Unreachable)],
)
async def test_fetch_is_bounded(site: Any, path: str, error: type[CalloutError]):
    origin = f"http://127.0.0.1:{port_of(site)}"
    options = CalloutOptions(allowed_private_origins=(origin,), timeout_seconds=0.3, max_bytes=1999)
    callout = Callout(options)
    with pytest.raises(error) as caught:
        await callout.fetch("GET", origin + path, {})
    assert "127.0.0.1" not in caught.value.reason
    await callout.close()


async def test_fetch_connects_to_the_address_that_was_checked(site: Any):
    """The second answer of the name server would lead elsewhere: it is checked by itself, and refused."""
    origin = f"http://tools.internal:{port_of(site)}"
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    callout = Callout(CalloutOptions(allowed_private_origins=(origin,)), names)
    answer = await callout.fetch("GET", origin, {"connection": "close"})
    assert f'"host": "tools.internal:{port_of(site)}"'.encode() in answer.body
    assert len(names.asked) == 1
    with pytest.raises(Refused):
        await callout.fetch("GET", origin, {})
    await callout.close()


def link(destination: Any, tls: ssl.SSLContext) -> _mcp_http.Link:
    return _mcp_http.Link(destination, {"x-key": "1"}, tls, 10_000, 1)


async def test_the_mcp_client_connects_to_the_address_that_was_checked(site: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    origin = f"http://tools.internal:{port_of(site)}"
    names = Names(["127.0.0.1"], ["8.8.8.8"])
    callout = Callout(CalloutOptions(allowed_private_origins=(origin,)), names)
    destination = await callout.destination(origin)
    async with _mcp_http.client(link(destination, callout.tls), streamable=True) as client:
        for _ in range(2):
            answer = await client.post(origin, headers={"connection": "close"})
            assert answer.json()["host"] == f"tools.internal:{port_of(site)}"
            assert answer.json()["headers"]["x-key"] == "1"
        elsewhere = await client.post(f"http://else.internal:{port_of(site)}/")
        assert "could not be reached" in elsewhere.text
        assert (await client.post(f"{origin}/redirect")).status_code == 502
        assert (await client.get(origin)).status_code == 405
    assert len(names.asked) == 1


async def test_the_next_address_is_tried_when_one_does_not_answer(site: Any):
    origin = f"http://tools.internal:{port_of(site)}"
    callout = Callout(CalloutOptions(allowed_private_origins=(origin,)), Names(["::1", "127.0.0.1"]))
    destination = await callout.destination(origin)
    async with _mcp_http.client(link(destination, callout.tls), streamable=True) as client:
        assert (await client.post(origin)).status_code == 200


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[tuple[int, Path]]:
    """A server with a certificate for 127.0.0.1, and for no name."""
    certificates.make(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    async def well(request: web.Request) -> web.Response:
        return web.Response(text="well")

    app = web.Application()
    app.router.add_post("/", well)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield runner.addresses[0][1], tmp_path / "tls.crt"
    await runner.cleanup()


async def test_tls_verifies_the_name_that_was_asked_for(secure: tuple[int, Path]):
    port, ca_file = secure
    named, plain = f"https://tools.internal:{port}", f"https://127.0.0.1:{port}"
    allowed = (named, plain)
    callout = Callout(CalloutOptions(allowed_private_origins=allowed, ca_file=ca_file), Names(["127.0.0.1"]))
    stranger = Callout(CalloutOptions(allowed_private_origins=allowed))
    assert (await callout.fetch("POST", plain, {})).body == b"well"
    for who, url in ((callout, named), (stranger, plain)):
        with pytest.raises(Unreachable):
            await who.fetch("POST", url, {})

    async def post(who: Callout, url: str) -> httpx2.Response:
        async with _mcp_http.client(link(await who.destination(url), who.tls), streamable=True) as client:
            return await client.post(url)

    assert (await post(callout, plain)).text == "well"
    assert "could not be reached" in (await post(callout, named)).text
    assert "could not be reached" in (await post(stranger, plain)).text
    await callout.close()
    await stranger.close()
