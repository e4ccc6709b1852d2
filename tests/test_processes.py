"""Several workers behind one port: they share the work, the dead come back, and all end together."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.gateway import running_scripted_backend
from tests.gateways import Running, serving

PATIENCE = 30.0  # seconds; a failure only


@pytest.fixture
def gateway(postgres_url: str, tmp_path: Path) -> Iterator[Running]:
    """Two workers over one Postgres, before a backend that takes its time over each token."""
    with running_scripted_backend("--token-seconds", "0.01") as backend:
        flags = ["--backend", backend, "--store", postgres_url, "--workers", "2"]
        with serving(*flags, folder=tmp_path, env={"TMPDIR": str(tmp_path)}) as gateway:
            yield gateway


def ask(gateway: Running, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """One request on a fresh connection."""
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=PATIENCE)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def create(gateway: Running, **members: Any) -> Any:
    status, body = ask(gateway, "POST", "/v1/responses", {"model": "smollm2", "input": "Say hello.", **members})
    assert status == 200, body
    return json.loads(body)


def workers(gateway: Running) -> set[int]:
    """The processes that serve, less multiprocessing's own helper."""
    listed = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    return {int(pid) for pid in listed if b"spawn_main" in command(int(pid))}


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def until(true: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def metric(gateway: Running, name: str, **labels: str) -> float:
    text = ask(gateway, "GET", "/metrics")[1].decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


def answered_by(pid: int, folder: Path) -> float:
    """The turns that one worker counted."""
    return counted(folder, f"counter_{pid}.db", "rejoinder_requests_total", '"turn"')


def counted(folder: Path, file: str, *names: str) -> float:
    """What one worker's own file of metrics says."""
    (path,) = folder.glob(f"rejoinder-metrics-*/{file}")
    values = MmapedDict.read_all_values_from_file(str(path))
    return sum(value for key, value, *_ in values if all(name in key for name in names))


def test_both_workers_answer_share_the_state_and_are_counted_together(gateway: Running, tmp_path: Path):
    asked = 0
    previous = create(gateway)["id"]
    asked += 1
    pids = workers(gateway)
    assert len(pids) == 2
    while asked < 20 or any(answered_by(pid, tmp_path) == 0 for pid in pids):
        assert asked < 500, "one worker gets nothing to do"
        previous = (
            create(gateway, previous_response_id=previous, max_output_tokens=16)["id"]
            if asked < 20
            else create(gateway)["id"]
        )
        asked += 1
    until(lambda: sum(answered_by(pid, tmp_path) for pid in pids) == asked, "turns are not counted")
    for _ in range(10):  # whichever worker is asked
        assert metric(gateway, "rejoinder_requests_total", kind="turn", status="200") == asked


def test_a_worker_that_is_killed_comes_back_and_its_streams_are_not_counted_for_ever(gateway: Running, tmp_path: Path):
    kept = create(gateway)["id"]
    before = workers(gateway)
    streams = [threading.Thread(target=stream_until_cut, args=(gateway,)) for _ in range(4)]
    for thread in streams:
        thread.start()
    until(lambda: busy(before, tmp_path), "no stream began")
    victim = busy(before, tmp_path)[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in workers(gateway) and len(workers(gateway)) == 2, "no worker took its place")
    assert workers(gateway) > before - {victim}
    for thread in streams:
        thread.join(PATIENCE)
    until(lambda: metric(gateway, "rejoinder_open_streams") == 0, "a dead worker's streams are still counted")
    for _ in range(20):
        assert ask(gateway, "GET", f"/v1/responses/{kept}")[0] == 200
    assert "ended with status -9; it will be brought back" in gateway.said()


def busy(pids: set[int], folder: Path) -> list[int]:
    """The workers that are sending a stream."""
    return [pid for pid in pids if counted(folder, f"gauge_livesum_{pid}.db", "rejoinder_open_streams") > 0]


def stream_until_cut(gateway: Running) -> None:
    body = {"model": "smollm2", "input": "Count.", "stream": True, "max_output_tokens": 300}
    try:
        ask(gateway, "POST", "/v1/responses", body)
    except (http.client.HTTPException, ConnectionError):
        return  # it was the killed worker's


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_them_all_and_leaves_nothing(gateway: Running, tmp_path: Path, number: signal.Signals):
    pids = workers(gateway)
    listed = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    gateway.process.send_signal(number)
    assert gateway.process.wait(timeout=PATIENCE) == 0
    until(lambda: not any(command(int(pid)) for pid in listed), "a child outlived the gateway")
    assert pids <= {int(pid) for pid in listed}
    assert list(tmp_path.glob("rejoinder-metrics-*")) == []
    assert "Traceback" not in gateway.said()
    with pytest.raises(ConnectionRefusedError):
        ask(gateway, "GET", "/healthz")


def test_workers_do_not_outlive_a_supervisor_that_is_killed(gateway: Running):
    serving_now = workers(gateway)
    assert len(serving_now) == 2
    os.kill(gateway.process.pid, signal.SIGKILL)
    gateway.process.wait()
    until(lambda: not any(b"spawn_main" in command(pid) for pid in serving_now), "the workers live on")
