"""The store in a Postgres database.

No statement leaves state in a session: locks are a transaction's, isolation is part of BEGIN, and time limits are kept
on this side. So a pooler may stand between, as long as `prepared_statements` is False where the pooler does not know
prepared statements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
from sqlalchemy import Executable, NullPool, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from proxy.errors import ConfigError, StoreError, StoreUnavailable
from proxy.store import History, Owner, Store, schema
from proxy.store._database import Database, Failure, Rejected
from proxy.store._direct import Direct, Gone
from proxy.store._group import Grouper
from proxy.store._history import OF_CONVERSATION, OF_RESPONSE, history
from proxy.store._pipeline import Pipeline
from proxy.store._save import Writer
from proxy.store._sql import SqlStore
from proxy.store._turn_sql import shape
from proxy.store.options import StoreOptions

_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SCHEMA_LOCK = 7306354200
_SCHEMA_TIMEOUT = 100.0
_CACHED_STATEMENTS = 256

# The classes of SQLSTATE in which the server is there but cannot serve: connection, resources, operator, system.
_UNAVAILABLE = {"08", "53", "57", "58"}
# The server undid the transaction in favour of another one: serialization failure, deadlock.
_UNDONE = {"40001", "40P01"}
_MEANT: dict[str, Callable[[], StoreError]] = {
    "22012": Gone,  # a division by zero; only a turn's statement divides
    "23": Rejected,  # a row breaks a constraint
    "53100": partial(StoreError, "The state store's disk is full; nothing was stored."),
}
_MESSAGES = {
    "25": "The state store is read-only.",
    "26": "The state store is behind a pooler that needs prepared_statements: false.",
    "28": "The state store refused the credentials.",
    "3D": "The state store's database does not exist.",
    "42": "The state store's schema is not the expected one.",
}


class PostgresStore(SqlStore):
    """Writes turns and reads histories on the driver's own connections, and everything else as any SQL store does."""

    def __init__(self, database: Database, prepare: Callable[[], Awaitable[None]], options: StoreOptions) -> None:
        self._direct = Direct(database)
        save = Pipeline(self._direct, Writer(database)).save
        lanes = max(1, options.pool_size // 2)  # the others are for readers
        super().__init__(database, prepare, options, Grouper(save, options.group_limit, kind=shape, lanes=lanes))

    async def history(self, owner: Owner, response_id: str) -> History | None:
        return await history(self._direct, OF_RESPONSE, owner, response_id)

    async def conversation_history(self, owner: Owner, conversation_id: str) -> History | None:
        return await history(self._direct, OF_CONVERSATION, owner, conversation_id)


def create(url: str, options: StoreOptions | None = None) -> Store:
    """Makes the store of a URL such as postgresql://user@host:5432/database?sslmode=verify-full."""
    chosen = options or StoreOptions()
    writer = _engine(url, chosen, pool_size=chosen.pool_size, max_overflow=0, pool_timeout=chosen.acquire_timeout)
    reader = writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    database = Database(reader, writer, chosen, explain)
    return PostgresStore(database, partial(_prepare, url), chosen)


def schema_engine(url: str) -> tuple[AsyncEngine, Executable | None]:
    """An engine for migrations, and the statement by which one process excludes the others."""
    options = StoreOptions(statement_timeout=_SCHEMA_TIMEOUT, prepared_statements=False)  # as any pooler allows
    return _engine(url, options, poolclass=NullPool), select(func.pg_advisory_xact_lock(_SCHEMA_LOCK))


async def _prepare(url: str) -> None:
    await schema.prepare(*schema_engine(url), upgrade=False)


def _check(url: str) -> None:
    """Refuses what asyncpg would only refuse at the first connection. The message never repeats the URL's password."""
    try:
        parts = urlsplit(url)
        modes = parse_qs(parts.query).get("sslmode", ["prefer"])
        _ = parts.port
    except ValueError as error:
        raise ConfigError("store: not a URL; write postgresql://user@host:port/database") from error
    if parts.scheme != "postgresql":
        raise ConfigError("store: the scheme must be postgresql")
    if modes[-1] not in _SSL_MODES:
        raise ConfigError(f"store: sslmode {modes[-1]!r} is none of {', '.join(_SSL_MODES)}")


def _engine(url: str, options: StoreOptions, **pool: Any) -> AsyncEngine:
    _check(url)
    cached = _CACHED_STATEMENTS if options.prepared_statements else 0
    connect = partial(
        _connect,
        dsn=url,  # asyncpg reads sslmode, certificates and socket directories from it as libpq does
        timeout=options.acquire_timeout,
        command_timeout=options.statement_timeout,
        statement_cache_size=cached,
    )
    return create_async_engine(
        "postgresql+asyncpg://",
        connect_args={
            "async_creator_fn": connect,
            "prepared_statement_cache_size": cached,
            "prepared_statement_name_func": None if cached else _unnamed,
        },
        hide_parameters=True,
        **pool,
    )


async def _connect(**settings: Any) -> asyncpg.Connection:
    """Connects, and lets the driver learn the array types: it looks with a session's setting changed for a moment."""
    connection = await asyncpg.connect(**settings)
    try:
        async with connection.transaction():
            await connection.execute("SELECT $1::bytea[]", [])
    except BaseException:
        connection.terminate()
        raise
    return connection


def _unnamed() -> str:
    return ""


def explain(error: BaseException) -> Failure:
    """What an error of Postgres, or of the way to it, means."""
    if isinstance(error, OSError):
        return Failure(StoreUnavailable())
    if isinstance(error, asyncpg.InternalClientError):
        return Failure(StoreUnavailable("The connection to the state store was lost."))
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = str(getattr(cause, "sqlstate", None) or "")
    if state in _UNDONE:
        return Failure(StoreUnavailable("The state store undid the transaction."), again=True)
    if meant := _MEANT.get(state) or _MEANT.get(state[:2]):
        return Failure(meant())
    if state[:2] in _UNAVAILABLE:
        return Failure(StoreUnavailable())
    return Failure(StoreError(_MESSAGES.get(state[:2], "")))
