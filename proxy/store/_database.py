"""One operation on the database: a connection, a transaction, a time limit, and the translation of what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from proxy.errors import StoreError, StoreUnavailable
from proxy.store.options import StoreOptions

P = ParamSpec("P")
T = TypeVar("T")

# A transaction that the database itself gave up is tried again this often.
TRIES = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """What a driver's error means: what to raise, and whether the same work may be tried again."""

    error: StoreError
    again: bool = False


Explain = Callable[[BaseException], Failure]


class Rejected(StoreError):
    """The database refused a row; a narrower look says which."""


@dataclass(slots=True)
class _Attempt:
    """How far one try has come."""

    committing: bool = False


class Database:
    """Runs work on a connection; the work is a coroutine function whose first argument is the connection."""

    def __init__(self, reader: AsyncEngine, writer: AsyncEngine, options: StoreOptions, explain: Explain) -> None:
        self.reader = reader
        self.writer = writer
        self._limit = options.acquire_timeout + options.statement_timeout
        self._explain = explain
        self._foreign = (SQLAlchemyError, OSError)

    async def read(
        self, work: Callable[Concatenate[AsyncConnection, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs the work on one snapshot of the data."""
        return await self._repeat(self.reader, lambda connection: work(connection, *args, **kwargs))

    async def write(
        self, work: Callable[Concatenate[AsyncConnection, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs the work and commits it."""
        return await self._repeat(self.writer, lambda connection: work(connection, *args, **kwargs))

    async def close(self) -> None:
        """Lets every connection go."""
        await self.writer.dispose()
        await self.reader.dispose()

    async def _repeat(self, engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Tries again only what cannot have been committed: a stale pooled connection, a deadlock's victim."""
        tries = TRIES
        while True:
            attempt = _Attempt()
            try:
                return await self._once(engine, work, attempt)
            except self._foreign as error:
                failure = self.translate(error)
                tries -= 1
                if attempt.committing or not failure.again or not tries:
                    raise failure.error from error

    async def _once(self, engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], attempt: _Attempt) -> T:
        async with asyncio.timeout(self._limit), engine.connect() as connection:
            result = await work(connection)
            if engine is self.writer:
                attempt.committing = True
                await connection.commit()
            return result

    def translate(self, error: BaseException) -> Failure:
        """What the error means."""
        if isinstance(error, PoolTimeout):
            return Failure(StoreUnavailable("The state store has no free connection."))
        if isinstance(error, TimeoutError):
            return Failure(StoreUnavailable("The state store did not answer in time."))
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return Failure(StoreUnavailable("The connection to the state store was lost."), again=True)
        return self._explain(error)
