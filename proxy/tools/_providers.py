"""Web search providers: what each is asked, and how its answer reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from proxy.protocol import jsonbytes
from proxy.tools._callout import Answer, CalloutError

_HOMES = {"brave": "https://api.search.brave.com", "tavily": "https://api.tavily.com"}


class Fetch(Protocol):
    """The guarded HTTP call."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Awaitable[Answer]:
        """Asks, and gives the answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for, and within which bounds."""

    query: str
    count: int
    domains: tuple[str, ...]
    country: str | None
    place: str

    def about(self, query: str) -> Question:
        """The same bounds for another query."""
        return replace(self, query=query)

    def admits(self, url: str) -> bool:
        """Whether a page is within the allowed domains."""
        if not self.domains:
            return True
        try:
            host = (urlsplit(url).hostname or "").lower()
        except ValueError:  # an address that is none, as "https://["
            return False
        return any(host == each or host.endswith(f".{each}") for each in self.domains)

    @property
    def words(self) -> str:
        """The query with its place, and with its domains as most engines spell them."""
        sites = " OR ".join(f"site:{each}" for each in self.domains)
        return " ".join(part for part in (self.query, self.place, f"({sites})" if sites else "") if part)


@dataclass(frozen=True, slots=True)
class Found:
    """One page."""

    title: str
    url: str
    text: str


async def ask(provider: str, base: str | None, key: str, question: Question, fetch: Fetch) -> list[Found]:
    """Asks a provider. Raises `CalloutError` when it does not answer properly."""
    home = (base or _HOMES[provider]).rstrip("/")
    method, url, headers, body = _REQUESTS[provider](home, key, question)
    answer = await fetch(method, url, {"accept": "application/json", **headers}, body)
    if answer.status != 200:
        raise CalloutError(f"the search provider answered {answer.status}")
    try:
        return _ANSWERS[provider](jsonbytes.value(answer.body))
    except (jsonbytes.NotJSON, KeyError, TypeError, AttributeError) as error:
        raise CalloutError("the search provider's answer cannot be understood") from error


_Asked = tuple[str, str, dict[str, str], bytes | None]


def _searxng(home: str, key: str, question: Question) -> _Asked:
    query = {"q": question.words, "format": "json"}
    if question.country:
        query["language"] = f"all-{question.country}"
    return "GET", f"{home}/search?{urlencode(query)}", {}, None


def _brave(home: str, key: str, question: Question) -> _Asked:
    query: dict[str, str | int] = {"q": question.words, "count": min(question.count * 2, 20)}
    if question.country:
        query["country"] = question.country
    return "GET", f"{home}/res/v1/web/search?{urlencode(query)}", {"x-subscription-token": key}, None


def _tavily(home: str, key: str, question: Question) -> _Asked:
    asked: dict[str, Any] = {
        "query": " ".join(part for part in (question.query, question.place, question.country or "") if part),
        "max_results": question.count,
    }
    if question.domains:
        asked["include_domains"] = list(question.domains)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return "POST", f"{home}/search", headers, jsonbytes.encode(asked)


def _pages(results: Any, text: str) -> list[Found]:
    return [Found(str(r.get("title") or r["url"]), str(r["url"]), str(r.get(text) or "")) for r in results]


_REQUESTS: Mapping[str, Callable[[str, str, Question], _Asked]] = {
    "searxng": _searxng,
    "brave": _brave,
    "tavily": _tavily,
}
_ANSWERS: Mapping[str, Callable[[Any], list[Found]]] = {
    "searxng": lambda value: _pages(value["results"], "content"),
    "brave": lambda value: _pages((value.get("web") or {}).get("results") or (), "description"),
    "tavily": lambda value: _pages(value["results"], "content"),
}
