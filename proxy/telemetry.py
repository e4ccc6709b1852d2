"""Counters and log formats."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from prometheus_client import Counter, Gauge, Histogram
from pythonjsonlogger.json import JsonFormatter

REQUESTS = Counter("rejoinder_requests_total", "Requests answered.", ["kind", "status"])
OPEN_STREAMS = Gauge("rejoinder_open_streams", "Event streams being sent.", multiprocess_mode="livesum")
FIRST_EVENT = Histogram("rejoinder_first_event_seconds", "From a request's arrival to the first event of its stream.")
UPSTREAM_ERRORS = Counter("rejoinder_upstream_errors_total", "Backend failures by code.", ["code"])
STORE_SKIPPED = Counter("rejoinder_store_skipped_total", "Answers that went out unstored (failure_mode: open).")
REPAIRS = Counter("rejoinder_repairs_total", "Repairs made, by name.", ["repair"])

LogFormat = Literal["json", "text"]


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
