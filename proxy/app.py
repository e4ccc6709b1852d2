"""The composition root: a configuration becomes a store, backends, chains and listeners."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import multiprocessing
import signal
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy import config as configuration
from proxy import errors
from proxy.chain import Next, check_needs, check_order, compose
from proxy.filters.owner import Config as OwnerConfig
from proxy.filters.owner import Owner
from proxy.loader import END, Plan, plan
from proxy.server.cancel import Cancel
from proxy.server.connection import Handler
from proxy.server.health import Health
from proxy.server.listener import Listener, Pages, Site, refusal
from proxy.server.objects import Objects
from proxy.server.serving import Server
from proxy.services import Services
from proxy.store import Store
from proxy.store.options import StoreOptions
from proxy.store.schema import check_scheme
from proxy.telemetry import AccessLog, settle
from proxy.upstream.client import Client, Limits
from proxy.upstream.connection import Patience
from proxy.upstream.pool import Endpoint, Pool

log = logging.getLogger("rejoinder")

_COLLECT_AFTER = 20_000  # objects made and not freed again; Python's own 700 costs a fifth of a busy worker's time
_SETTLE_SECONDS = 0.5
_GRACE = 30.0  # seconds for requests in flight when the process is asked to stop


@dataclass(frozen=True)
class Blueprint:
    """A configuration, checked through and through, from which nothing has been started yet."""

    gateway: configuration.Gateway
    chains: Mapping[str, tuple[Plan, ...]]
    store_url: str


def blueprint(gateway: configuration.Gateway) -> Blueprint:
    """Checks what spans several parts of the file. Raises `ConfigError`."""
    _check_listeners(gateway)
    names = dict.fromkeys([*gateway.chains, *(listener.chain for listener in gateway.listeners)])
    chains = {name: _plans(gateway, name) for name in names}
    url = gateway.store.url.get_secret_value()
    check_scheme(url, "store.url")
    return Blueprint(gateway, chains, url)


def _check_listeners(gateway: configuration.Gateway) -> None:
    addresses = [each.address for each in gateway.listeners] + ([gateway.admin.address] if gateway.admin else [])
    for address in addresses:
        if addresses.count(address) > 1:
            raise errors.ConfigError(f"listeners: address: '{address}' is there twice")
    for index, each in enumerate(gateway.listeners):
        _tls(each, f"listeners[{index}].tls")
    for name, backend in gateway.backends.items():
        if backend.ca_file is not None:
            _trusting(backend.ca_file, f"backends.{name}.ca_file")


def _tls(listener: configuration.Listener, where: str) -> ssl.SSLContext | None:
    """The certificate of a listener. Raises `ConfigError` when its files cannot be used."""
    if listener.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(listener.tls.cert_file, listener.tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise errors.ConfigError(f"{where}: the certificate or key cannot be used: {error}") from error
    return context


def _trusting(ca_file: Path, where: str) -> ssl.SSLContext:
    """A client's context that trusts these authorities. Raises `ConfigError` when the file cannot be used."""
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise errors.ConfigError(f"{where}: {ca_file} cannot be used: {error}") from error


def _plans(gateway: configuration.Gateway, name: str) -> tuple[Plan, ...]:
    entries = gateway.chain(name)
    if entries is None:
        known = ", ".join(dict.fromkeys(["default", *gateway.chains]))
        raise errors.ConfigError(f"listeners: chain: '{name}': unknown chain; known: {known}")
    where = f"chains.{name}"
    plans = tuple(plan(entry, f"{where}[{index}]") for index, entry in enumerate(entries))
    if not plans or plans[-1].name != END or any(each.name == END for each in plans[:-1]):
        raise errors.ConfigError(f"{where}: must end with '{END}', and hold it once")
    check_order([each.name for each in plans], {each.name: each.after for each in plans}, where)
    check_needs([each.name for each in plans], {each.name: each.needs for each in plans}, where)
    backend = getattr(plans[-1].config, "backend", None)
    if backend is not None and backend not in gateway.backends:
        known = ", ".join(gateway.backends)
        raise errors.ConfigError(f"{where}[{len(plans) - 1}].backend: '{backend}': unknown backend; known: {known}")
    if backend is None and len(gateway.backends) > 1:
        raise errors.ConfigError(f"{where}[{len(plans) - 1}].backend: is missing; known: {', '.join(gateway.backends)}")
    return plans


def make_store(blue: Blueprint) -> Store:
    """The store that the URL names; not open yet."""
    options = blue.gateway.store
    limits = StoreOptions(
        pool_size=options.pool_size,
        acquire_timeout=options.acquire_timeout_seconds,
        busy_timeout=options.acquire_timeout_seconds,
        statement_timeout=options.statement_timeout_seconds,
        prepared_statements=options.prepared_statements,
    )
    module = importlib.import_module(f"proxy.store.{blue.store_url.partition('://')[0]}")
    store: Store = module.create(blue.store_url, limits)
    return store


def make_client(backend: configuration.Backend) -> Client:
    """The client of one backend."""
    tls = _trusting(backend.ca_file, "ca_file") if backend.ca_file else None
    urls = backend.endpoints or (f"http://127.0.0.1:{backend.vllm.port}",) if backend.vllm else backend.endpoints
    times, pool = backend.timeouts, backend.pool
    patience = Patience(times.first_byte, times.idle, times.total)
    limits = Limits(patience, backend.max_answer_bytes, backend.max_event_bytes)
    connections = Pool(
        [Endpoint.of(url, tls) for url in urls],
        limit=pool.max_connections,
        connect=times.connect,
        idle=pool.idle_seconds,
        wait=pool.wait_seconds,
    )
    for endpoint in connections.endpoints:
        endpoint.healthy = backend.vllm is None
    key = backend.credentials.api_key.get_secret_value() if backend.credentials else None
    return Client(
        connections,
        limits,
        authorization=b"Bearer " + key.encode() if key is not None else None,
        forward_credentials=backend.forward_credentials,
    )


