"""Processes: one in the foreground, or several workers that share the port under a supervisor."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from multiprocessing.context import SpawnProcess
from urllib.parse import urlsplit

import click
import uvloop
from prometheus_client import multiprocess

from proxy import app
from proxy.config import Gateway
from proxy.errors import ConfigError, StoreError
from proxy.loader import END
from proxy.store import schema
from proxy.telemetry import configure_logging
from proxy.upstream import vllm

log = logging.getLogger("rejoinder.processes")

_SECRET = re.compile(r"(?i)([^=&]*(?:pass|key|secret|token)[^=&]*)=[^&]*")
_MALLOC = {-1: 16 << 20, -3: 4 << 20, -2: 1 << 20}  # bytes: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_TOP_PAD
_SOON = 10.0  # seconds: a worker that dies younger than this is brought back with growing pauses


def run(blue: app.Blueprint, *, migrate: bool) -> None:
    """Serves until a signal says stop. Raises `ConfigError` or `StoreError` when it cannot begin."""
    gateway = blue.gateway
    _keep_freed_memory()
    configure_logging(gateway.telemetry.log_level, gateway.telemetry.log_format)
    _check_ports(gateway)
    if migrate:
        asyncio.run(schema.migrate(blue.store_url))
    for line in summary(blue):
        click.echo(line, err=True)
    with ExitStack() as stack:
        for backend in gateway.backends.values():
            if backend.vllm is not None:
                child = vllm.Supervisor(backend.vllm)
                stack.callback(child.stop)  # after the last request has been answered
                child.start()
        if gateway.workers == 1:
            _serve(blue, first=True)
        else:
            # A store that cannot be used does not heal by starting worker after worker.
            asyncio.run(_try_store(blue))
            _Supervisor(blue).run()


async def _try_store(blue: app.Blueprint) -> None:
    """Opens and closes the store once. Raises `ConfigError` or `StoreError`."""
    store = app.make_store(blue)
    try:
        await store.open()
    finally:
        await store.close()


def _keep_freed_memory() -> None:
    """Lets glibc keep some megabytes of what was freed: each large stream would ask the kernel for its pages again."""
    with suppress(OSError, AttributeError):  # another C library
        tune = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC.items():
            tune(option, value)


def summary(blue: app.Blueprint) -> list[str]:
    """What will be served, in five lines."""
    gateway = blue.gateway
    listeners = ", ".join(f"{'https' if each.tls else 'http'}://{each.address}" for each in gateway.listeners)
    chains = "; ".join(" > ".join(each.name for each in blue.chains[name.chain]) for name in gateway.listeners[:1])
    backends = ", ".join(
        f"{name} = {' '.join(map(_shown, each.endpoints)) or 'vllm serve ' + (each.vllm.model if each.vllm else '')}"
        for name, each in gateway.backends.items()
    )
    health = f"http://{gateway.admin.address}" if gateway.admin else "with the listener"
    return [
        f"listening  {listeners} ({gateway.workers} worker{'s' if gateway.workers > 1 else ''})",
        f"chain      {chains or END}",
        f"backend    {backends}",
        f"store      {_shown(blue.store_url)}",
        f"health     {health}: /healthz /readyz /metrics",
    ]


def _shown(url: str) -> str:
    """The URL without its password, and without what its query may hold of one."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    query = _SECRET.sub(r"\1=***", parts.query)
    shown = f"{parts.scheme}://{name}{':***' if colon else ''}{at}{host}{parts.path}"
    return f"{shown}?{query}" if query else shown


def _check_ports(gateway: Gateway) -> None:
    addresses = [each.address for each in gateway.listeners] + ([gateway.admin.address] if gateway.admin else [])
    for address in addresses:
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host.strip("[]"), int(port)))
            except OSError as error:
                raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from error


def _serve(blue: app.Blueprint, *, first: bool) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(app.serve(blue, first=first))


def _work(blue: app.Blueprint, first: bool) -> None:
    """A worker process."""
    _keep_freed_memory()
    configure_logging(blue.gateway.telemetry.log_level, blue.gateway.telemetry.log_format)
    try:
        _serve(blue, first=first)
    except (ConfigError, StoreError) as error:
        log.error("a worker could not begin: %s", error)
        sys.exit(1)


class _Supervisor:
    """Starts workers, brings back the ones that die, and stops them all when told to."""

    def __init__(self, blue: app.Blueprint) -> None:
        self._blue = blue
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: dict[int, tuple[SpawnProcess, float]] = {}
        self._due: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._stopping = False

    def run(self) -> None:
        """Returns when every worker has ended."""
        directory = tempfile.mkdtemp(prefix="rejoinder-metrics-")
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            for index in range(self._blue.gateway.workers):
                self._start(index)
            while self._workers or (self._due and not self._stopping):
                self._look()
                time.sleep(0.1)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _start(self, index: int) -> None:
        process = self._spawn.Process(target=_work, args=(self._blue, index == 0), name=f"rejoinder-{index}")
        process.start()
        self._workers[index] = (process, time.monotonic())

    def _look(self) -> None:
        for index, (process, began) in list(self._workers.items()):
            if process.is_alive():
                continue
            process.join()
            multiprocess.mark_process_dead(process.pid)  # type: ignore[no-untyped-call]  # untyped in prometheus_client
            del self._workers[index]
            if not self._stopping:
                self._due[index] = time.monotonic() + self._pause(index, time.monotonic() - began)
                log.error("worker %d ended with status %s; it will be brought back", index, process.exitcode)
        for index, when in list(self._due.items()):
            if not self._stopping and time.monotonic() >= when:
                del self._due[index]
                self._start(index)

    def _pause(self, index: int, lived: float) -> float:
        self._pauses[index] = min(self._pauses.get(index, 0.25) * 2, 30.0) if lived < _SOON else 0.25
        return self._pauses[index]

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        for process, _ in self._workers.values():
            process.terminate()
