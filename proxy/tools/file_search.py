"""Searching files: in folders that are indexed when the gateway starts, or through a vector store API."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, model_validator

from proxy.config import Model
from proxy.config.shape import HttpUrl
from proxy.errors import InvalidRequest, InvalidType
from proxy.protocol import jsonbytes
from proxy.protocol.hosting import Finished, Function, Hosted, HostedCall, Kit, LocalEvent, Request, Started
from proxy.tools._callout import Callout, CalloutError, CalloutOptions, Origin, parse
from proxy.tools._index import FileIndex
from proxy.tools._ungated import Ungated

log = logging.getLogger("rejoinder.file_search")

_MAX_QUERY = 64 * 1024
_MAX_STORES = 64
_MAX_CONTEXT = 2 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,512}\Z")
_DEFINITION = jsonbytes.encode(
    {
        "type": "function",
        "name": "file_search",
        "description": "Search the user's files. Cite a passage that you use by its file name in square brackets.",
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
    """Options of the tool: at least one of `folders` and `vector_store_url`."""

    folders: dict[str, Path] = Field(
        default_factory=dict,
        description="Folders of text and Markdown files, by the vector store id that requests name.",
    )
    vector_store_url: HttpUrl | None = Field(
        None, description="A vector store API; POST {url}/v1/vector_stores/{id}/search is asked for every other id."
    )
    api_key: SecretStr | None = Field(None, description="Sent to it as `Authorization: Bearer`.")
    on_failure: str = Field(
        "open",
        pattern="^(open|closed)$",
        description="A store that fails: open, the model reads so; closed, the call fails.",
    )
    timeout_seconds: float = Field(5, gt=0, le=60, description="How long the API may take.")
    max_response_bytes: int = Field(10 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024, description="Longest answer of it.")

    @model_validator(mode="after")
    def _some(self) -> Config:
        if not self.folders and self.vector_store_url is None:
            raise ValueError("name 'folders' or 'vector_store_url'")
        return self


@dataclass(frozen=True, slots=True)
class Found:
    """One result, wherever it came from."""

    file_id: str
    filename: str
    score: float
    text: str
    attributes: Mapping[str, Any]


class FileSearch:
    """Serves `file_search`."""

    types = frozenset({"file_search"})

    def __init__(self, config: Config, kit: Kit) -> None:
        self._config = config
        self._indexes = {name: FileIndex(folder) for name, folder in config.folders.items()}
        # The API that the operator wrote down is allowed by that, wherever it is.
        url = config.vector_store_url
        origins = (str(Origin.of(parse(url))),) if url else ()
        self._callout = Callout(
            CalloutOptions(
                allowed_private_origins=origins,
                timeout_seconds=config.timeout_seconds,
                max_bytes=config.max_response_bytes,
            )
        )

    async def open(self) -> None:
        """Indexes the folders."""
        for name, index in self._indexes.items():
            log.info("%s: %d files indexed", name, await index.open())

    async def close(self) -> None:
        """Lets the indexes and connections go."""
        for index in self._indexes.values():
            await index.close()
        await self._callout.close()

    async def declare(self, declaration: Mapping[str, Any], request: Request) -> Hosted | None:
        """The search over the declared stores. Raises `InvalidRequest` for stores that nobody knows."""
        ids = declaration.get("vector_store_ids")
        if not isinstance(ids, list) or not ids or not all(isinstance(each, str) and _ID.match(each) for each in ids):
            raise InvalidType("'vector_store_ids' of file_search must be a list of ids", param="tools")
        if len(ids) > _MAX_STORES:
            raise InvalidRequest(f"'vector_store_ids' may name at most {_MAX_STORES} stores.", param="tools")
        unknown = [each for each in ids if each not in self._indexes]
        if unknown and self._config.vector_store_url is None:
            raise InvalidRequest(f"Vector store '{unknown[0]}' not found.", param="tools")
        limit = declaration.get("max_num_results")
        if limit is not None and (type(limit) is not int or not 1 <= limit <= 50):
            raise InvalidType("'max_num_results' of file_search must be from 1 to 50", param="tools")
        hosted: Hosted = _Hosted(self, declaration, limit or 10, "file_search_call.results" in request.include)
        return hosted

    async def search(self, declaration: Mapping[str, Any], query: str, limit: int) -> list[Found]:
        """The best results of all declared stores, best first. Raises `CalloutError`."""
        ids = dict.fromkeys(declaration["vector_store_ids"])
        found = await asyncio.gather(*(self._one(store, declaration, query, limit) for store in ids))
        return sorted((each for some in found for each in some), key=lambda each: -each.score)[:limit]

    async def _one(self, store: str, declaration: Mapping[str, Any], query: str, limit: int) -> list[Found]:
        index = self._indexes.get(store)
        if index is not None:
            passages = await index.search(query, limit)
            return [Found(p.file_id, p.filename, p.score, p.text, {}) for p in passages]
        asked = {"query": query, "max_num_results": limit}
        asked |= {name: declaration[name] for name in ("filters", "ranking_options") if declaration.get(name)}
        headers = {"content-type": "application/json"}
        if self._config.api_key is not None:
            headers["authorization"] = f"Bearer {self._config.api_key.get_secret_value()}"
        url = f"{self._config.vector_store_url}".rstrip("/") + f"/v1/vector_stores/{store}/search"
        answer = await self._callout.fetch("POST", url, headers, jsonbytes.encode(asked))
        if not 200 <= answer.status < 300:
            raise CalloutError(f"the vector store answered {answer.status}")
        return _results(answer.body)

    @property
    def closed(self) -> bool:
        """Whether a store that fails makes the call fail."""
        return self._config.on_failure == "closed"


def _results(body: bytes) -> list[Found]:
    try:
        data = jsonbytes.value(body)["data"]
        return [_result(each) for each in data]
    except (jsonbytes.NotJSON, KeyError, TypeError, AttributeError, ValueError) as error:
        raise CalloutError("the vector store's answer cannot be understood") from error


def _result(each: Mapping[str, Any]) -> Found:
    text = "\n".join(str(part.get("text") or "") for part in each.get("content") or ())
    return Found(str(each["file_id"]), str(each["filename"]), float(each["score"]), text, each.get("attributes") or {})


class _Hosted(Ungated):
    functions = (Function("file_search", _DEFINITION),)
    prefix = "fs_"

    def __init__(self, tool: FileSearch, declaration: Mapping[str, Any], limit: int, results: bool) -> None:
        self._tool = tool
        self._declaration = declaration
        self._limit = limit
        self._show_results = results
        self._found: dict[str, str] = {}  # file names to file ids

    def start(self, call: HostedCall) -> Started:
        item = {
            "id": call.item_id,
            "type": "file_search_call",
            "status": "searching",
            "queries": [query(call.arguments)],
            "results": None,
        }
        kinds = ("in_progress", "searching")
        return Started(item, [LocalEvent(f"response.file_search_call.{kind}", {}) for kind in kinds])

    async def run(self, call: HostedCall) -> Finished:
        item = dict(self.start(call).item)
        asked = query(call.arguments)
        if not asked or len(asked) > _MAX_QUERY:
            return Finished({**item, "status": "incomplete"}, (), "Error: the query is missing or too long.")
        try:
            found = await self._tool.search(self._declaration, asked, self._limit)
        except CalloutError as error:
            status = "failed" if self._tool.closed else "incomplete"
            return Finished({**item, "status": status}, (), f"Error: {error.reason}")
        self._found.update({each.filename: each.file_id for each in found})
        item |= {"status": "completed", "results": [_shown(each) for each in found] if self._show_results else None}
        return Finished(item, (LocalEvent("response.file_search_call.completed", {}),), _read(found))

    def annotate(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        found = []
        for name, file_id in self._found.items():
            at = text.find(f"[{name}]")
            if at >= 0:
                end = at + len(name) + 2
                found.append({"type": "file_citation", "file_id": file_id, "filename": name, "index": end})
        return text, sorted(found, key=lambda each: each["index"])


def query(arguments: str) -> str:
    """The query of a call; empty where it has none."""
    try:
        value = jsonbytes.value(arguments.encode("utf-8", "surrogatepass"))
    except jsonbytes.NotJSON:
        return ""
    asked = value.get("query") if isinstance(value, dict) else None
    return asked if isinstance(asked, str) else ""


def _shown(each: Found) -> dict[str, Any]:
    return {
        "attributes": each.attributes,
        "file_id": each.file_id,
        "filename": each.filename,
        "score": each.score,
        "text": each.text,
    }


def _read(found: Sequence[Found]) -> str:
    if not found:
        return "No results."
    return "\n\n".join(f"[{each.filename}]\n{each.text}" for each in found)[:_MAX_CONTEXT]
