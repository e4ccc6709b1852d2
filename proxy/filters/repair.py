"""Mends what a backend is known to get wrong; where nothing is wrong, every byte stays.

Each repair has a name and a switch. They are made next to the backend, so that everything outside sees the mended
answer.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pydantic import Field

from proxy import errors
from proxy.chain import Next, Send, deltas_of
from proxy.config import Model
from proxy.protocol import jsonbytes, mending
from proxy.protocol.events import Answer, Event, Frames, Message
from proxy.protocol.round import NoResponse, Round
from proxy.protocol.turn import Operation, Turn
from proxy.services import Services
from proxy.telemetry import REPAIRS

AFTER = frozenset({"owner", "validate", "response_store", "rehydrate"})


class Config(Model):
    """Options of the filter: one switch for each repair."""

    null_fields: bool = Field(True, description="Drop explicit nulls from the request where vLLM refuses them.")
    incomplete_status: bool = Field(
        True,
        description="Make response.incomplete of a response.completed that carries that status; mark its last item.",
    )
    context_length: bool = Field(True, description="Give a context overflow the code context_length_exceeded.")
    missing_terminal: bool = Field(
        True, description="End a stream that was cut, timed out or broke with response.failed."
    )
    in_band_error: bool = Field(True, description="Turn an error event of a begun response into response.failed.")
    item_ids: bool = Field(True, description="Give output items without an id a stable one.")


class Repair:
    """Wraps the call to the backend."""

    def __init__(self, config: Config, services: Services) -> None:
        self._config = config

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        if turn.operation is Operation.OTHER:
            await call_next(turn, send)
            return
        if self._config.null_fields:
            turn = _without_nulls(turn)
        if turn.operation is Operation.CREATE:
            await _Mender(self._config, send).run(turn, call_next)
        else:
            await call_next(turn, send)


def _without_nulls(turn: Turn) -> Turn:
    if jsonbytes.NULL not in turn.body.raw:
        return turn
    refused = {name: None for name in mending.REFUSED_NULLS if turn.body.fields.get(name) == jsonbytes.NULL}
    if not refused:
        return turn
    REPAIRS.labels("null_fields").inc()
    return turn.replace(body=turn.body.rebuilt(refused))


class _Mender:
    """One answer, mended as it passes."""

    def __init__(self, config: Config, send: Send) -> None:
        self._config = config
        self._send = send
        self._deltas = deltas_of(send)
        self._round = Round()
        self._ids = mending.ItemIds()

    async def run(self, turn: Turn, call_next: Next) -> None:
        try:
            await call_next(turn, self)
        except errors.UpstreamError as error:
            await self._end(error)

    async def _end(self, error: errors.UpstreamError) -> None:
        """Ends a response that had begun; an error before that has a status of its own."""
        if not self._config.missing_terminal or self._round.terminal is not None:
            raise error
        try:
            event = self._round.failed(error.type, error.message)
        except NoResponse:
            raise error from None
        REPAIRS.labels("missing_terminal").inc()
        await self._send(event)

    def deltas(self, raw: bytes) -> Coroutine[Any, Any, None] | None:
        """The `send` of deltas."""
        if self._round.terminal is not None:
            return None
        if self._ids.missing:
            return self._identified(Frames(raw))
        self._round.deltas(raw)
        return self._deltas(raw)

    async def _identified(self, run: Frames) -> None:
        for frame in self._ids.frames(run):
            await self._pass(frame)

    async def __call__(self, message: Message) -> None:
        match message:
            case Frames():
                rest = self.deltas(message.raw)
                if rest is not None:
                    await rest
            case Event():
                await self._event(message)
            case Answer():
                await self._send(self._answer(message))
            case _:
                await self._send(message)

    async def _pass(self, event: Event) -> None:
        self._round.observe(event)
        await self._send(event)

    async def _event(self, event: Event) -> None:
        if self._round.terminal is not None:
            # The response is over and stored; only what closes the stream may follow.
            if not event.type:
                await self._send(event)
            return
        event = self._mended(event)
        await self._pass(event)

    def _mended(self, event: Event) -> Event:
        if self._config.item_ids:
            event = _counted("item_ids", event, self._ids.event(event))
        if event.type == "error" and self._config.in_band_error:
            event = _counted("in_band_error", event, mending.failed_for(event, self._round))
        if event.type == "response.completed" and self._config.incomplete_status:
            event = _counted("incomplete_status", event, mending.incomplete_event(event))
        return event

    def _answer(self, answer: Answer) -> Answer:
        body = answer.body
        try:
            if answer.status >= 400 and self._config.context_length:
                body = _counted("context_length", body, mending.context_length(body))
            if answer.status == 200 and self._config.item_ids:
                body = _counted("item_ids", body, mending.identified(body))
            if answer.status == 200 and self._config.incomplete_status:
                body = _counted("incomplete_status", body, mending.incomplete_response(body))
        except jsonbytes.NotJSON:
            return answer
        return answer if body is answer.body else Answer(answer.status, answer.reason, answer.headers, body)


def _counted(name: str, before: mending.Thing, after: mending.Thing) -> mending.Thing:
    if after is not before:
        REPAIRS.labels(name).inc()
    return after
