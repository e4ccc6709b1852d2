"""Fixes whose state a request is about, before anything else happens.

`single_tenant`: everybody shares one state. `trusted_header`: a proxy in front, which has authenticated the caller,
names
the owner in a header; a request without it is refused, and the header goes no further.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from proxy.chain import Next, Send
from proxy.config import Model
from proxy.errors import InvalidOwner, MissingOwner
from proxy.protocol import headers as http
from proxy.protocol import records
from proxy.protocol.turn import Turn
from proxy.services import Services

_TOKEN = re.compile(r"[!-~]{1,256}\Z")


class Config(Model):
    """Options of the filter."""

    mode: Literal["single_tenant", "trusted_header"] = Field(
        "single_tenant", description="How the owner is known: one for all, or by a header that a trusted proxy sets."
    )
    tenant_id: str = Field("default", min_length=1, max_length=256, description="The one owner in single_tenant mode.")
    header: str = Field(
        "x-rejoinder-owner",
        pattern=r"^[A-Za-z0-9-]+$",
        description="The header that names the owner in trusted_header mode.",
    )


class Owner:
    """Sets `turn.owner`."""

    def __init__(self, config: Config, services: Services) -> None:
        self._fixed = records.Owner(config.tenant_id) if config.mode == "single_tenant" else None
        self._header = config.header.lower().encode()

    async def __call__(self, turn: Turn, send: Send, call_next: Next) -> None:
        if turn.owner == self._fixed:  # as the listener made it
            await call_next(turn, send)
            return
        owner = self.identify(turn.headers)
        headers = http.without(turn.headers, {self._header}) if self._fixed is None else turn.headers
        await call_next(turn.replace(owner=owner, headers=headers), send)

    def identify(self, headers: http.Headers) -> records.Owner:
        """The owner that these request headers name. Raises `MissingOwner`, `InvalidOwner`."""
        if self._fixed is not None:
            return self._fixed
        values = [value for name, value in headers if name.lower() == self._header]
        header = self._header.decode()
        if not values:
            raise MissingOwner(f"The header '{header}' is missing; it must name the owner of the state.")
        if len(values) > 1 or not _TOKEN.match(values[0].decode("latin-1")):
            raise InvalidOwner(f"The header '{header}' must be there once, with 1 to 256 visible ASCII characters.")
        return records.Owner(values[0].decode("ascii"))
