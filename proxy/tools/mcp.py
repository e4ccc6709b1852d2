"""Tools of MCP servers, which the request names by URL, or by the id of a connector that is configured here.

A server's tools are listed, shown to the model as functions `LABEL__TOOL`, and called for it: over streamable HTTP, or
over SSE where a server knows nothing newer. One session serves a turn. A call needs a person's approval unless the
request waives it. What `headers` and `authorization` hold goes to that server, and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
import msgspec
from mcp import ClientSession
from pydantic import Field

from proxy.config import Model
from proxy.errors import BodyTooLarge, InvalidRequest, ToolError
from proxy.protocol.records import Owner
from proxy.tools import Finished, Function, HostedCall, Kit, LocalEvent, Opening, Request, Started
from proxy.tools import _mcp_declaration as declarations
from proxy.tools import _mcp_listing as listings
from proxy.tools._callout import Callout, CalloutError, CalloutOptions, Destination, OriginText, Refused
from proxy.tools._mcp_declaration import Connector, Declaration
from proxy.tools._mcp_http import TOO_LARGE, Fault, Link
from proxy.tools._mcp_listing import Listed, Listing, Memory, Wanted
from proxy.tools._mcp_result import Results
from proxy.tools._mcp_session import Session, Sessions

log = logging.getLogger(__name__)

# They quote URLs, headers and the tools' data; what matters of it is logged here.
TALKATIVE = ("client", "httpcore2", "httpx2", "mcp")


class Config(Model):
    """Options of the tool."""

    connectors: dict[str, Connector] = Field(default_factory=dict, description="Servers by the id that requests use.")
    allowed_private_origins: tuple[OriginText, ...] = Field(
        (), description="Origins (scheme://host:port) that may have private addresses; cloud metadata stays refused."
    )
    ca_file: Path | None = Field(None, description="PEM file of an authority to trust beside the system's.")
    timeout_seconds: float = Field(30, gt=0, le=3600, description="How long one call may take.")
    list_timeout_seconds: float = Field(5, gt=0, le=300, description="How long a server may take to list its tools.")
    cache_seconds: float = Field(
        60, ge=0, le=86_400, description="How long a list is used again; only of servers that are shown no credentials."
    )
    max_servers: int = Field(10, ge=1, le=128, description="Most servers in one request.")
    max_tools: int = Field(128, ge=1, le=1024, description="Most tools of one server.")
    max_result_bytes: int = Field(1 << 20, ge=1024, le=16 << 20, description="Largest result of a call, or list.")


class Mcp:
    """Serves `mcp` declarations."""

    types = frozenset({"mcp"})

    def __init__(self, config: Config, kit: Kit) -> None:
        self.config = config
        self.kit = kit
        self.memory = Memory(config.cache_seconds, kit.now)
        self.sessions = Sessions()
        self._callout = Callout(
            CalloutOptions(allowed_private_origins=config.allowed_private_origins, ca_file=config.ca_file)
        )

    async def open(self) -> None:
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    async def close(self) -> None:
        await self.sessions.close()
        await self._callout.close()

    def check(self, all_of_a_turn: Sequence[Mapping[str, Any]]) -> None:
        """Looks at a turn's `mcp` declarations together. Raises `InvalidRequest`."""
        labels = [each.get("server_label") for each in all_of_a_turn]
        if len(labels) > self.config.max_servers:
            raise InvalidRequest(f"At most {self.config.max_servers} MCP servers can be used.", param="tools")
        for label in labels:
            if labels.count(label) > 1:
                raise InvalidRequest(f"Two MCP servers have the 'server_label' '{str(label)[:64]}'.", param="tools")

    async def declare(self, declaration: Mapping[str, Any], request: Request) -> Server | None:
        read = declarations.read(declaration, self.config.connectors)
        if read is None:
            return None
        server = Server(self, read, request.owner, await self._link(read))
        try:
            await server.prepare(request.history_types.get("mcp_list_tools", ()))
        except Fault as fault:
            await server.close()
            raise _not_listed(read, fault) from None
        except BaseException:
            await server.close()
            raise
        return server

    async def _link(self, read: Declaration) -> Link:
        """Checks the server's address, each time: a list that is at hand is no reason to trust a name."""
        most = 3 * self.config.max_result_bytes + 65_536  # as JSON; many servers say everything twice
        connect = self.config.timeout_seconds
        return Link(await self._destination(read), read.target.headers, self._callout.tls, most, connect)

    async def _destination(self, read: Declaration) -> Destination:
        try:
            async with asyncio.timeout(self.config.list_timeout_seconds):
                return await self._callout.destination(read.target.url, private=read.target.connector is not None)
        except TimeoutError:
            raise _not_listed(read, Fault("the server's name could not be resolved in time")) from None
        except Refused as error:
            message = f"Invalid 'tools': the MCP server '{read.label}' cannot be used: {error.reason}."
            raise InvalidRequest(message, param="tools") from None
        except CalloutError as error:
            raise _not_listed(read, Fault(error.reason)) from None


