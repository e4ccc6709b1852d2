"""The processes of a benchmark: to start and end them, and what the kernel says of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 30.0  # seconds for a start or an end


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, ready: Callable[[], bool], user: int | None = None) -> Iterator[int]:
    """A process that is ready, as its id; whole it ends, with all that it started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd="/" if user else ROOT, user=user, start_new_session=True
        )
    try:
        _wait(process, log, ready)
        yield process.pid
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > limit:
            raise SystemExit(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


def family(root: int) -> list[int]:
    """A process and all its descendants."""
    found = [root]
    for pid in found:  # which grows
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds(root: int) -> float:
    """The processor time that a family has used."""
    ticks = 0
    for pid in family(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_kib(root: int) -> int:
    """The memory that a family has in use."""
    pages = 0
    for pid in family(root):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
