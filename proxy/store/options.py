"""The limits of a store, each with the default it has when nobody sets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What an operator may set about a store; all times are in seconds."""

    pool_size: int = 10
    acquire_timeout: float = 5.0  # for a connection out of the pool, or a new one
    statement_timeout: float = 10.0  # for one operation, from its first statement to its commit
    busy_timeout: float = 5.0  # SQLite: for the lock that another process holds
    group_limit: int = 64  # turns that share one transaction
    max_event_bytes: int = 16 * 1024 * 1024  # a longer event log is not stored
    prepared_statements: bool = True  # False behind a pooler that hands each transaction to another connection
