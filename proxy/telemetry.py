"""Counters and log formats."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from functools import cache, lru_cache
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


def answered(kind: str, status: int) -> None:
    """Counts one request."""
    _requests(kind, status).inc()


@cache  # statuses and kinds are few
def _requests(kind: str, status: int) -> Counter:
    return REQUESTS.labels(kind, str(status))


class Access(NamedTuple):
    """What the access log says of a request."""

    method: str
    path: str
    status: int
    bytes: int
    ms: float
    request_id: str


class AccessLog:
    """One line for each request, in the shape of the other logs.

    `logging` takes as long for a line as the rest of the gateway for a request; here lines are made plainly, and a
    tenth of a second's are written together.
    """

    def __init__(self, format_: LogFormat, stream: IO[str] | None = None) -> None:
        self._line = _json_line if format_ == "json" else _text_line
        self._stream = stream
        self._on = logging.getLogger(_ACCESS).isEnabledFor(logging.INFO)
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, access: Access) -> None:
        """Takes a line."""
        if not self._on:
            return
        self._lines.append(self._line(_now(), access))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATE, self.flush)

    def flush(self) -> None:
        """Writes what is waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stream = self._stream or sys.stderr
        stream.write("".join(self._lines))
        self._lines.clear()
        stream.flush()


def _text_line(now: str, access: Access) -> str:
    method, path, status, size, ms, request_id = access
    return f"{now} INFO    {_ACCESS}: {method} {path} {status} {size} B {ms} ms {request_id}\n"


def _json_line(now: str, access: Access) -> str:
    method, path, status, size, ms, request_id = access
    message = f"{method} {path} {status} {size} B {ms} ms {request_id}"
    fields = {"time": now, "level": "INFO", "name": _ACCESS, "message": message, **access._asdict()}
    return msgspec.json.encode(fields).decode() + "\n"


def _now() -> str:
    """The time as `logging` spells it."""
    now = time.time()
    return f"{_second(int(now))},{int(now % 1 * 1e3):03d}"


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