def _not_listed(read: Declaration, fault: Fault) -> BodyTooLarge | ToolError:
    reason = read.target.redact(fault.message)
    message = f"The MCP server '{read.label}' could not be asked for its tools: {reason}."
    log.warning("%s", message)
    return (BodyTooLarge if fault.message == TOO_LARGE else ToolError)(message, param="tools")


class Server:
    """One server in one turn."""

    prefix = "mcp_"

    def __init__(self, tool: Mcp, declaration: Declaration, owner: Owner, link: Link) -> None:
        self.functions: Sequence[Function] = ()
        self.opening: Sequence[Opening] = ()
        self._tool = tool
        self._declaration = declaration
        self._owner = owner
        self._link = link
        self._session: Session | None = None
        self._tools: dict[str, Listed] = {}
        self._results = Results(declaration.label, tool.config.max_result_bytes, declaration.target.redact)

    async def prepare(self, history: Sequence[bytes]) -> None:
        """Learns the server's tools. Raises `Fault`, `InvalidRequest`."""
        declared = self._declaration
        target = declared.target
        wanted = Wanted(self._owner, declared.label, target.url, declared.names) if target.shareable else None
        known = self._tool.memory.in_history(wanted, history) if wanted is not None else None
        listing = known if known is not None else await self._listing(wanted)
        self._offer(tuple(filter(declared.allows, listing)))
        if known is None:
            self.opening = (self._shown(wanted, listing),)

    def _offer(self, tools: Listing) -> None:
        label, most = self._declaration.label, self._tool.config.max_tools
        if len(tools) > most:
            message = f"The MCP server '{label}' has more than {most} tools; name some in 'allowed_tools'."
            raise InvalidRequest(message, param="tools")
        found = listings.functions(label, tools)
        self.functions = tuple(function for function, _ in found.values())
        self._tools = {name: tool for name, (_, tool) in found.items()}

    async def _listing(self, wanted: Wanted | None) -> Listing:
        memory, config = self._tool.memory, self._tool.config
        known = memory.kept(wanted) if wanted is not None else None
        if known is not None:
            return known

        async def ask(session: ClientSession) -> Listing:
            return await listings.ask(session, config.max_result_bytes)

        found = await self._open().ask(ask, config.list_timeout_seconds)
        if wanted is None:
            return listings.redacted(found, self._declaration.target.redact)
        memory.keep(wanted, found)
        return found

    def _shown(self, wanted: Wanted | None, listing: Listing) -> Opening:
        """The item that lists the tools."""
        tools = tuple(self._tools.values())
        item_id = self._tool.kit.new_id("mcpl_")
        if wanted is not None:
            self._tool.memory.shown(wanted, item_id, tools, whole=len(tools) == len(listing))
        item = {"id": item_id, "type": "mcp_list_tools", "server_label": self._declaration.label, "tools": []}
        begun = Started(item, (LocalEvent("response.mcp_list_tools.in_progress", {}),))
        done = {**item, "tools": [each.shown() for each in tools]}
        return Opening(begun, Finished(done, (LocalEvent("response.mcp_list_tools.completed", {}),), ""))

    def start(self, call: HostedCall) -> Started:
        item = self._results.item(call, self._name(call))
        events = (
            LocalEvent("response.mcp_call.in_progress", {}),
            LocalEvent("response.mcp_call_arguments.done", {"arguments": call.arguments}),
        )
        return Started(item, events)

    async def run(self, call: HostedCall) -> Finished:
        name = self._name(call)
        try:
            return self._results.of(call, name, await self._call(call))
        except Fault as fault:
            finished = self._results.failed(call, name, fault)
            log.warning("MCP server %s, a call failed: %r", self._declaration.label, finished.output)
            return finished

    def approval(self, call: HostedCall) -> str | None:
        tool = self._tools.get(call.name)
        if tool is not None and not self._declaration.needs_approval(tool):
            return None
        return self.target()

    def target(self) -> str:
        return self._declaration.target.fingerprint(self._owner)

    def annotate(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        return text, ()

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _name(self, call: HostedCall) -> str:
        """The tool's own name; a stored call's tool may be gone by now."""
        tool = self._tools.get(call.name)
        return tool.name if tool is not None else call.name.removeprefix(f"{self._declaration.label}__")

    async def _call(self, call: HostedCall) -> types.CallToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            raise Fault("the server has no such tool", types.INVALID_PARAMS)
        try:
            arguments = msgspec.json.decode(call.arguments, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise Fault("the arguments are not a JSON object", types.INVALID_PARAMS) from None
        asked = types.CallToolRequest(params=types.CallToolRequestParams(name=tool.name, arguments=arguments))

        async def ask(session: ClientSession) -> types.CallToolResult:
            # Not `session.call_tool`: it lists all tools again, to hold the result against a schema.
            return await session.send_request(asked, types.CallToolResult)

        return await self._open().ask(ask, self._tool.config.timeout_seconds)

    def _open(self) -> Session:
        """The turn's session; another one where the last was lost."""
        if self._session is None or not self._session.alive:
            self._session = self._tool.sessions.open(self._link)
        return self._session
