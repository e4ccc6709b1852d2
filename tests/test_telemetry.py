"""The access log and the counters: in batches, and as if they were not."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time

import pytest
from pythonjsonlogger.json import JsonFormatter

from proxy import telemetry
from proxy.telemetry import REQUESTS, Access, AccessLog, LogFormat, answered, settle

ODD = Access(1700000000.0009, "GET", '/v1/"x"\\é', 404, 0, 0.00004, "req_1")
LINES = [
    Access(1700000000.9999, "POST", "/v1/responses", 200, 1234, 1.23456, "req_2"),
    ODD,
    Access(1700000001.5, "DELETE", "/v1/responses/resp_1", 200, 7, 61.05, "req_3"),
    Access(1699999999.0, "OPTIONS", "*", 0, 0, 0.0, "req_4"),
]


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("rejoinder.access")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]


def by_logging(access: Access, format_: LogFormat, monkeypatch: pytest.MonkeyPatch) -> str:
    """The line that `logging` makes of it, with the gateway's own formatters."""
    monkeypatch.setattr(logging, "basicConfig", lambda **options: handlers.extend(options["handlers"]))
    handlers: list[logging.Handler] = []
    telemetry.configure_logging("info", format_)
    ms = round(access.seconds * 1e3, 1)
    message = f"{access.method} {access.path} {access.status} {access.bytes} B {ms:.1f} ms {access.request_id}"
    record = logging.LogRecord("rejoinder.access", logging.INFO, __file__, 1, message, None, None)
    record.created = access.at
    record.msecs = int((access.at - int(access.at)) * 1000) + 0.0
    if format_ == "json":
        parts = access._asdict()
        extra = {key: parts[key] for key in ("method", "path", "status", "bytes", "request_id")}
        record.__dict__.update(extra, ms=ms)
        assert isinstance(handlers[0].formatter, JsonFormatter)
    return handlers[0].format(record)


@pytest.mark.parametrize("format_", ["text", "json"])
async def test_a_line_is_the_one_that_logging_would_have_written(format_: LogFormat, monkeypatch: pytest.MonkeyPatch):
    stream = io.StringIO()
    log = AccessLog(format_, stream)
    for access in LINES:
        log.add(access)
    log.flush()
    lines = stream.getvalue().splitlines()
    wanted = [by_logging(access, format_, monkeypatch) for access in LINES]
    if format_ == "json":
        assert [json.loads(line) for line in lines] == [json.loads(line) for line in wanted]
    else:
        assert lines == wanted


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
async def test_the_time_is_local_as_loggings_is(zone: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    telemetry._second.cache_clear()
    try:
        assert telemetry._text_line(ODD).rstrip() == by_logging(ODD, "text", monkeypatch)
    finally:
        monkeypatch.undo()
        time.tzset()
        telemetry._second.cache_clear()


async def test_lines_wait_for_others_but_not_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(telemetry, "_LATE", 0.01)
    stream = io.StringIO()
    log = AccessLog("text", stream)
    for _ in range(2):
        before = stream.getvalue()
        for access in LINES:
            log.add(access)
        assert stream.getvalue() == before
        await asyncio.sleep(0.05)
        assert stream.getvalue().count("\n") == before.count("\n") + len(LINES)
        assert log._timer is None
    log.flush()
    assert stream.getvalue().count("\n") == 2 * len(LINES)


async def test_the_last_lines_are_written_at_once_and_no_timer_stays():
    stream = io.StringIO()
    log = AccessLog("text", stream)
    log.add(ODD)
    timer = log._timer
    log.flush()
    assert stream.getvalue().count("\n") == 1
    assert timer is not None
    assert timer.cancelled()


class Full(io.StringIO):
    """A stream that takes nothing for a while."""

    broken: Exception | None = BlockingIOError()

    def write(self, text: str) -> int:
        if self.broken is not None:
            raise self.broken
        return super().write(text)


@pytest.mark.parametrize("error", [BlockingIOError(), BrokenPipeError(), ValueError("I/O operation on closed file")])
async def test_lines_that_nobody_takes_are_not_kept(error: Exception):
    stream = Full()
    stream.broken = error
    log = AccessLog("text", stream)
    for _ in range(10):
        log.add(ODD)
        log.flush()
    assert log._waiting == []
    stream.broken = None
    log.add(ODD)
    log.flush()
    assert stream.getvalue().count("\n") == 1


async def test_where_the_level_is_higher_nothing_is_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger("rejoinder.access"), "level", logging.WARNING)
    logging.getLogger("rejoinder.access").manager._clear_cache()  # type: ignore[attr-defined]
    stream = io.StringIO()
    log = AccessLog("text", stream)
    log.add(ODD)
    assert log._timer is None
    log.flush()
    assert stream.getvalue() == ""


def count(kind: str, status: str) -> float:
    return sum(
        sample.value
        for metric in REQUESTS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels == {"kind": kind, "status": status}
    )


def test_settling_counts_each_request_once():
    settle()
    before = count("test", "200"), count("test", "503")
    for _ in range(5):
        answered("test", 200)
    answered("test", 503)
    assert (count("test", "200"), count("test", "503")) == before
    settle()
    settle()
    assert (count("test", "200"), count("test", "503")) == (before[0] + 5, before[1] + 1)
    answered("test", 200)
    settle()
    assert count("test", "200") == before[0] + 6
    assert telemetry._answered == {}
