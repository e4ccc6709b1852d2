"""The schema's revision: an empty database is filled, an old one upgraded or refused, an unknown one refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Executable
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.errors import ConfigError, StoreUnavailable

# All replicas may start at once and wait for the one that creates the schema, but not for ever.
_LIMIT = 120.0
_BUSY_PAUSE = 0.05

_IN_WHEEL = Path(__file__).parent.parent / "_migrations"
_IN_REPOSITORY = Path(__file__).parent.parent.parent / "migrations"


def location() -> Path:
    """Where the migrations are: inside an installed wheel, else at the top of the repository."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_REPOSITORY


def script() -> Config:
    """Alembic's configuration; there is no alembic.ini to lose."""
    config = Config()
    config.set_main_option("script_location", str(location()).replace("%", "%%"))
    return config


def check_scheme(url: str, where: str) -> None:
    """Raises `ConfigError` where no backend is called like the URL's scheme."""
    scheme = url.partition("://")[0]
    if scheme not in ("sqlite", "postgresql"):
        raise ConfigError(f"{where}: '{scheme}': unknown scheme; known: sqlite, postgresql")


async def migrate(url: str) -> str:
    """Brings the database to the newest revision, and returns its name."""
    check_scheme(url, "store")
    backend = import_module(f"proxy.store.{url.partition(':')[0]}")
    engine, lock = backend.schema_engine(url)
    return await prepare(engine, lock, upgrade=True)


async def prepare(engine: AsyncEngine, lock: Executable | None, *, upgrade: bool) -> str:
    """Checks the revision, and creates the schema in an empty database; `upgrade` allows an older one to be changed."""
    try:
        async with asyncio.timeout(_LIMIT):
            return await _when_free(lambda: _prepare(engine, lock, upgrade))
    except TimeoutError as error:
        raise StoreUnavailable("The state store did not answer in time, or its schema is locked.") from error
    except (SQLAlchemyError, OSError) as error:
        raise StoreUnavailable(f"The state store cannot be opened: {_reason(error)}") from error
    finally:
        await engine.dispose()


def _reason(error: Exception) -> str:
    """The driver's own words, without SQLAlchemy's: no database, no role, a wrong password, no such folder."""
    cause = getattr(error, "orig", None) or error
    return str(cause.__cause__ or cause)


async def _when_free(attempt: Callable[[], Awaitable[str]]) -> str:
    """Repeats the attempt while SQLite is locked: a switch to WAL fails at once, whatever the busy timeout says."""
    while True:
        try:
            return await attempt()
        except OperationalError as error:
            if "database is locked" not in str(error.orig):
                raise
            await asyncio.sleep(_BUSY_PAUSE)


async def _prepare(engine: AsyncEngine, lock: Executable | None, upgrade: bool) -> str:
    async with engine.begin() as connection:
        if lock is not None:
            await connection.execute(lock)
        return await connection.run_sync(_bring_up, upgrade)


def _bring_up(connection: Connection, upgrade: bool) -> str:
    config = script()
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_current_head() or ""
    current = MigrationContext.configure(connection).get_current_revision()
    if current == newest:
        return newest
    if current is not None:
        _refuse(current, {revision.revision for revision in scripts.walk_revisions()}, upgrade)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return newest


def _refuse(current: str, known: set[str], upgrade: bool) -> None:
    if current not in known:
        raise ConfigError(
            f"store: the database has schema revision {current}, which this version does not know; use a newer version"
        )
    if not upgrade:
        raise ConfigError(
            f"store: the database has the older schema revision {current}; bring it up to date with 'rejoinder migrate'"
        )
