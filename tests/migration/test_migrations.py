"""The migrations make exactly the tables that the code uses, once, however many replicas start."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.errors import ConfigError
from proxy.store import Store, schema
from proxy.store._tables import metadata

NEWEST = ScriptDirectory.from_config(schema.script()).get_current_head()


def create(url: str) -> Store:
    store: Store = import_module(f"proxy.store.{url.partition(':')[0]}").create(url)
    return store


def engine(url: str) -> AsyncEngine:
    made: AsyncEngine = import_module(f"proxy.store.{url.partition(':')[0]}").schema_engine(url)[0]
    return made


async def execute(url: str, statement: str) -> None:
    async with engine(url).begin() as connection:
        await connection.execute(text(statement))


def differences(connection: Connection) -> Any:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return compare_metadata(context, metadata)


async def test_the_migrations_make_the_tables_of_the_code(store_url: str) -> None:
    assert await schema.migrate(store_url) == NEWEST
    async with engine(store_url).connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_migrating_twice_is_migrating_once(store_url: str) -> None:
    assert await schema.migrate(store_url) == await schema.migrate(store_url) == NEWEST
    await opens(store_url)


async def opens(url: str) -> None:
    store = create(url)
    try:
        await store.open()
    finally:
        await store.close()


async def test_many_replicas_start_on_one_empty_database(store_url: str) -> None:
    await asyncio.gather(*(opens(store_url) for _ in range(8)))
    async with engine(store_url).connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_an_older_postgres_is_refused_and_the_command_named(postgres_url: str, older: str) -> None:
    await schema.migrate(postgres_url)
    await execute(postgres_url, f"UPDATE alembic_version SET version_num = '{older}'")
    with pytest.raises(ConfigError, match="rejoinder migrate"):
        await opens(postgres_url)


async def test_an_unknown_revision_is_refused(store_url: str) -> None:
    await schema.migrate(store_url)
    await execute(store_url, "UPDATE alembic_version SET version_num = '9999'")
    for attempt in (opens, schema.migrate):
        with pytest.raises(ConfigError, match="9999"):
            await attempt(store_url)


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> str:
    """The revision before the newest one; while there is only one, the newest is made to look like two."""
    scripts = ScriptDirectory.from_config(schema.script())
    revisions = [revision.revision for revision in scripts.walk_revisions()]
    if len(revisions) > 1:
        return revisions[1]
    monkeypatch.setattr(ScriptDirectory, "get_current_head", lambda _self: "0002")
    return revisions[0]


async def test_an_older_sqlite_file_is_upgraded(sqlite_url: str) -> None:
    await schema.migrate(sqlite_url)
    for table in metadata.tables:
        await execute(sqlite_url, f"DROP TABLE {table}")
    await execute(sqlite_url, "DELETE FROM alembic_version")  # as before the first revision
    await opens(sqlite_url)
    async with engine(sqlite_url).connect() as connection:
        assert await connection.run_sync(differences) == []
