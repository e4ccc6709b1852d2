"""The filter chain: nested callables, in the order of the YAML, read once.

A filter gets a turn, a `send` that carries the answer outwards, and the rest of the chain to call: never, once, or as
often as it likes. Wrapping `send` is how it sees the answer; awaiting `send` is the backpressure; cancelling the
client's task unwinds everything through plain `finally` blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from proxy.errors import ConfigError
from proxy.protocol.events import Frames, Message
from proxy.protocol.turn import Turn

Send = Callable[[Message], Coroutine[Any, Any, None]]
# Sends on a run of deltas at once; what it gives is to be awaited, None when nothing is.
Deltas = Callable[[bytes], Coroutine[Any, Any, None] | None]
Next = Callable[[Turn, Send], Coroutine[Any, Any, None]]


class Filter(Protocol):
    """One link of the chain."""

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        """Handles the turn, calling `call_next` for the rest of the chain."""


def deltas_of(send: Send) -> Deltas:
    """How a `send` takes runs of deltas: by its own `deltas`, which makes no coroutine for them, or as any message."""
    own: Deltas | None = getattr(send, "deltas", None)
    return own or (lambda raw: send(Frames(raw)))


def compose(filters: Sequence[Filter], end: Next) -> Next:
    """One callable of many; the first filter is the outermost."""
    chain = end
    for link in reversed(filters):
        chain = partial(link, call_next=chain)
    return chain


def check_needs(names: Sequence[str], needs: dict[str, frozenset[str]], where: str) -> None:
    """Raises `ConfigError` when a filter is there without another that carries out what it begins."""
    for index, name in enumerate(names):
        missing = sorted(needs[name] - set(names))
        if missing:
            raise ConfigError(f"{where}[{index}].filter: '{name}' does nothing without {', '.join(missing)}")


def check_order(names: Sequence[str], after: dict[str, frozenset[str]], where: str) -> None:
    """Raises `ConfigError` when a filter comes before one that it needs outside of it, or twice."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"{where}[{index}].filter: '{name}' is there twice")
        late = sorted(other for other in after[name] if other in names[index + 1 :])
        if late:
            raise ConfigError(f"{where}[{index}].filter: '{name}' must come after {', '.join(late)}")
