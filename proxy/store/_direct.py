"""Prepared statements on the driver's own connections, out of the pool that SQLAlchemy keeps.

For what every turn runs: SQLAlchemy's way to a statement costs more than the statement. Each call here is one round
trip and, as the driver sends one Sync after it, one transaction: it takes effect whole or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import PoolProxiedConnection
from sqlalchemy.exc import SQLAlchemyError

from proxy.errors import StoreError
from proxy.store._database import TRIES, Database

Rows = Sequence[Sequence[Any]]
T = TypeVar("T")

_FOREIGN = (
    SQLAlchemyError,
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class Gone(StoreError):
    """What a turn continues is not there any more."""


class Direct:
    """Runs statements; what goes wrong is translated as the database translates it."""

    def __init__(self, database: Database) -> None:
        self._engine = database.writer
        # A pool hands on what its own layer over the driver made of an error in connecting.
        self._foreign = (*_FOREIGN, self._engine.dialect.loaded_dbapi.Error)
        self._translate = database.translate

    async def read(self, statement: str, *values: Any) -> Rows:
        """The rows of a statement that writes nothing, so that it may be sent again when the connection is lost."""
        return await self._repeat(lambda connection: connection.fetch(statement, *values), harmless=True)

    async def write(self, statement: str, turns: Rows) -> None:
        """Runs the statement for each turn's values: all in one transaction."""
        await self._repeat(lambda connection: connection.executemany(statement, turns), harmless=False)

    async def _repeat(self, work: Callable[[asyncpg.Connection], Awaitable[T]], *, harmless: bool) -> T:
        """Tries again what the server says it undid. What was sent and not answered may have been committed."""
        tries = TRIES
        while True:
            pooled = await self._checkout()
            connection: asyncpg.Connection = pooled.driver_connection
            try:
                return await work(connection)
            except _FOREIGN as error:
                failure = self._translate(error)
                tries -= 1
                again = failure.again or (harmless and connection.is_closed())
                _discard(pooled, error)
                if not again or not tries:
                    raise failure.error from error
            finally:
                pooled.close()

    async def _checkout(self) -> PoolProxiedConnection:
        """A connection that was open a moment ago: on one that is closed nothing can have been sent."""
        try:
            while True:
                pooled = await self._engine.raw_connection()
                connection: asyncpg.Connection = pooled.driver_connection
                if not connection.is_closed():
                    return pooled
                pooled.invalidate()
        except self._foreign as error:
            raise self._translate(error).error from error


def _discard(pooled: PoolProxiedConnection, error: BaseException) -> None:
    """Lets nobody else have a connection that the error left of no use."""
    connection: asyncpg.Connection = pooled.driver_connection
    if connection.is_closed() or isinstance(error, asyncpg.InternalClientError):
        pooled.invalidate()  # the driver lost count of what the server has said: its end came in between
    elif isinstance(error, TimeoutError):
        pooled.invalidate(soft=True)  # it closes when it would be taken again; the driver asks the server to stop
