"""Stores what a turn leaves behind, before the client may believe it.

The terminal event, or the JSON body, goes on only after the commit. A stream that fails once its response had begun is
stored as failed; one whose client leaves is not stored at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Literal

from msgspec.structs import replace
from pydantic import Field

from proxy import errors
from proxy.chain import Next, Send, deltas_of
from proxy.config import Model
from proxy.protocol import headers as http
from proxy.protocol import items, jsonbytes, mending
from proxy.protocol.encodings import decoded
from proxy.protocol.events import Answer, Event, Frames, Head, Message
from proxy.protocol.records import Item, NewResponse, TurnRecord
from proxy.protocol.round import NoResponse, Outcome, Round, outcome, terminal_response
from proxy.protocol.round import response_id as id_of
from proxy.protocol.turn import Draft, Operation, Turn
from proxy.services import Run, Services
from proxy.telemetry import STORE_SKIPPED

AFTER = frozenset({"owner", "validate"})

log = logging.getLogger("rejoinder.response_store")

_NO_CONTENT = 204
_MAX_DECODED = 64 * 1024 * 1024  # bytes of an answer that came encoded


class Config(Model):
    """Options of the filter."""

    failure_mode: Literal["closed", "open"] = Field(
        "closed",
        description="What a client gets when its turn cannot be stored: closed, an error; open, the answer all "
        "the same (logged and counted).",
    )
    retention_days: float | None = Field(
        30, gt=0, description="How long a response is kept; null keeps it until it is deleted."
    )
    max_event_count: int = Field(10_000, ge=1, description="Reads of a stream beyond which no replay log is kept.")
    max_event_bytes: int = Field(
        16 * 1024 * 1024, ge=1, description="Bytes of a stream beyond which no replay log is kept."
    )


class ResponseStore:
    """Begins the draft of what is kept, and writes it."""

    def __init__(self, config: Config, services: Services) -> None:
        self._config = config
        self._services = services

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        if turn.operation is not Operation.CREATE:
            await call_next(turn, send)
            return
        draft = Draft(keep=turn.body.flag("store", True), session=self._services.new_id("sess_"))
        turn = turn.replace(draft=draft)
        if not draft.keep and turn.body.get("conversation") is None:
            await call_next(turn, send)
            return
        await _Keeper(self._config, self._services, turn, draft, send).run(call_next)


class _Keeper:
    """One turn's `send`, wrapped."""

    def __init__(self, config: Config, services: Services, turn: Turn, draft: Draft, send: Send) -> None:
        self._config = config
        self._services = services
        self._turn = turn
        self._draft = draft
        self._send = send
        self._deltas = deltas_of(send)
        self._round = Round()
        self._log: list[bytes] | None = [] if turn.stream else None
        self._log_bytes = 0
        self._run: tuple[str, Run] | None = None
        self._token: str | None = None

    async def run(self, call_next: Next) -> None:
        try:
            await call_next(self._turn, self)
        except asyncio.CancelledError:
            if self._run is None or not self._run[1].cancelled:
                raise
            _uncancel()
            await self._end("response.incomplete", "cancelled", {"incomplete_details": b'{"reason":"cancelled"}'})
        except errors.ProxyError as error:
            await self._keep_failure(error)
            raise
        finally:
            if self._run is not None:
                self._services.runs.remove(self._turn.owner, self._run[0])

    def deltas(self, raw: bytes) -> Coroutine[Any, Any, None] | None:
        """The `send` of deltas."""
        self._round.deltas(raw)
        self._record_log(raw)
        return self._deltas(raw)

    async def __call__(self, message: Message) -> None:
        match message:
            case Frames():
                rest = self.deltas(message.raw)
                if rest is not None:
                    await rest
                return
            case Event():
                await self._event(message)
            case Head():
                self._head(message.headers)
                _refuse_unreadable(message)
            case Answer():
                self._head(message.headers)
                await self._answer(message)
        await self._send(message)

    def _head(self, headers: http.Headers) -> None:
        token = http.get(headers, b"x-session-token")
        self._token = token.decode("latin-1") if token else None

    def _record_log(self, raw: bytes) -> None:
        if self._log is None:
            return
        self._log_bytes += len(raw)
        if self._log_bytes > self._config.max_event_bytes or len(self._log) >= self._config.max_event_count:
            self._log = None
        else:
            self._log.append(raw)

    async def _event(self, event: Event) -> None:
        if self._draft.saved:
            return
        self._round.observe(event)
        self._record_log(event.raw)
        if event.terminal:
            response = terminal_response(mending.failed_for(event, self._round) if event.type == "error" else event)
            if response is not None:
                self._check_id(response)
                await self._save(response, self._folded())
            elif event.type != "error":
                raise errors.UpstreamProtocol("The backend ended its stream without a response.")
        elif self._run is None and self._round.response is not None:
            self._announce(self._round.response)

    def _announce(self, response: bytes) -> None:
        response_id = id_of(response)
        task = asyncio.current_task()
        if response_id and task is not None:
            self._run = (response_id, Run(task))
            self._services.runs.add(self._turn.owner, *self._run)

    def _check_id(self, response: bytes) -> None:
        if self._run is not None and self._run[0] != id_of(response):
            raise errors.UpstreamProtocol("The backend changed the id of its response in the middle of the stream.")

    async def _answer(self, answer: Answer) -> None:
        if not 200 <= answer.status < 300:
            return
        await self._save(_readable(answer), ())

    def _folded(self) -> tuple[bytes, ...]:
        return tuple(self._round.items())

    async def _save(self, response: bytes, folded: tuple[bytes, ...]) -> None:
        """Writes the turn. Raises `StoreError`, unless the failure mode is open."""
        try:
            result = outcome(response, folded)
        except NoResponse as error:
            raise errors.UpstreamProtocol(f"The backend's answer holds no response: {error}") from error
        record = self._record(result)
        if record is None:
            return
        try:
            await self._services.store.save(record)
        except errors.StoreError as error:
            if self._config.failure_mode == "closed":
                raise
            STORE_SKIPPED.inc()
            log.error("response %s goes out although it could not be stored: %s", result.id, error.message)
            return
        self._draft.saved = True
        if record.completed:
            self._draft.lease = None  # the store ended it in the same transaction

    def _record(self, result: Outcome) -> TurnRecord | None:
        draft = self._draft
        completed = result.status == "completed"
        if not draft.keep and not completed:
            return None
        if draft.input is None:
            draft.input = items.parse_input(self._turn.body.fields.get("input"), self._services.new_id)
        return TurnRecord(
            owner=self._turn.owner,
            completed=completed,
            input=draft.input,
            output=tuple(self._kept(item) for item in result.output),
            response=self._response(result) if draft.keep else None,
            history=draft.history,
            lease=draft.lease,
            session=draft.session,
            session_token=self._token,
            approvals=tuple(draft.approvals),
        )

    def _kept(self, item: Item) -> Item:
        upstream = self._draft.upstream.get(item.id)
        return item if upstream is None else replace(item, upstream=upstream)

    def _response(self, result: Outcome) -> NewResponse:
        now = self._services.now()
        days = self._config.retention_days
        return NewResponse(
            id=result.id,
            status=result.status,
            created_at=now if result.created_at is None else result.created_at,
            expires_at=None if days is None else now + days * 86_400,
            envelope=result.envelope,
            events=b"".join(self._log) if self._log else None,
        )

    async def _keep_failure(self, error: errors.ProxyError) -> None:
        """Stores the response that an error ended, if it had begun; the error itself is on its way to the client."""
        if self._draft.saved or isinstance(error, errors.StoreError):
            return
        if isinstance(error, errors.RoundLimit):
            await self._save(error.response, ())
            return
        if self._round.response is None:
            return
        event = self._round.failed(error.type, error.message)
        self._log = None
        await self._save(event.response, ())

    async def _end(self, type_: str, status: str, changes: jsonbytes.Fields) -> None:
        event = self._round.ended(type_, status, changes)
        await self(event)


def _refuse_unreadable(head: Head) -> None:
    # Whatever it is, it would reach the client with its completion unseen, and so unstored.
    if not 200 <= head.status < 300 or head.events or head.status == _NO_CONTENT:
        return
    if http.media_type(head.headers) == b"text/event-stream":
        raise errors.UpstreamProtocol("The backend encoded its event stream although it was not asked to.")
    raise errors.UpstreamProtocol("The backend's answer is neither JSON nor an event stream: it cannot be stored.")


def _readable(answer: Answer) -> bytes:
    """The answer's body without its encoding; what the client gets stays encoded."""
    encoding = (http.get(answer.headers, b"content-encoding") or b"identity").strip().lower()
    try:
        return decoded(answer.body, encoding, _MAX_DECODED)
    except ValueError as error:
        raise errors.UpstreamProtocol(f"The backend's answer cannot be decoded: {error}") from error


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
