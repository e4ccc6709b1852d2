"""Runs the rounds of one turn: asks the model, runs the hosted tools that it calls, asks again, shows one answer.

The decisions are `proxy.protocol.loop`'s, the numbers and indexes `proxy.protocol.composer`'s; here is what waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy import errors
from proxy.chain import Next, Send
from proxy.protocol import headers as http
from proxy.protocol import jsonbytes, lowering
from proxy.protocol import loop as decisions
from proxy.protocol.citing import cited
from proxy.protocol.composer import Composer
from proxy.protocol.events import Answer, Event, Frames, Head, Message
from proxy.protocol.history import extended, sendable
from proxy.protocol.hosting import Finished, Hosted, HostedCall, LocalEvent, Started, failure
from proxy.protocol.loop import Decision, Fate, Planned, Result
from proxy.protocol.mending import error_of
from proxy.protocol.records import Approval
from proxy.protocol.round import Round
from proxy.protocol.turn import Draft, Turn


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the rounds may go."""

    max_rounds: int
    max_parallel_calls: int
    max_calls_per_round: int
    tool_seconds: float
    max_retained_bytes: int
    incomplete_at_limit: bool


@dataclass(frozen=True, slots=True)
class Offer:
    """What this turn's model may call."""

    tools: lowering.Tools
    hosted: Sequence[Hosted]
    owners: Mapping[str, Hosted]  # by function name
    budget: int | None  # max_tool_calls
    parallel: bool


