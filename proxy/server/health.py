"""/healthz (this process runs), /readyz (it can serve: the store and a backend answer), /metrics (Prometheus)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest, multiprocess

from proxy import errors
from proxy.protocol import jsonbytes
from proxy.protocol.lookup import Reply
from proxy.store import Store
from proxy.telemetry import settle

_PATIENCE = 2.0  # seconds for the store to answer


class Health:
    """Answers the gateway's own endpoints."""

    paths = frozenset({"/healthz", "/readyz", "/metrics"})

    def __init__(self, store: Store, backends_ready: Callable[[], bool]) -> None:
        self._store = store
        self._backends_ready = backends_ready

    async def answer(self, path: str) -> Reply:
        """The reply to one of `paths`."""
        if path == "/metrics":
            return Reply(200, ((b"content-type", CONTENT_TYPE_LATEST.encode()),), _metrics())
        missing = await self._missing() if path == "/readyz" else []
        body = jsonbytes.encode({"status": "unavailable" if missing else "ok", "missing": missing})
        return Reply(503 if missing else 200, ((b"content-type", b"application/json"),), body)

    async def _missing(self) -> list[str]:
        missing = [] if self._backends_ready() else ["backend"]
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._store.ping()
        except (TimeoutError, errors.StoreError):
            missing.append("store")
        return missing


def _metrics() -> bytes:
    settle()
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # untyped in prometheus_client
    return generate_latest(registry)
