"""What filters are handed: the store, the backends, the clock, chance, and the turns in flight."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.protocol.records import Owner
from proxy.store import Store
from proxy.upstream.client import Client


class Run:
    """A turn in flight whose response id is known; `cancel` ends it from outside."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.cancelled = False
        self.over = asyncio.Event()

    def cancel(self) -> None:
        """Stops the turn; whoever runs it sees `cancelled` set."""
        if not self.cancelled:
            self.cancelled = True
            self._task.cancel()


class Runs:
    """The turns in flight in this process, by owner and response id."""

    def __init__(self) -> None:
        self._runs: dict[tuple[Owner, str], Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, owner: Owner, response_id: str, run: Run) -> None:
        """Makes a run known."""
        self._runs[owner, response_id] = run

    def find(self, owner: Owner, response_id: str) -> Run | None:
        """The run of this response, if it is in flight here."""
        return self._runs.get((owner, response_id))

    def remove(self, owner: Owner, response_id: str) -> None:
        """Forgets a run that is over, and tells those who wait for its end."""
        run = self._runs.pop((owner, response_id), None)
        if run is not None:
            run.over.set()


class Background:
    """The one owner of tasks that outlive the request that began them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs `work` to its end, whatever becomes of the caller."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Waits for all of it."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def new_id(prefix: str) -> str:
    """A fresh id: `prefix` and 32 hexadecimal digits that nobody can guess."""
    return prefix + os.urandom(16).hex()


@dataclass(frozen=True)
class Services:
    """Passed to every filter's constructor."""

    store: Store
    backends: Mapping[str, Client]
    now: Callable[[], float] = time.time  # seconds since the epoch
    new_id: Callable[[str], str] = new_id
    runs: Runs = field(default_factory=Runs)
    background: Background = field(default_factory=Background)
