"""What the two databases spell differently: their clock, and the lock that one sweeper holds."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Now(FunctionElement[float]):
    """The database's clock, in seconds since the epoch; replicas need not agree on theirs."""

    type = Double()
    inherit_cache = True


class SweeperLock(FunctionElement[bool]):
    """True for the one transaction that may sweep; SQLite admits only one writer anyway."""

    type = Boolean()
    inherit_cache = True


@compiles(Now, "postgresql")
def _now_postgresql(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(Now, "sqlite")
def _now_sqlite(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"  # unixepoch('subsec') needs SQLite 3.42


@compiles(SweeperLock, "postgresql")
def _lock_postgresql(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "pg_try_advisory_xact_lock(7306354201)"


@compiles(SweeperLock, "sqlite")
def _lock_sqlite(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "1"
