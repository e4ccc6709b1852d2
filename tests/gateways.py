"""The gateway as a process, for tests of what only a process shows."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from proxy.demo.process import answers, free_port

ROOT = Path(__file__).parents[1]
PATIENCE = 40.0  # seconds for a start or an end; a failure only


@dataclass(frozen=True)
class Running:
    """A gateway that answers."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def started(self) -> None:
        """Waits until it is ready; fails with what it said if it ends instead."""
        end = time.monotonic() + PATIENCE
        while not answers(f"{self.url}/readyz"):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        """What it wrote to its standard error so far."""
        return self.log.read_text()

    def stop(self) -> int:
        """Asks it to end, and returns its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE)


@contextlib.contextmanager
def serving(*args: str, folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """`rejoinder serve ARGS` on a free port of 127.0.0.1."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "proxy", "serve", "--port", str(port), *args]
    log = folder / "gateway.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors, cwd=ROOT, env={**os.environ, **(env or {})})
    gateway = Running(url, process, log)
    try:
        gateway.started()
        yield gateway
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=PATIENCE)