class Rounds:
    """One turn."""

    def __init__(self, bounds: Bounds, offer: Offer, turn: Turn, send: Send, new_id: Callable[[str], str]) -> None:
        self._bounds = bounds
        self._offer = offer
        self._turn = turn
        self._send = send
        self._new_id = new_id
        self._draft = turn.draft or Draft(keep=False, session="")
        overrides = {"tools": offer.tools.public()}
        if (choice := turn.body.get("tool_choice")) is not None:
            overrides["tool_choice"] = choice
        self._composer = Composer(offer.owners, overrides)
        self._budget = offer.budget
        self._round = Round()
        self._answer: Answer | None = None
        self._head_sent = False
        self._done_mark: Event | None = None
        self._prelude: list[tuple[Started, Finished]] = []
        self._added: list[bytes] = []
        self._last: Result | None = None

    async def run(self, call_next: Next) -> None:
        """Runs all rounds and sends the answer. Raises `ProxyError` for what no event could say."""
        try:
            await self._all(call_next)
        except errors.UpstreamError as error:
            if self._last is None or not self._head_sent:
                raise
            # A round was shown: what breaks down after it fails the response that there is.
            await self._fail(error.type, error.message)

    async def _all(self, call_next: Next) -> None:
        await self._before()
        turn = self._first()
        for number in range(1, self._bounds.max_rounds + 1):
            result = await self._ask(turn, call_next)
            if result is None:
                return
            decision = decisions.decide(result, self._offer.owners, self._budget)
            go_on = await self._act(result, decision)
            if not go_on:
                await self._finish(result, {})
                return
            if number < self._bounds.max_rounds:
                turn = self._next(turn, result)
        await self._give_up()

    # Before the first round

    async def _before(self) -> None:
        """Runs what a person has approved, and lists what the servers offer."""
        for hosted in self._offer.hosted:
            self._prelude += [(opening.started, opening.finished) for opening in hosted.opening]
        for approved in self._turn.approved:
            if approved.hosted is None:
                continue
            call = HostedCall(
                self._new_id("call_"), self._new_id(approved.hosted.prefix), approved.name, approved.arguments
            )
            started = approved.hosted.start(call)
            finished = await self._outcome(approved.hosted, call, started)
            item = {**finished.item, "approval_request_id": approved.request_id}
            raw = lowering.pair(call.call_id, call.name, call.arguments, finished.output)
            self._draft.upstream[call.item_id] = raw
            self._added.append(raw)
            self._prelude.append((started, replace(finished, item=item)))

    async def _show_prelude(self) -> None:
        waiting, self._prelude = self._prelude, []
        for started, finished in waiting:
            place = await self._show_start(started)
            await self._show_end(place, finished)

    # One round

    async def _ask(self, turn: Turn, call_next: Next) -> Result | None:
        """One round of the model. None: the answer was an error, and has been passed on."""
        self._round, self._answer, self._done_mark = Round(), None, None
        self._composer.begin_round()
        await call_next(turn, self._receive)
        if self._answer is not None:
            return await self._answered(self._answer)
        terminal = self._round.terminal
        if terminal is None:
            raise errors.StreamCut()
        response = terminal.response or None
        if response is None:
            await self._failed(terminal)
            return None
        self._composer.count(response)
        self._last = decisions.result(terminal.type, response, self._round.items())
        return self._last

    async def _receive(self, message: Message) -> None:
        match message:
            case Frames() if self._round.terminal is not None:
                pass  # nothing can follow the end of a response
            case Frames():
                self._round.observe(message)
                for frames in self._composer.frames(message):
                    await self._send(frames)
            case Event():
                await self._event(message)
            case Head():
                await self._head(message)
            case Answer():
                self._answer = message

    async def _head(self, head: Head) -> None:
        if not head.events:
            raise errors.UpstreamProtocol("The backend's answer is neither JSON nor an event stream.")
        if self._last is not None and not self._head_sent:
            raise errors.UpstreamProtocol("The backend streamed a later round, but not the first.")
        if not self._head_sent:
            self._head_sent = True
            await self._send(Head(head.status, head.reason, head.headers, events=True, composed=True))

    async def _event(self, event: Event) -> None:
        if event.data == b"[DONE]":
            self._done_mark = event
            return
        if self._round.terminal is not None:
            return
        self._round.observe(event)
        begun = event.type and self._round.response is not None
        if self._prelude and begun and (event.terminal or not event.response):
            await self._show_prelude()
        if event.terminal:
            return
        for shown in self._composer.event(event):
            for part in self._with_citations(shown):
                await self._send(part)
        if self._prelude and event.type == "response.in_progress":
            await self._show_prelude()

    def _with_citations(self, event: Event) -> list[Event]:
        if not event.type.endswith((".content_part.done", ".output_item.done")) or not self._offer.hosted:
            return [event]
        parts = cited(event, self._offer.hosted, self._composer)
        if parts and parts[-1].type == "response.output_item.done":
            self._composer.output[-1] = parts[-1].item
        return parts

    async def _answered(self, answer: Answer) -> Result | None:
        """A JSON round; or an error, which ends the turn."""
        if not 200 <= answer.status < 300:
            await self._refused(answer)
            return None
        if self._head_sent:
            raise errors.UpstreamProtocol("The backend streamed the first round, but not a later one.")
        try:
            members = jsonbytes.fields(answer.body)
            status = jsonbytes.text(members.get("status")) or "completed"
            result = decisions.result(f"response.{status}", answer.body, ())
        except jsonbytes.NotJSON as error:
            raise errors.UpstreamProtocol(f"The backend's answer holds no response: {error}") from error
        await self._show_prelude()
        for item in decisions.said(result, self._offer.owners):
            self._composer.output.append(item.body)
        self._composer.count(answer.body)
        self._last = result
        return result

    async def _refused(self, answer: Answer) -> None:
        """A backend that refuses a round: the first time its own answer stands; later a stream must say so itself."""
        if not self._head_sent:
            await self._send(answer)
            return
        try:
            error = jsonbytes.fields(answer.body).get("error", b"")
        except jsonbytes.NotJSON:
            error = b""
        members = jsonbytes.fields(error) if error.startswith(b"{") else {}
        message = jsonbytes.text(members.get("message")) or f"The backend answered {answer.status}."
        code = jsonbytes.text(members.get("code")) or "server_error"
        await self._fail(code, message)

    async def _failed(self, terminal: Event) -> None:
        """A bare `error` event."""
        if self._last is None:
            await self._send(self._composer.event(terminal)[0])
            return
        await self._fail(*error_of(terminal))

    async def _fail(self, code: str, message: str) -> None:
        if self._last is None:
            raise errors.StreamCut(message)
        error = jsonbytes.encode({"code": code, "message": message})
        await self._send(
            self._composer.final("response.failed", self._last.response, {"status": b'"failed"', "error": error})
        )

    # After a round

    async def _act(self, result: Result, decision: Decision) -> bool:
        """Runs the round's hosted calls; whether the model shall be asked again."""
        if len(decision.calls) > self._bounds.max_calls_per_round:
            raise errors.UpstreamProtocol(f"The model made more than {self._bounds.max_calls_per_round} calls at once.")
        self._added += sendable(decisions.said(result, self._offer.owners))
        limit = asyncio.Semaphore(self._bounds.max_parallel_calls if self._offer.parallel else 1)
        running = [self._begin(limit, planned) for planned in decision.calls]
        tasks = [outcome for _, _, outcome in running if outcome is not None]
        try:
            for planned, started, outcome in running:
                if outcome is None:
                    await self._show_request(planned)
                else:
                    await self._show_call(planned, started, outcome)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return decision.go_on and len(tasks) == len(running)

    def _begin(
        self, limit: asyncio.Semaphore, planned: Planned
    ) -> tuple[Planned, Started, asyncio.Task[Finished] | None]:
        hosted = self._offer.owners[planned.name]
        call = HostedCall(planned.call_id, self._new_id(hosted.prefix), planned.name, planned.arguments)
        started = hosted.start(call)
        if planned.fate is Fate.RUN and hosted.approval(call) is not None:
            return planned, started, None
        if planned.fate is Fate.RUN and self._budget is not None:
            self._budget -= 1
        work = self._fated(limit, hosted, call, started, planned.fate)
        return planned, started, asyncio.get_running_loop().create_task(work)

    async def _fated(
        self, limit: asyncio.Semaphore, hosted: Hosted, call: HostedCall, started: Started, fate: Fate
    ) -> Finished:
        if fate is Fate.UNFINISHED:
            return Finished({**started.item, "status": "incomplete"}, (), "The call was not run.")
        if fate is Fate.BAD_ARGUMENTS:
            return failure(started, "The arguments are not a JSON object.")
        async with limit:
            return await self._outcome(hosted, call, started)

    async def _outcome(self, hosted: Hosted, call: HostedCall, started: Started) -> Finished:
        try:
            async with asyncio.timeout(self._bounds.tool_seconds):
                return await hosted.run(call)
        except TimeoutError:
            return failure(started, f"The tool did not answer within {self._bounds.tool_seconds:g} seconds.")

    async def _show_call(self, planned: Planned, started: Started, outcome: asyncio.Task[Finished]) -> None:
        place = await self._show_start(started)
        finished = await outcome
        await self._show_end(place, finished)
        raw = decisions.replayed(planned, finished.output)
        self._draft.upstream[str(finished.item["id"])] = raw
        self._added.append(raw)
        if sum(map(len, self._added)) > self._bounds.max_retained_bytes:
            raise errors.UpstreamProtocol(f"The tools' outputs exceed {self._bounds.max_retained_bytes} bytes.")

    async def _show_request(self, planned: Planned) -> None:
        """Asks a person instead of running the call."""
        hosted = self._offer.owners[planned.name]
        call = HostedCall(planned.call_id, self._new_id("mcpr_"), planned.name, planned.arguments)
        target = hosted.approval(call)
        if not self._draft.keep:
            raise errors.InvalidRequest(
                "A tool that needs approval needs a stored response: 'store' is false.", param="store"
            )
        shown = hosted.start(call).item
        item = {
            "id": call.item_id,
            "type": "mcp_approval_request",
            **{k: shown[k] for k in ("server_label", "name", "arguments")},
        }
        place = await self._show_start(Started(item, ()))
        await self._show_end(place, Finished(item, (), ""))
        self._draft.approvals.append(Approval(call.item_id, target or ""))
        self._draft.upstream[call.item_id] = b""

    async def _show_start(self, started: Started) -> int:
        place = self._composer.place()
        await self._emit("response.output_item.added", {"output_index": place, "item": started.item})
        await self._emit_local(place, started.item, started.events)
        return place

    async def _show_end(self, place: int, finished: Finished) -> None:
        await self._emit_local(place, finished.item, finished.events)
        await self._emit("response.output_item.done", {"output_index": place, "item": finished.item})
        self._composer.output.append(jsonbytes.encode(finished.item))

    async def _emit_local(self, place: int, item: Mapping[str, Any], events: Sequence[LocalEvent]) -> None:
        for event in events:
            await self._emit(event.type, {**event.members, "item_id": item["id"], "output_index": place})

    async def _emit(self, type_: str, members: Mapping[str, Any]) -> None:
        if self._head_sent:
            await self._send(self._composer.local(type_, members))

    # The turns that go up

    def _first(self) -> Turn:
        body = self._turn.body
        choice, only = self._offer.tools.choice(body.fields.get("tool_choice"))
        changes = {
            "tools": self._offer.tools.lowered(only),
            "tool_choice": choice,
            "include": lowering.without_own_includes(body.fields.get("include")),
        }
        if self._added:
            changes["input"] = extended(body.fields.get("input", b"[]"), self._added)
            self._added = []
        return self._turn.replace(body=body.rebuilt(_real(changes, body.fields)))

    def _next(self, turn: Turn, result: Result) -> Turn:
        body = turn.body
        changes: dict[str, bytes | None] = {"input": extended(body.fields.get("input", b"[]"), self._added)}
        self._added = []
        if body.get("tool_choice") is not None:
            changes["tool_choice"] = b'"auto"'
        return turn.replace(body=body.rebuilt(changes))

    # The end

    async def _finish(self, result: Result, changes: jsonbytes.Fields) -> None:
        if self._answer is not None:
            merged = self._composer.merged(result.response, changes)
            headers = http.without(self._answer.headers, http.BOUND)
            await self._send(Answer(self._answer.status, self._answer.reason, headers, merged))
            return
        error = jsonbytes.fields(result.response).get("error")
        kept = {"error": error} if error is not None else {}
        await self._send(self._composer.final(result.type, result.response, {**kept, **changes}))
        if self._done_mark is not None:
            await self._send(self._done_mark)

    async def _give_up(self) -> None:
        """The model has had all the rounds that there are, and wants another."""
        if self._last is None:
            raise errors.StreamCut()
        changes = {"status": b'"incomplete"', "incomplete_details": b'{"reason":"max_rounds"}'}
        if self._bounds.incomplete_at_limit:
            await self._finish(replace(self._last, type="response.incomplete"), changes)
            return
        message = f"The model asked for tools in more than {self._bounds.max_rounds} rounds."
        raise errors.RoundLimit(message, self._composer.merged(self._last.response, changes))


def _real(changes: Mapping[str, bytes | None], members: jsonbytes.Fields) -> dict[str, bytes | None]:
    """The changes that change something."""
    return {name: raw for name, raw in changes.items() if members.get(name) != raw}
