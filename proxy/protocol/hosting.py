"""Hosted tools as the rest of the gateway sees them: the port that every tool implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.protocol.records import Owner


@dataclass(frozen=True, slots=True)
class Function:
    """What the model is shown of a hosted tool."""

    name: str  # unique in the turn, [A-Za-z0-9_-]{1,64}
    definition: bytes  # a whole `{"type":"function",...}`; the same bytes for the same declaration, always


@dataclass(frozen=True, slots=True)
class HostedCall:
    """A call that the model made of one of the functions."""

    call_id: str  # the model's own
    item_id: str  # for the public item: fresh, with the prefix that `Hosted.prefix` names
    name: str
    arguments: str  # JSON text of an object; calls whose arguments are none are never run


@dataclass(frozen=True, slots=True)
class LocalEvent:
    """An event about a hosted item; `item_id`, `output_index` and `sequence_number` are added where it is sent."""

    type: str
    members: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Started:
    """What a client is shown when a call begins: the item of `output_item.added`, and what follows at once."""

    item: Mapping[str, Any]
    events: Sequence[LocalEvent]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a call ended. A failing tool is an outcome too: the model reads of it in `output`."""

    item: Mapping[str, Any]  # of `output_item.done`, and of the final output
    events: Sequence[LocalEvent]
    output: str  # what the model reads


def failure(started: Started, message: str) -> Finished:
    """How a call ends that was not run, or did not end by itself."""
    item = {**started.item, "status": "failed"}
    if item["type"] == "mcp_call":
        return Finished({**item, "error": message}, (LocalEvent("response.mcp_call.failed", {}),), f"Error: {message}")
    return Finished(item, (), f"Error: {message}")


@dataclass(frozen=True, slots=True)
class Opening:
    """An item that stands before all output of the model, such as the list of a server's tools."""

    started: Started
    finished: Finished  # its `output` is empty: the model does not read it


@dataclass(frozen=True, slots=True)
class Request:
    """What a tool may know of the turn that declares it."""

    owner: Owner
    include: frozenset[str]  # the request's `include`
    history_types: Mapping[str, Sequence[bytes]]  # stored items of the history by type, their exact bytes, oldest first
    bearer: str | None = None  # the caller's own credential, where the operator lets tools have it


class Hosted(Protocol):
    """One declaration of one turn."""

    @property
    def functions(self) -> Sequence[Function]:
        """What the model is shown."""

    @property
    def opening(self) -> Sequence[Opening]:
        """What stands before all output of the model."""

    @property
    def prefix(self) -> str:
        """Of the public items' ids: "mcp_", "ws_", "fs_"."""

    def start(self, call: HostedCall) -> Started:
        """What is shown when the call begins; pure."""

    async def run(self, call: HostedCall) -> Finished:
        """Runs the call. Never raises for a fault of the tool; is cancelled when the client goes."""

    def approval(self, call: HostedCall) -> str | None:
        """None where the call may run; else the fingerprint of the target that a person must approve first."""

    def target(self) -> str:
        """The fingerprint of what would be called, whether a person must approve it or not; "" where none ever must."""

    def annotate(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """The model's final text with the tool's own marks taken out, and the annotations that they stood for."""

    async def close(self) -> None:
        """Lets go of whatever the turn held open."""


@dataclass(frozen=True, slots=True)
class Approved:
    """A call that waited for a person, who has spoken: to be run (`hosted` given), or refused."""

    request_id: str
    name: str
    arguments: str
    response_item: str  # the id of the item that brought the answer
    hosted: Hosted | None
    reason: str | None = None


class Tool(Protocol):
    """One kind of tool, as configured."""

    @property
    def types(self) -> frozenset[str]:
        """The wire's `type`s that it serves."""

    async def declare(self, declaration: Mapping[str, Any], request: Request) -> Hosted | None:
        """What the declaration means in this turn; None: not ours after all (another server's, an unknown name).

        Raises `InvalidRequest` naming the field, or `ToolError` when a server cannot be asked.
        """

    async def open(self) -> None:
        """Called once when the gateway starts."""

    async def close(self) -> None:
        """Called once when it stops."""


@dataclass(frozen=True)
class Kit:
    """What a tool is handed."""

    new_id: Callable[[str], str]
    now: Callable[[], float]
