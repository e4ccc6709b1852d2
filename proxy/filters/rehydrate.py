"""Rebuilds the history that a turn continues, so that a backend without memory can answer it.

By `previous_response_id`, by `conversation`, by the calls that tool outputs answer, or by `item_reference`. The names
themselves go no further; they are put back into what the client sees.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from msgspec.structs import replace
from pydantic import Field

from proxy import errors
from proxy.chain import Next, Send, deltas_of
from proxy.config import Model
from proxy.protocol import headers as http
from proxy.protocol import items, jsonbytes
from proxy.protocol.events import LIFECYCLE, Answer, Event, Message, encode
from proxy.protocol.history import check_answers, only_outputs, upstream_input
from proxy.protocol.lookup import storable_id
from proxy.protocol.lowering import LOWERED
from proxy.protocol.records import History, Item
from proxy.protocol.turn import Body, Draft, Operation, Turn
from proxy.services import Services
from proxy.store.leases import Leases

AFTER = frozenset({"owner", "validate", "response_store"})


class Config(Model):
    """Options of the filter."""

    conversation_queue: int = Field(
        16, ge=0, description="How many turns of one conversation may wait for the one that runs, in this process."
    )
    conversation_wait_seconds: float = Field(
        60, gt=0, description="How long a turn waits for its conversation before it is refused with 409."
    )
    lease_seconds: float = Field(
        30, ge=3, description="How long a conversation stays locked after the worker that held it died."
    )
    continue_from: tuple[Literal["completed", "incomplete"], ...] = Field(
        ("completed",), description="The statuses that a response may have to be continued by previous_response_id."
    )
    max_history_items: int = Field(100_000, ge=1, description="Items beyond which a history is not replayed (400).")


class Rehydrate:
    """Finds the history, and replaces the turn by one that carries it."""

    def __init__(self, config: Config, services: Services) -> None:
        self._config = config
        self._services = services
        self._leases = Leases(
            services.store,
            services.background.start,
            ttl=config.lease_seconds,
            wait=config.conversation_wait_seconds,
            queue=config.conversation_queue,
        )

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        if turn.operation is Operation.OTHER:
            await call_next(turn, send)
            return
        draft = turn.draft or Draft(keep=False, session="")
        conversation = _conversation(turn.body)
        if conversation is not None:
            named = {"conversation": jsonbytes.encode({"id": conversation})}
            async with self._conversation(turn, draft, conversation):
                await call_next(await self._continue(turn, draft), _Restoring(send, named))
            return
        previous = _previous(turn.body)
        if previous is not None:
            draft.history = await self._previous(turn, previous)
            named = {"previous_response_id": turn.body.fields["previous_response_id"]}
            await call_next(await self._continue(turn, draft), _Restoring(send, named))
            return
        if turn.body.fields.get("input", b"").startswith(b"["):
            turn = await self._without_selector(turn, draft)
        else:
            turn = self._with_session(turn, draft)
        await call_next(turn, send)

    @asynccontextmanager
    async def _conversation(self, turn: Turn, draft: Draft, conversation: str) -> AsyncIterator[None]:
        """Holds the conversation while its turn runs (a create only), its history read."""
        if turn.operation is Operation.CREATE:
            async with self._leases.hold(turn.owner, conversation) as lease:
                draft.lease = lease
                draft.history = await self._conversation_history(turn, conversation)
                yield
            return
        draft.history = await self._conversation_history(turn, conversation)
        yield

    async def _conversation_history(self, turn: Turn, conversation: str) -> History:
        history = await self._services.store.conversation_history(turn.owner, conversation)
        if history is None:
            raise errors.ConversationNotFound(f"Conversation with id '{conversation}' not found.", param="conversation")
        return history

    async def _previous(self, turn: Turn, response_id: str) -> History:
        history = await self._services.store.history(turn.owner, response_id)
        if history is None:
            raise errors.PreviousResponseNotFound(f"Previous response with id '{response_id}' not found.")
        if history.status not in self._config.continue_from:
            raise errors.NotContinuable(f"cannot continue from response with status '{history.status}'")
        return history

    async def _without_selector(self, turn: Turn, draft: Draft) -> Turn:
        """A turn of items that names nothing: untouched, unless an item refers to something stored."""
        own = items.parse_input(turn.body.fields["input"], self._services.new_id)
        orphans = items.orphan_outputs(own)
        if orphans and only_outputs(own):
            draft.history = await self._of_calls(turn, orphans)
            return await self._continue(turn, draft, own)
        resolved = await self._resolve(turn, own)
        draft.input = resolved
        check_answers((), resolved)
        if resolved is own and not any(item.type in LOWERED for item in own):
            return self._with_session(turn, draft)
        body = turn.body.rebuilt({"input": upstream_input((), resolved)})
        return self._with_session(turn.replace(body=body), draft)

    async def _of_calls(self, turn: Turn, call_ids: Sequence[str]) -> History:
        """The history whose newest response made all of these calls. Raises `InvalidRequest` where that is not one."""
        found = await self._services.store.calls(turn.owner, call_ids)
        makers = {call.response_id for call in found}
        unknown = [call_id for call_id in call_ids if call_id not in {call.call_id for call in found}]
        if unknown or len(makers) != 1:
            check_answers((), [Item("", "function_call_output", b"", call_id) for call_id in unknown or call_ids])
        return await self._previous(turn, makers.pop())

    async def _continue(self, turn: Turn, draft: Draft, own: tuple[Item, ...] | None = None) -> Turn:
        if own is None:
            own = items.parse_input(turn.body.fields.get("input"), self._services.new_id)
        own = await self._resolve(turn, own)
        draft.input = own
        history = draft.history.items if draft.history else ()
        if len(history) > self._config.max_history_items:
            raise errors.InvalidRequest(f"The history holds more than {self._config.max_history_items} items.")
        check_answers(history, own)
        changes = {"previous_response_id": None, "conversation": None, "input": upstream_input(history, own)}
        return self._with_session(turn.replace(body=turn.body.rebuilt(changes)), draft)

    async def _resolve(self, turn: Turn, own: tuple[Item, ...]) -> tuple[Item, ...]:
        """The input with each `item_reference` replaced by what it names, and hosted items by what the store knows."""
        named = [item for item in own if item.type == "item_reference" or item.type in LOWERED]
        if not named:
            return own
        found = await self._services.store.items(turn.owner, [item.id for item in named])
        missing = [item.id for item in named if item.type == "item_reference" and item.id not in found]
        if missing:
            raise errors.InvalidRequest(f"Item with id '{missing[0]}' not found.", param="input")
        return tuple(_known(item, found) for item in own)

    def _with_session(self, turn: Turn, draft: Draft) -> Turn:
        if turn.operation is not Operation.CREATE:
            return turn
        if draft.history is not None:
            draft.session = draft.history.session
        added: http.Headers = ((b"x-session-id", draft.session.encode()),) if draft.session else ()
        if draft.history is not None and draft.history.session_token:
            added += ((b"x-session-token", draft.history.session_token.encode("latin-1")),)
        return turn.replace(draft=draft, upstream_headers=turn.upstream_headers + added)


def _known(item: Item, found: Mapping[str, Item]) -> Item:
    stored = found.get(item.id)
    if stored is not None and item.type in ("item_reference", "mcp_approval_request"):
        return stored  # a request is what was asked, whatever a client makes of it
    # A hosted item that a client replays: the store knows what the model really read.
    if item.type in LOWERED and stored is not None and stored.upstream is not None:
        return replace(item, upstream=stored.upstream)
    return item


def _previous(body: Body) -> str | None:
    raw = body.get("previous_response_id")
    if raw is None:
        return None
    text = jsonbytes.text(raw)
    if text is None:
        raise errors.InvalidType("previous_response_id must be a string", param="previous_response_id")
    if not storable_id(text):
        raise errors.PreviousResponseNotFound(f"Previous response with id '{text}' not found.")
    return text


def _conversation(body: Body) -> str | None:
    """The id in `conversation`: a string, or an object with an `id`."""
    raw = body.get("conversation")
    if raw is None:
        return None
    text = jsonbytes.text(raw)
    if text is None and raw.startswith(b"{"):
        text = jsonbytes.text(jsonbytes.fields(raw).get("id"))
    if text is None:
        raise errors.InvalidType("conversation must be a string or an object with an 'id'", param="conversation")
    if not storable_id(text):
        raise errors.ConversationNotFound(f"Conversation with id '{text}' not found.", param="conversation")
    return text


class _Restoring:
    """A `send` that puts what the turn named back into every response object that passes."""

    def __init__(self, send: Send, named: jsonbytes.Fields) -> None:
        self._send = send
        self._named = named
        self.deltas = deltas_of(send)  # which hold no response

    async def __call__(self, message: Message) -> None:
        match message:
            case Event() if message.type in LIFECYCLE and message.response:
                response = jsonbytes.with_members(message.response, self._named)
                message = encode(message.type, jsonbytes.join_object({**message.fields, "response": response}))
            case Answer() if _restorable(message):
                body = jsonbytes.with_members(message.body, self._named)
                message = Answer(message.status, message.reason, message.headers, body)
        await self._send(message)


def _restorable(answer: Answer) -> bool:
    if answer.status != 200 or any(name.lower() in http.BOUND for name, _ in answer.headers):
        return False
    if http.media_type(answer.headers) != b"application/json":
        return False
    try:
        return jsonbytes.fields(answer.body).get("object") == b'"response"'
    except jsonbytes.NotJSON:
        return False
