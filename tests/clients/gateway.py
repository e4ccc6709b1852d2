"""The gateway as a process, as its users start it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proxy.demo.process import Child, Progress, free_port, tail, wait_until_answers

ROOT = Path(__file__).parents[2]
START_LIMIT = 30.0


@dataclass(frozen=True)
class Gateway:
    url: str
    store: Path
    log: Path

    def said(self) -> str:
        return tail(self.log)


@contextlib.contextmanager
def running_gateway(backend: str, folder: Path, config: Path | None = None) -> Iterator[Gateway]:
    port = free_port()
    url, store = f"http://127.0.0.1:{port}", folder / "gateway.db"
    command = [sys.executable, "-m", "proxy", "serve", *(["-c", str(config)] if config else []), "--backend", backend]
    command += ["--store", f"sqlite:///{store}", "--port", str(port)]
    child = Child("the gateway", command, folder / "gateway.log", cwd=ROOT)
    try:
        wait_until_answers(child, f"{url}/readyz", Progress(lambda line: None, "gateway"), START_LIMIT)
        yield Gateway(url, store, folder / "gateway.log")
        child.require_running()
    finally:
        child.stop()


@contextlib.contextmanager
def running_scripted_backend(*flags: str) -> Iterator[str]:
    """The scripted backend in its own process."""
    command = [sys.executable, "-m", "tests.backend", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
