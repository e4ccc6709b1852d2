"""Children of the demo: each leads its own process group, so that stopping one stops all it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TAIL_LINES = 25
PROGRESS_SECONDS = 5.0
Say = Callable[[str], None]


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class DemoError(Exception):
    """The demo cannot go on; the text is for the person who watches."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def require_free(port: int) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as taken:
            raise DemoError(f"port {port} is already in use; choose another with --port") from taken


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


class Progress:
    """Says how long a step has taken, every few seconds and at its end."""

    def __init__(self, say: Say, step: str) -> None:
        self._say = say
        self._step = step
        self._began = self._said = time.monotonic()
        say(f"… {step}")

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECONDS:
            self._said = now
            self._say(f"… {self._step}: {now - self._began:.0f} s")

    def done(self) -> None:
        self._say(f"✓ {self._step} ({time.monotonic() - self._began:.1f} s)")


class Child:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd,
                env={**os.environ, **(env or {})}, start_new_session=True,
            )  # fmt: skip

    def require_running(self) -> None:
        if (code := self._process.poll()) is not None:
            raise DemoError(f"{self.name} ended with code {code}; the end of {self.log}:\n{tail(self.log)}")

    def stop(self, patience: float = 15.0) -> None:
        """Asks the child, which stops its own; what is left of the group after that is killed."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self, progress: Progress) -> int:
        while True:
            try:
                return self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                progress.tick()


def run_step(name: str, command: Sequence[str], log: Path, say: Say, *, cwd: Path | None = None) -> None:
    """Runs one long command with its output in a log, whose end is shown if it fails."""
    progress = Progress(say, name)
    child = Child(name, command, log, cwd=cwd)
    try:
        code = child.wait(progress)
    finally:
        child.stop()
    if code:
        raise DemoError(f"{name} failed with code {code}; the end of {log}:\n{tail(log)}")
    progress.done()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as response:  # noqa: S310  # a child's own http:// address
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def wait_until_answers(child: Child, url: str, progress: Progress, limit: float) -> None:
    end = time.monotonic() + limit
    while not answers(url):
        child.require_running()
        if time.monotonic() > end:
            raise DemoError(f"{child.name} did not answer at {url} within {limit:.0f} s; the end of {child.log}:\n"
                            f"{tail(child.log)}")  # fmt: skip
        progress.tick()
        time.sleep(0.2)
    progress.done()