class App:
    """One process of the gateway."""

    def __init__(self, blue: Blueprint, *, first: bool = True) -> None:
        self._blue = blue
        self._first = first
        gateway = blue.gateway
        self.store = make_store(blue)
        clients = {name: make_client(backend) for name, backend in gateway.backends.items()}
        self.services = Services(store=self.store, backends=clients)
        self.cancel = Cancel(self.services, shared=gateway.workers > 1 or blue.store_url.startswith("postgresql"))
        self.health = Health(self.store, self._backends_ready)
        telemetry = gateway.telemetry
        self._access_log = AccessLog(telemetry.log_format) if telemetry.access_log else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open store, listening sockets and periodic work, for the duration."""
        async with AsyncExitStack() as stack:
            stack.callback(settle)
            if self._access_log is not None:
                stack.callback(self._access_log.flush)
            await self.store.open()
            stack.push_async_callback(self.store.close)
            stack.callback(self._close_clients)
            stack.push_async_callback(self.services.background.close)
            for options in self._blue.gateway.listeners:
                await self._listen(stack, options)
            admin = self._blue.gateway.admin
            if admin is not None and self._first:
                await self._serve(stack, Pages(self.health), admin.address, None)
            for work in self._periodic():
                stack.push_async_callback(_stop, asyncio.get_running_loop().create_task(work))
            yield

    async def _chain(self, stack: AsyncExitStack, name: str) -> Next:
        *filters, end = self._blue.chains[name]
        backend = getattr(end.config, "backend", None) or next(iter(self._blue.gateway.backends))
        built = [each.factory(each.config, self.services) for each in filters]
        for each in built:
            if hasattr(each, "open"):  # a filter that holds something open while the gateway runs
                await each.open()
                stack.push_async_callback(each.close)
        return compose(built, self.services.backends[backend])

    def _owner(self, name: str) -> Owner:
        for each in self._blue.chains[name]:
            if each.factory is Owner:
                return Owner(each.config, self.services)  # type: ignore[arg-type]  # its own Config, as the loader made it
        return Owner(OwnerConfig(), self.services)

    async def _listen(self, stack: AsyncExitStack, options: configuration.Listener) -> None:
        gateway = self._blue.gateway
        site = Site(
            options=options,
            chain=await self._chain(stack, options.chain),
            identify=self._owner(options.chain).identify,
            objects=Objects(self.store, self.services.new_id, self.services.now),
            cancel=self.cancel,
            health=self.health if gateway.admin is None else None,
            access_log=self._access_log,
        )
        await self._serve(stack, Listener(site), options.address, _tls(options, options.name))

    async def _serve(self, stack: AsyncExitStack, handler: Handler, address: str, tls: ssl.SSLContext | None) -> None:
        server = Server(handler, refusal)
        try:
            await server.listen(address, tls=tls, shared=self._blue.gateway.workers > 1)
        except OSError as error:
            raise errors.ConfigError(f"cannot listen on {address}: {error.strerror or error}") from error
        stack.push_async_callback(server.close, _GRACE)

    def _periodic(self) -> list[Coroutine[Any, Any, None]]:
        work = [self.cancel.watch(), self._sweep(), _settle()]
        for name, backend in self._blue.gateway.backends.items():
            # A vLLM of our own takes minutes to start: it is not ready until it says so.
            check = backend.health_check or (configuration.HealthCheck(interval_seconds=2) if backend.vllm else None)
            if check is not None:
                work.append(_check(self.services.backends[name], check))
        return work

    async def _sweep(self) -> None:
        options = self._blue.gateway.store
        while True:
            await asyncio.sleep(options.sweep_seconds)
            try:
                await self._sweep_once(options.sweep_batch)
            except errors.StoreError as error:
                log.warning("expired responses could not be removed: %s", error.message)

    async def _sweep_once(self, batch: int) -> None:
        removed = batch
        while removed == batch:
            removed = await self.store.sweep(batch)
            await asyncio.sleep(0.05)  # lets requests through between two batches

    def _backends_ready(self) -> bool:
        return all(client.ready for client in self.services.backends.values())

    def _close_clients(self) -> None:
        for client in self.services.backends.values():
            client.close()


async def _check(client: Client, options: configuration.HealthCheck) -> None:
    while True:
        await client.check(options.path)
        await asyncio.sleep(options.interval_seconds)


def _tune_garbage_collector() -> None:
    """Leaves out what lives as long as the process, and looks for cycles less often: turns make hardly any."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


async def _settle() -> None:
    """Whichever worker is asked for metrics, the others' count is no older than this."""
    while True:
        await asyncio.sleep(_SETTLE_SECONDS)
        settle()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def serve(blue: Blueprint, *, first: bool = True) -> None:
    """Runs one process of the gateway until it is asked to stop."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    parent = multiprocessing.parent_process()
    if parent is not None:
        # A supervisor that was killed cannot tell its workers.
        loop.add_reader(parent.sentinel, stopping.set)
    async with App(blue, first=first).running():
        _tune_garbage_collector()
        if first:
            log.info("ready")
        await stopping.wait()
        log.info("stopping")
