"""A vLLM that the gateway starts beside itself: watched, brought back when it ends, stopped after the last request."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
import urllib.request
from urllib.error import URLError

from proxy.config.shape import VLLM
from proxy.errors import ConfigError

log = logging.getLogger("rejoinder.vllm")

_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 30.0
_LONGEST_PAUSE = 60.0


class Supervisor:
    """Runs `vllm serve`, in a thread of its own and the child in a process group of its own."""

    def __init__(self, options: VLLM) -> None:
        self._options = options
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vllm-supervisor", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = 1.0

    @property
    def command(self) -> list[str]:
        """What is run."""
        options = self._options
        return [*options.command, options.model, "--host", "127.0.0.1", "--port", str(options.port), *options.args]

    def start(self) -> None:
        """Starts it; returns at once. Raises `ConfigError` when there is no such command."""
        self._spawn()
        self._thread.start()

    def stop(self) -> None:
        """Ends it: asked first, killed after half a minute."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._end()

    def _spawn(self) -> None:
        try:
            # Its output goes where the gateway's own goes; a group of its own keeps the terminal's Ctrl-C from it.
            self._process = subprocess.Popen(self.command, start_new_session=True, stdin=subprocess.DEVNULL)  # noqa: S603  # the operator's own command
        except OSError as error:
            raise ConfigError(f"cannot start {self._options.command[0]}: {error.strerror or error}") from error
        log.info("vllm started as process %d", self._process.pid)

    def _run(self) -> None:
        while not self._stopping.is_set():
            status = self._watch()
            if self._stopping.is_set():
                return
            log.error("vllm ended with status %s; it will be started again in %g seconds", status, self._pause)
            self._end()
            self._stopping.wait(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            if not self._stopping.is_set():
                self._spawn()

    def _watch(self) -> int | str | None:
        """Returns when the child has ended, did not become healthy in time, or shall stop."""
        process, deadline = self._process, time.monotonic() + self._options.start_timeout_seconds
        healthy = False
        while process is not None and process.poll() is None and not self._stopping.wait(_LOOK_SECONDS):
            if not healthy and self._healthy():
                healthy, self._pause = True, 1.0
                log.info("vllm is ready")
            if not healthy and time.monotonic() > deadline:
                return "not healthy in time"
        return process.returncode if process is not None else None

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._options.port}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("vllm did not stop within %g seconds", _GRACE_SECONDS)
        # Its engine processes may have outlived it; they hold the port and the GPU.
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        log.debug("vllm's processes are gone already")
