"""Counters and log formats."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from functools import lru_cache
from typing import IO, Literal, NamedTuple

import msgspec
from prometheus_client import Counter, Gauge, Histogram
from pythonjsonlogger.json import JsonFormatter

REQUESTS = Counter("rejoinder_requests_total", "Requests answered.", ["kind", "status"])
OPEN_STREAMS = Gauge("rejoinder_open_streams", "Event streams being sent.", multiprocess_mode="livesum")
FIRST_EVENT = Histogram("rejoinder_first_event_seconds", "From a request's arrival to the first event of its stream.")
UPSTREAM_ERRORS = Counter("rejoinder_upstream_errors_total", "Backend failures by code.", ["code"])
STORE_SKIPPED = Counter("rejoinder_store_skipped_total", "Answers that went out unstored (failure_mode: open).")
REPAIRS = Counter("rejoinder_repairs_total", "Repairs made, by name.", ["repair"])

LogFormat = Literal["json", "text"]

_ACCESS = "rejoinder.access"
_LATE = 0.1  # seconds that a line of the access log may wait for others

_answered: dict[tuple[str, int], int] = {}


def answered(kind: str, status: int) -> None:
    """Counts one request; `settle` tells the metrics."""
    key = kind, status
    _answered[key] = _answered.get(key, 0) + 1


def settle() -> None:
    """Brings the metrics up to date: a counter of theirs takes a lock, and a dozen calls, for each increment."""
    for kind, status in list(_answered):
        REQUESTS.labels(kind, str(status)).inc(_answered.pop((kind, status)))


class Access(NamedTuple):
    """What the access log says of a request."""

    at: float  # seconds since the epoch
    method: str
    path: str
    status: int
    bytes: int
    seconds: float
    request_id: str


class AccessLog:
    """One line for each request, in the shape of the other logs.

    `logging` takes as long for a line as the rest of the gateway for a request; here a tenth of a second's lines are
    made and written together.
    """

    def __init__(self, format_: LogFormat, stream: IO[str] | None = None) -> None:
        self._line = _json_line if format_ == "json" else _text_line
        self._stream = stream
        self._on = logging.getLogger(_ACCESS).isEnabledFor(logging.INFO)
        self._waiting: list[Access] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, access: Access) -> None:
        """Takes a line."""
        if self._on:
            self._waiting.append(access)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_LATE, self.flush)

    def flush(self) -> None:
        """Writes what is waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        stream = self._stream or sys.stderr
        with contextlib.suppress(OSError, ValueError):  # nobody takes it: no reason to keep it, and nowhere to say so
            stream.write("".join([self._line(access) for access in waiting]))
            stream.flush()


def _message(access: Access) -> str:
    _, method, path, status, size, seconds, request_id = access
    return f"{method} {path} {status} {size} B {seconds * 1e3:.1f} ms {request_id}"


def _time(at: float) -> str:
    """The time as `logging` spells it."""
    return f"{_second(int(at))},{int(at % 1 * 1e3):03d}"


def _text_line(access: Access) -> str:
    return f"{_time(access.at)} INFO    {_ACCESS}: {_message(access)}\n"


def _json_line(access: Access) -> str:
    fields = {
        "time": _time(access.at),
        "level": "INFO",
        "name": _ACCESS,
        "message": _message(access),
        "method": access.method,
        "path": access.path,
        "status": access.status,
        "bytes": access.bytes,
        "ms": round(access.seconds * 1e3, 1),
        "request_id": access.request_id,
    }
    return msgspec.json.encode(fields).decode() + "\n"


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


def configure_logging(level: str, format_: LogFormat) -> None:
    """Sends all logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if format_ == "json":
        fields = "%(asctime)s %(levelname)s %(name)s %(message)s"
        handler.setFormatter(JsonFormatter(fields, rename_fields={"asctime": "time", "levelname": "level"}))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells every start what it found
