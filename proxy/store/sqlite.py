"""The store in a SQLite file. Several processes may use one file; one of them writes at a time.

The journal is a write-ahead log (readers never wait for the writer), and every commit reaches the disk: a completion
that was released must not be lost with the power.
"""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import Any

import aiosqlite
from sqlalchemy import URL, Connection, Executable, NullPool, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from proxy.errors import ConfigError, StoreError, StoreUnavailable
from proxy.store import Store, schema
from proxy.store._database import Database, Failure, Rejected
from proxy.store._group import Grouper
from proxy.store._save import Writer
from proxy.store._sql import SqlStore
from proxy.store.options import StoreOptions

_SETTINGS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
_DAMAGED = "The state store's file is damaged."
_MESSAGES = {
    sqlite3.SQLITE_FULL: "The state store's disk is full; nothing was stored.",
    sqlite3.SQLITE_READONLY: "The state store's file is read-only.",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_IOERR: "The state store's disk failed.",
    sqlite3.SQLITE_PERM: "The state store's file may not be used.",
    sqlite3.SQLITE_TOOBIG: "The turn is too large for the state store.",
}
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "The state store is locked by another process.",
    sqlite3.SQLITE_LOCKED: "The state store is locked by another connection.",
    sqlite3.SQLITE_CANTOPEN: "The state store's file cannot be opened.",
}


def create(url: str, options: StoreOptions | None = None) -> Store:
    """Makes the store of a URL such as sqlite:///file.db or sqlite:////absolute/file.db."""
    chosen = options or StoreOptions()
    path = _path(url)
    reader = _engine(path, chosen, begin="BEGIN", pool_size=chosen.pool_size)
    # One writing connection: the writers of this process queue for it in order, not in SQLite's busy loop.
    writer = _engine(path, chosen, begin="BEGIN IMMEDIATE", pool_size=1)
    database = Database(reader, writer, chosen, explain)
    grouper = Grouper(Writer(database).save, chosen.group_limit)
    return SqlStore(database, partial(_prepare, url), chosen, grouper)


def schema_engine(url: str) -> tuple[AsyncEngine, Executable | None]:
    """An engine for migrations; its transactions exclude every other writer from their start."""
    return _engine(_path(url), StoreOptions(), begin="BEGIN IMMEDIATE", poolclass=NullPool), None


async def _prepare(url: str) -> None:
    await schema.prepare(*schema_engine(url), upgrade=True)


def _path(url: str) -> str:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError("store: not a URL; write sqlite:///file.db or sqlite:////absolute/file.db") from error
    if parsed.drivername != "sqlite" or parsed.host or not parsed.database or parsed.database == ":memory:":
        raise ConfigError("store: names no file; write sqlite:///file.db or sqlite:////absolute/file.db")
    return parsed.database


def _engine(path: str, options: StoreOptions, begin: str, **pool: Any) -> AsyncEngine:
    if "pool_size" in pool:
        pool |= {"max_overflow": 0, "pool_timeout": options.acquire_timeout}
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=path),
        connect_args={"timeout": options.busy_timeout, "isolation_level": None, "async_creator_fn": _connect},
        hide_parameters=True,
        **pool,
    )
    event.listen(engine.sync_engine, "begin", partial(_begin, begin))
    return engine


async def _connect(path: str, **settings: Any) -> aiosqlite.Connection:
    """Connects; where that fails, its thread ends before the error shows, so that none speaks to a closed loop."""
    connection = aiosqlite.connect(path, **settings)
    connection._thread.daemon = True  # as SQLAlchemy sets it, so that a hung disk cannot hold up the process's end
    try:
        await connection
        for statement in _SETTINGS:
            await connection.execute(statement)
    except BaseException:
        await connection.close()
        await asyncio.to_thread(connection._thread.join)
        raise
    return connection


def _begin(statement: str, connection: Connection) -> None:
    # The driver's own BEGIN would come only before the first write, too late for a lock or a snapshot.
    connection.exec_driver_sql(statement)


def explain(error: BaseException) -> Failure:
    """What an error of SQLite means."""
    if isinstance(error, IntegrityError):
        return Failure(Rejected())
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code in _UNAVAILABLE:
        return Failure(StoreUnavailable(_UNAVAILABLE[code]))
    return Failure(StoreError(_MESSAGES.get(code, "")))
