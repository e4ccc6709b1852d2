"""The filters that keep state, in their order, over a real store: a turn is one line of a script."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.chain import Filter
from proxy.filters import rehydrate, response_store, validate
from proxy.protocol.headers import Headers
from proxy.protocol.records import Conversation, Item, Owner
from proxy.services import Services
from tests.playbook import JSON, Played, Step, answer, play, post, run, said

ANN = Owner("ann")


class Stage:
    """`turn(request, *steps)` plays one turn; without steps the backend answers with one message."""

    def __init__(self, services: Services, **options: dict[str, Any]) -> None:
        self.services = services
        self.store = services.store
        self.filters: list[Filter] = [
            validate.Validate(validate.Config(), services),
            response_store.ResponseStore(response_store.Config(**options.get("response_store", {})), services),
            rehydrate.Rehydrate(rehydrate.Config(**options.get("rehydrate", {})), services),
        ]
        self._serial = 0

    async def turn(
        self,
        request: dict[str, Any] | bytes,
        *steps: Step | list[Any],
        owner: str = ANN,
        headers: Headers = JSON,
        **changes: Any,
    ) -> Played:
        """Plays one turn to its end."""
        return await play(
            self.filters, post(request, owner=owner, headers=headers, **changes), *(steps or [self._default()])
        )

    def begin(self, request: dict[str, Any], *steps: Step | list[Any]) -> tuple[Played, asyncio.Task[None]]:
        """Starts one turn, and lets the test go on beside it."""
        flat = [one for step in steps for one in (step if isinstance(step, list) else [step])]
        played = Played(flat)
        return played, asyncio.ensure_future(run(self.filters, post(request), played))

    async def conversation(self, id_: str, *items: Item) -> None:
        """Makes a conversation of Ann's."""
        await self.store.create_conversation(ANN, Conversation(id_, 1.0, b"{}"), items)

    async def kept(self, response_id: str) -> str | None:
        """The status under which a response is stored, if it is."""
        head = await self.store.head(ANN, response_id)
        return head.status if head else None

    async def items_of(self, conversation: str) -> list[bytes]:
        """The bytes of a conversation's items."""
        history = await self.store.conversation_history(ANN, conversation)
        assert history is not None
        return [item.body for item in history.items]

    def _default(self) -> Step:
        self._serial += 1
        return answer(f"resp_{self._serial}", said(f"answer {self._serial}", f"msg_a{self._serial}"))


def header(played: Played, name: bytes) -> list[bytes]:
    """What filters added for the backend under this name."""
    return [value for key, value in played.turn.upstream_headers if key == name]


def user(text: str) -> bytes:
    """The message that a string input stands for."""
    return b'{"type":"message","role":"user","content":[{"type":"input_text","text":"%b"}]}' % text.encode()


def output(call_id: str) -> dict[str, str]:
    """A tool's output."""
    return {"type": "function_call_output", "call_id": call_id, "output": "42"}
