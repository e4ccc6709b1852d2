"""How vLLM 0.32 answers, without a model: routes, validation, and a deterministic reply derived from the input."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.backend import reply, rules
from tests.backend.shapes import Stream, call_item, message_item, response_object
from tests.backend.wire import Exchange

JSON_TYPE = [("content-type", "application/json"), ("vary", "Origin")]
BLOCK = 16


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass
class Engine:
    """The served model: its name, its context, the time a token takes, and the prompts whose blocks are cached."""

    model: str
    max_model_len: int
    token_seconds: float
    cached: set[int] = field(default_factory=set)

    async def answer(self, exchange: Exchange) -> None:
        method, path = exchange.request.method, exchange.request.path.partition("?")[0]
        if path == "/v1/responses" and method == "POST":
            await self._create(exchange)
        elif (path, method) in (("/health", "GET"), ("/ping", "GET")):
            await exchange.reply(200, headers=[("content-length", "0"), ("vary", "Origin")])
        elif path == "/v1/models" and method == "GET":
            await exchange.reply(200, compact(models(self.model, self.max_model_len)), JSON_TYPE)
        elif path == "/version":
            await exchange.reply(200, compact({"version": "0.32.0"}), JSON_TYPE)
        else:
            await refuse(exchange, rules.no_route(method, path))

    async def _create(self, exchange: Exchange) -> None:
        try:
            body = rules.parse(exchange.request.header("content-type"), exchange.request.body)
            rules.check(body, self.model, self.max_model_len)
            plan = self._plan(body)
        except rules.Refused as refused:
            await refuse(exchange, refused)
            return
        if body.get("stream"):
            await self._stream(exchange, body, plan)
        else:
            await self._whole(exchange, body, plan)

    def _plan(self, body: dict[str, Any]) -> Plan:
        prompt = reply.prompt_tokens(body)
        if len(prompt) >= self.max_model_len:
            raise rules.context_overflow(self.max_model_len)
        room = self.max_model_len - len(prompt)
        spoken = reply.reply_to(body)
        limit = min(body.get("max_output_tokens") or room, room)
        cached = self._hit(prompt, prompt + reply.spoken_tokens(spoken)[:limit])
        return Plan(spoken, len(prompt), cached, limit)

    def _hit(self, prompt: list[str], after: list[str]) -> int:
        """Counts the leading blocks seen before, never the whole prompt; then remembers those of this turn."""
        keys = [hash(tuple(after[:end])) for end in range(BLOCK, len(after) + 1, BLOCK)]
        full = keys[: (len(prompt) - 1) // BLOCK]
        hits = next((number for number, key in enumerate(full) if key not in self.cached), len(full))
        self.cached.update(keys)
        return hits * BLOCK

    async def _whole(self, exchange: Exchange, body: dict[str, Any], plan: Plan) -> None:
        if refused := rules.null_in_answer(body):
            await refuse(exchange, refused)
            return
        await asyncio.sleep(self.token_seconds * plan.output_tokens)
        response = response_object(body, self.model, plan.limit)
        finished = response | plan.outcome([*plan.items_whole()])
        await exchange.reply(200, compact(finished), JSON_TYPE)

    async def _stream(self, exchange: Exchange, body: dict[str, Any], plan: Plan) -> None:
        await exchange.begin()
        if rules.null_in_answer(body):
            exchange.cut()
            return
        stream = Stream(response_object(body, self.model, plan.limit))
        for event in stream.events(plan.parts(), plan.outcome):
            if event["type"].endswith(".delta"):
                await asyncio.sleep(self.token_seconds)
            await exchange.chunk(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), compact(event)))
        await exchange.end()


@dataclass(frozen=True)
class Plan:
    """What will be said, and where max_output_tokens cuts it."""

    spoken: list[reply.Spoken]
    input_tokens: int
    cached_tokens: int
    limit: int

    @property
    def wanted(self) -> int:
        return sum(len(part.tokens) + part.overhead for part in self.spoken)

    @property
    def output_tokens(self) -> int:
        return min(self.wanted, self.limit)

    def parts(self) -> list[reply.Spoken]:
        """The parts that fit, the last one cut; a call whose name does not fit is not there at all."""
        left, fitting = self.limit, []
        for part in self.spoken:
            if (room := left - part.overhead) <= 0:
                break
            fitting.append(part.cut(room))
            left = room - len(part.tokens)
        return fitting

    def items_whole(self) -> list[dict[str, Any]]:
        """The items of a JSON answer: a call that was cut shows as a message with its raw text."""
        if self.wanted > self.limit and any(part.name for part in self.spoken):
            return [message_item("".join(part.markup for part in self.parts()) or "<tool_call>")]
        return [
            call_item(part.name, json.dumps(json.loads(part.text))) if part.name else message_item(part.text)
            for part in self.parts()
        ]

    def outcome(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        cut = self.wanted > self.limit
        return {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": items,
            "status": "incomplete" if cut else "completed",
            "usage": usage(self.input_tokens, self.cached_tokens, self.output_tokens),
        }


def usage(given: int, cached: int, produced: int) -> dict[str, Any]:
    return {
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": produced,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": given + produced,
    }


def models(name: str, max_model_len: int) -> dict[str, Any]:
    permission = {"id": f"modelperm-{uuid4().hex[:16]}", "object": "model_permission", "created": 0}
    permission |= {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
    permission |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
    permission |= {"organization": "*", "group": None, "is_blocking": False}
    card = {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": name, "parent": None}
    return {"object": "list", "data": [card | {"max_model_len": max_model_len, "permission": [permission]}]}


async def refuse(exchange: Exchange, refused: rules.Refused) -> None:
    await exchange.reply(refused.status, compact(refused.body), [*refused.headers, *JSON_TYPE])
