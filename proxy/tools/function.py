"""Functions that the gateway owns: declared in the YAML, answered by an HTTP endpoint.

A request uses one by its name alone: `{"type": "function", "name": "weather"}`. With `parameters` beside the name it is
the client's own function, whatever it is called. Clients see such a call as an `mcp_call` of the server `functions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, SecretStr, StringConstraints

from proxy.config import Model
from proxy.config.shape import HttpUrl
from proxy.protocol import jsonbytes
from proxy.protocol.hosting import Finished, Hosted, HostedCall, Kit, LocalEvent, Request, Started
from proxy.protocol.hosting import Function as Offered
from proxy.tools._callout import Callout, CalloutError, CalloutOptions, Origin, parse
from proxy.tools._ungated import Ungated

LABEL = "functions"


FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Declared(Model):
    """One function."""

    description: str = Field("", description="What the model is told that it does.")
    parameters: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}, description="JSON Schema of its arguments."
    )
    endpoint: HttpUrl = Field(
        description="Gets the arguments as the JSON body of a POST; answers what the model shall read."
    )
    authorization: SecretStr | None = Field(None, description="The request's Authorization header.")


class Config(Model):
    """Options of the tool."""

    functions: dict[FunctionName, Declared] = Field(min_length=1, description="Functions by name.")
    timeout_seconds: float = Field(30, gt=0, le=3600, description="How long an endpoint may take.")
    max_result_bytes: int = Field(1024 * 1024, ge=1, le=16 * 1024 * 1024, description="Longest answer.")


class Function:
    """Serves the declarations that name one of its functions."""

    types = frozenset({"function"})

    def __init__(self, config: Config, kit: Kit) -> None:
        self._config = config
        # An endpoint that the operator wrote down is allowed by that, wherever it is.
        origins = {str(Origin.of(parse(each.endpoint))) for each in config.functions.values()}
        self._callout = Callout(
            CalloutOptions(
                allowed_private_origins=tuple(sorted(origins)),
                timeout_seconds=config.timeout_seconds,
                max_bytes=config.max_result_bytes,
            )
        )

    async def open(self) -> None:
        """Nothing is held open before the first call."""

    async def close(self) -> None:
        """Drops the connections."""
        await self._callout.close()

    async def declare(self, declaration: Mapping[str, Any], request: Request) -> Hosted | None:
        """The function, when the declaration is a name of ours and nothing else of substance."""
        name = declaration.get("name")
        declared = self._config.functions.get(name) if isinstance(name, str) else None
        if declared is None or declaration.get("parameters") is not None:
            return None
        hosted: Hosted = _Hosted(str(name), declared, self._callout)
        return hosted


class _Hosted(Ungated):
    prefix = "mcp_"

    def __init__(self, name: str, declared: Declared, callout: Callout) -> None:
        self._declared = declared
        self._callout = callout
        tool = {
            "type": "function",
            "name": name,
            "description": declared.description,
            "parameters": declared.parameters,
        }
        self.functions = (Offered(name, jsonbytes.encode(tool)),)

    def start(self, call: HostedCall) -> Started:
        item = {
            "id": call.item_id,
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": None,
            "arguments": call.arguments,
            "error": None,
            "name": call.name,
            "output": None,
            "server_label": LABEL,
        }
        return Started(item, (LocalEvent("response.mcp_call.in_progress", {}),))

    async def run(self, call: HostedCall) -> Finished:
        headers = {"content-type": "application/json"}
        if self._declared.authorization is not None:
            headers["authorization"] = self._declared.authorization.get_secret_value()
        try:
            answer = await self._callout.fetch("POST", self._declared.endpoint, headers, call.arguments.encode())
        except CalloutError as error:
            return self._failed(call, error.reason)
        text = _text(answer.body)
        if not 200 <= answer.status < 300:
            return self._failed(call, f"the endpoint answered {answer.status}: {text[:2000]}")
        item = {**self.start(call).item, "status": "completed", "output": text}
        return Finished(item, (LocalEvent("response.mcp_call.completed", {}),), text)

    def _failed(self, call: HostedCall, reason: str) -> Finished:
        item = {**self.start(call).item, "status": "failed", "error": reason}
        return Finished(item, (LocalEvent("response.mcp_call.failed", {}),), f"Error: {reason}")

    def annotate(self, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
        return text, ()


def _text(body: bytes) -> str:
    """The answer as text; a JSON string is what it spells."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text
