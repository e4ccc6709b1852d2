"""What hosted tools have in common that nobody needs to approve, and that hold nothing open for one turn."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.protocol.hosting import HostedCall, Opening


class Ungated:
    """The part of `Hosted` that is the same for all of them."""

    opening: Sequence[Opening] = ()

    def approval(self, call: HostedCall) -> str | None:
        """Every call may run."""
        return None

    def target(self) -> str:
        """There is nothing to approve."""
        return ""

    async def close(self) -> None:
        """Nothing is held open."""
        return
