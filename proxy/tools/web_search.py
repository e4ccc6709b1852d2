"""Searching the web: SearXNG (one's own, no key), Brave or Tavily; or an offline index where the web is off limits."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, model_validator

from proxy.config import Model
from proxy.config.shape import HttpUrl
from proxy.errors import InvalidType, InvalidValue
from proxy.protocol import jsonbytes
from proxy.protocol.hosting import Finished, Function, Hosted, HostedCall, Kit, LocalEvent, Request, Started
from proxy.tools._callout import Callout, CalloutError, CalloutOptions, Origin, parse
from proxy.tools._index import FileIndex
from proxy.tools._providers import Found, Question, ask
from proxy.tools._ungated import Ungated

log = logging.getLogger("rejoinder.web_search")

_SIZES = {"low": 3, "medium": 5, "high": 10}
_MAX_QUERY = 2048
_MAX_SNIPPET = 2000
_DOMAIN = re.compile(r"(?:[a-z0-9-]+\.)+[a-z0-9-]+\Z")
_GOES_NO_FURTHER = r"(?![a-zA-Z0-9_&=%~+@]|[/.,;:!'?#-][a-zA-Z0-9_])"  # a longer address is another page
_DEFINITION = jsonbytes.encode(
    {
        "type": "function",
        "name": "web_search",
        "description": "Search the web. Cite a page that you use by its address in a Markdown link.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for.", "maxLength": 200}},
            "required": ["query"],
            "additionalProperties": False,
        },
        "strict": True,  # the engine then holds even a small model to this shape
    }
)


class Config(Model):
    """Options of the tool: a `provider`, an `offline_folder`, or both."""

    provider: Literal["searxng", "brave", "tavily"] | None = Field(None, description="Whom to ask.")
    base_url: HttpUrl | None = Field(None, description="The provider's address; SearXNG has none of its own.")
    api_key: SecretStr | None = Field(None, description="The provider's key (Brave, Tavily).")
    offline_folder: Path | None = Field(
        None,
        description="Text files to answer from without the web; the first line of each may be `url: …`.",
    )
    default_context_size: Literal["low", "medium", "high"] = Field("medium", description="How many results: 3, 5, 10.")
    timeout_seconds: float = Field(10, gt=0, le=120, description="How long the provider may take.")

    @model_validator(mode="after")
    def _complete(self) -> Config:
        if self.provider is None and self.offline_folder is None:
            raise ValueError("name a 'provider' or an 'offline_folder'")
        if self.provider == "searxng" and self.base_url is None:
            raise ValueError("searxng needs 'base_url'")
        if self.provider in ("brave", "tavily") and self.api_key is None:
            raise ValueError(f"{self.provider} needs 'api_key'")
        return self


class WebSearch:
    """Serves `web_search` and its older names."""

    types = frozenset({"web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"})

    def __init__(self, config: Config, kit: Kit) -> None:
        self._config = config
        self._index = FileIndex(config.offline_folder) if config.offline_folder else None
        # The provider that the operator wrote down is allowed by that, wherever it is.
        origins = (str(Origin.of(parse(config.base_url))),) if config.base_url else ()
        self._callout = Callout(
            CalloutOptions(
                allowed_private_origins=origins, timeout_seconds=config.timeout_seconds, max_bytes=1024 * 1024
            )
        )

    async def open(self) -> None:
        """Indexes the offline folder."""
        if self._index is not None:
            log.info("offline: %d files indexed", await self._index.open())

    async def close(self) -> None:
        """Lets the index and connections go."""
        if self._index is not None:
            await self._index.close()
        await self._callout.close()

    async def declare(self, declaration: Mapping[str, Any], request: Request) -> Hosted | None:
        """The search as declared. Raises `InvalidRequest` naming what is wrong with it."""
        size = declaration.get("search_context_size") or self._config.default_context_size
        if not isinstance(size, str) or size not in _SIZES:
            raise InvalidValue("'search_context_size' must be low, medium or high", param="tools")
        offline = declaration.get("external_web_access") is False or self._config.provider is None
        question = Question("", _SIZES[size], _domains(declaration), *_location(declaration))
        sources = "web_search_call.action.sources" in request.include
        hosted: Hosted = _Hosted(self, question, offline, sources)
        if offline and self._index is None:
            hosted = _Nothing()
        return hosted

    async def search(self, question: Question, offline: bool) -> list[Found]:
        """The results, best first. Raises `CalloutError`."""
        if offline:
            passages = await self._index.search(question.query, question.count) if self._index else ()
            return [Found(p.title, p.url or p.filename, p.text) for p in passages if question.admits(p.url or "")]
        key = self._config.api_key.get_secret_value() if self._config.api_key else ""
        found = await ask(self._config.provider or "", self._config.base_url, key, question, self._callout.fetch)
        return [each for each in found if question.admits(each.url)][: question.count]


def _domains(declaration: Mapping[str, Any]) -> tuple[str, ...]:
    filters = declaration.get("filters")
    domains = filters.get("allowed_domains") if isinstance(filters, dict) else None
    if domains is None:
        return ()
    if not isinstance(domains, list) or len(domains) > 100:
        raise InvalidType("'filters.allowed_domains' must be a list of at most 100 domains", param="tools")
    for each in domains:
        if not isinstance(each, str) or not _DOMAIN.match(each.lower()):
            raise InvalidValue("'filters.allowed_domains' must hold plain domain names", param="tools")
    return tuple(each.lower() for each in domains)


def _location(declaration: Mapping[str, Any]) -> tuple[str | None, str]:
    """The country, and the words that tell a place within it."""
    location = declaration.get("user_location")
    if location is None:
        return None, ""
    if not isinstance(location, dict):
        raise InvalidType("'user_location' must be an object", param="tools")
    country = location.get("country")
    if country is not None and (not isinstance(country, str) or not re.match(r"[A-Za-z]{2}\Z", country)):
        raise InvalidValue("'user_location.country' must be a country code of two letters", param="tools")
    words = [location.get(name) for name in ("city", "region")]
    return country.upper() if country else None, " ".join(each for each in words if isinstance(each, str))[:200]


class _Nothing(Ungated):
    """The tool where it may not be used: the model is not offered it."""

    functions: Sequence[Function] = ()
    prefix = "ws_"

    def start(self, call: HostedCall) -> Started:
        return Started(_item(call), ())

    async def run(self, call: HostedCall) -> Finished:
        return Finished({**_item(call), "status": "failed"}, (), "Error: the web may not be searched.")

    def annotate(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        return text, ()


class _Hosted(_Nothing):
    functions = (Function("web_search", _DEFINITION),)

    def __init__(self, tool: WebSearch, question: Question, offline: bool, sources: bool) -> None:
        self._tool = tool
        self._question = question
        self._offline = offline
        self._show_sources = sources
        self._titles: dict[str, str] = {}

    def start(self, call: HostedCall) -> Started:
        kinds = ("in_progress", "searching")
        return Started(_item(call), [LocalEvent(f"response.web_search_call.{kind}", {}) for kind in kinds])

    async def run(self, call: HostedCall) -> Finished:
        item = _item(call)
        query = item["action"]["query"]
        if not query or len(query) > _MAX_QUERY:
            return Finished({**item, "status": "failed"}, (), "Error: the query is missing or too long.")
        try:
            found = await self._tool.search(self._question.about(query), self._offline)
        except CalloutError as error:
            return Finished({**item, "status": "failed"}, (), f"Error: {error.reason}")
        self._titles.update({each.url: each.title for each in found})
        action = dict(item["action"])
        if self._show_sources:
            action["sources"] = [{"type": "url", "url": each.url} for each in found]
        item |= {"status": "completed", "action": action}
        return Finished(item, (LocalEvent("response.web_search_call.completed", {}),), _read(found))

    def annotate(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        found = [each for url, title in self._titles.items() if (each := _citation(text, url, title))]
        return text, sorted(found, key=lambda each: int(each["start_index"]))


def _citation(text: str, url: str, title: str) -> dict[str, Any] | None:
    """Where the text names the page: the whole Markdown link, or the bare address."""
    address = re.escape(url)
    named = re.search(rf"\[[^\]\n]*\]\({address}\)", text) or re.search(address + _GOES_NO_FURTHER, text)
    if named is None:
        return None
    return {"type": "url_citation", "start_index": named.start(), "end_index": named.end(), "url": url, "title": title}


def _item(call: HostedCall) -> dict[str, Any]:
    try:
        value = jsonbytes.value(call.arguments.encode("utf-8", "surrogatepass"))
    except jsonbytes.NotJSON:
        value = {}
    query = value.get("query") if isinstance(value, dict) else None
    action = {"type": "search", "query": query if isinstance(query, str) else ""}
    return {"id": call.item_id, "type": "web_search_call", "status": "in_progress", "action": action}


def _read(found: Sequence[Found]) -> str:
    if not found:
        return "No results."
    return "\n\n".join(f"{each.title}\n{each.url}\n{each.text[:_MAX_SNIPPET]}" for each in found)
