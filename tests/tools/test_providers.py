"""What each search provider is asked, and how its answer reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from proxy.tools._callout import Answer, CalloutError
from proxy.tools._providers import Found, Question, ask

PAGE = {"title": "Sky", "url": "https://sky.example/", "content": "clear", "description": "clear"}
SHAPES: Mapping[str, Any] = {
    "searxng": lambda pages: {"query": "q", "results": pages},
    "brave": lambda pages: {"type": "search", "web": {"results": pages}},
    "tavily": lambda pages: {"results": pages},
}
every_provider = pytest.mark.parametrize("provider", SHAPES)


def question(query: str = "sky today", **fields: Any) -> Question:
    return Question(**{"query": query, "count": 5, "domains": (), "country": None, "place": "", **fields})


async def asked(
    provider: str, answer: Any, about: Question | None = None, base: str | None = "http://here:1/", status: int = 200
) -> tuple[list[Found], tuple[str, str, dict[str, str], Any]]:
    """What was found, and the request that was made."""
    made: list[Any] = []

    async def fetch(method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        made.extend((method, url, dict(headers), json.loads(body) if body else None))
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return Answer(status, {}, raw)

    found = await ask(provider, base, "k3y", about or question(), fetch)
    method, url, headers, body = made
    return found, (method, url, headers, body)


@every_provider
async def test_pages_read_the_same_from_everybody(provider: str):
    pages = [PAGE, {"url": "https://bare.example/"}, {**PAGE, "title": None, "content": None, "description": None}]
    found, _ = await asked(provider, SHAPES[provider](pages))
    assert found == [
        Found("Sky", "https://sky.example/", "clear"),
        Found("https://bare.example/", "https://bare.example/", ""),
        Found("https://sky.example/", "https://sky.example/", ""),
    ]
    assert (await asked(provider, SHAPES[provider]([])))[0] == []


@pytest.mark.parametrize("answer", [{}, {"web": None}, {"web": {}}, {"web": {"results": None}}])
async def test_brave_leaves_out_what_it_did_not_find(answer: Any):
    assert (await asked("brave", answer))[0] == []


@every_provider
@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'"x"', b"null"])
async def test_an_answer_that_is_none_is_a_fault_of_the_provider(provider: str, answer: bytes):
    with pytest.raises(CalloutError):
        await asked(provider, answer)


@every_provider
@pytest.mark.parametrize("pages", ["x", [1], ["x"], [None], [{"title": "no url"}], {"a": 1}, 7])
async def test_pages_that_are_none_are_a_fault_of_the_provider(provider: str, pages: Any):
    with pytest.raises(CalloutError):
        await asked(provider, SHAPES[provider](pages))


@every_provider
@pytest.mark.parametrize("status", [204, 301, 401, 429, 500])
async def test_any_other_status_is_named(provider: str, status: int):
    with pytest.raises(CalloutError) as caught:
        await asked(provider, SHAPES[provider]([PAGE]), status=status)
    assert caught.value.reason == f"the search provider answered {status}"


def query_of(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query, keep_blank_values=True)


NARROW = question(domains=("a.example", "b.example"), country="FR", place="Lyon Rhône")


async def test_searxng_is_asked_in_its_way():
    _, (method, url, headers, body) = await asked("searxng", {"results": []}, NARROW)
    assert (method, url.partition("?")[0], body) == ("GET", "http://here:1/search", None)
    assert query_of(url) == {
        "q": ["sky today Lyon Rhône (site:a.example OR site:b.example)"],
        "format": ["json"],
        "language": ["all-FR"],
    }
    assert headers == {"accept": "application/json"}
    _, (_, url, _, _) = await asked("searxng", {"results": []})
    assert query_of(url) == {"q": ["sky today"], "format": ["json"]}


async def test_brave_is_asked_in_its_way():
    _, (method, url, headers, body) = await asked("brave", {}, NARROW, base=None)
    assert (method, url.partition("?")[0], body) == ("GET", "https://api.search.brave.com/res/v1/web/search", None)
    assert query_of(url) == {
        "q": ["sky today Lyon Rhône (site:a.example OR site:b.example)"],
        "count": ["10"],
        "country": ["FR"],
    }
    assert headers == {"accept": "application/json", "x-subscription-token": "k3y"}
    _, (_, url, _, _) = await asked("brave", {}, question(count=50))
    assert query_of(url)["count"] == ["20"]


async def test_tavily_is_asked_in_its_way():
    _, (method, url, headers, body) = await asked("tavily", {"results": []}, NARROW, base=None)
    assert (method, url) == ("POST", "https://api.tavily.com/search")
    assert body == {
        "query": "sky today Lyon Rhône FR",
        "max_results": 5,
        "include_domains": ["a.example", "b.example"],
    }
    assert headers["authorization"] == "Bearer k3y"
    _, (_, _, _, body) = await asked("tavily", {"results": []})
    assert body == {"query": "sky today", "max_results": 5}


@pytest.mark.parametrize("query", ["a&format=html#x", "a b+c%20", "é\n"])
async def test_a_query_cannot_leave_its_place(query: str):
    for provider in ("searxng", "brave"):
        _, (_, url, _, _) = await asked(provider, SHAPES[provider]([]), question(query))
        assert query_of(url)["q"] == [query]
        assert "#" not in url


@pytest.mark.parametrize(
    ("url", "inside"),
    [
        ("https://a.example/", True),
        ("https://www.A.example/x", True),
        ("https://a.example:8443/", True),
        ("https://nota.example/", False),
        ("https://a.example.evil/", False),
        ("https://evil/?a.example", False),
        ("https://a.example@evil/", False),
        ("a.example", False),
        ("", False),
        ("https://[", False),
    ],
)
def test_only_allowed_domains_and_what_is_below_them(url: str, inside: bool):
    assert question(domains=("a.example",)).admits(url) is inside
    assert question().admits(url)


def test_a_question_keeps_its_bounds():
    assert NARROW.about("else") == question("else", domains=NARROW.domains, country="FR", place="Lyon Rhône")
