"""`rejoinder demo` with a backend that is already there, and the parts that bring one up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.demo import process, vllm
from proxy.demo.process import Child, DemoError, free_port, run_step
from tests.clients.gateway import ROOT


def demo(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "proxy", "demo", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def accepts(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_it_shows_every_step_and_ends(backend_url: str) -> None:
    port = free_port()
    with demo("--backend", backend_url, "--port", str(port), "--no-wait") as running:
        output, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
    assert "I got 1 items; the last user said: What is the capital of France?" in output
    assert "I got 3 items; the last user said: And of Norway?" in output
    assert "I got 5 items; the last user said: And of Sweden?" in output
    assert "The conversation now holds 6 items." in output
    assert "GET now answers 404" in output
    assert f"curl -s http://127.0.0.1:{port}/v1/responses" in output
    assert not accepts(port)


def test_it_waits_and_stops_everything_on_ctrl_c(backend_url: str) -> None:
    port = free_port()
    with demo("--backend", backend_url, "--port", str(port)) as running:
        assert running.stdout is not None
        assert any("until Ctrl-C" in line for line in running.stdout)
        assert accepts(port)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 0
    assert not accepts(port)


def test_a_port_in_use_is_named(backend_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with demo("--backend", backend_url, "--port", port, "--no-wait") as running:
            output, errors = running.communicate(timeout=60)
    assert (running.returncode, output) == (1, "")
    assert errors == f"rejoinder demo: port {port} is already in use; choose another with --port\n"


def test_a_backend_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with demo("--backend", url, "--port", str(free_port()), "--no-wait") as running:
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert errors.startswith(f"rejoinder demo: {url}/v1/models does not name a model")


def test_only_a_complete_installation_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed one shows the end of its log and is done again; a complete one is not."""
    ran: list[str] = []

    def steps(code: str) -> None:
        command = [sys.executable, "-c", f"print('the reason'); {code}"]

        def planned(installation: vllm.Installation) -> list[tuple[str, list[str]]]:
            ran.append(code)
            return [("a step", command)]

        monkeypatch.setattr(vllm, "steps", planned)

    python = vllm.Installation(tmp_path).python
    steps("raise SystemExit(3)")
    with pytest.raises(DemoError, match=r"(?s)a step failed with code 3.*the reason"):
        vllm.install(tmp_path, lambda line: None)
    assert not vllm.Installation(tmp_path).complete
    works = f"import pathlib; p = pathlib.Path({str(python)!r}); p.parent.mkdir(parents=True); p.touch()"
    steps(works)
    assert vllm.install(tmp_path, lambda line: None).complete
    vllm.install(tmp_path, lambda line: None)
    assert ran.count(works) == 1


def test_a_long_step_says_how_long_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROGRESS_SECONDS", 0.0)
    said: list[str] = []
    release = tmp_path / "release"

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            release.touch()

    waits = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.01)"
    run_step("the step", [sys.executable, "-c", waits], tmp_path / "log", say)
    assert [said[0], said[1].split(":")[0], said[-1].split(" (")[0]] == ["… the step", "… the step", "✓ the step"]


def test_stopping_a_child_stops_what_it_started(tmp_path: Path) -> None:
    """A grandchild that ignores the request to end is killed with its group."""
    grandchild = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    log = tmp_path / "log"
    child = Child("a parent", [sys.executable, "-c", parent], log)
    wait_until(lambda: log.read_text().endswith("\n"))
    child.stop()
    wait_until(lambda: ended(int(log.read_text())))


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def ended(pid: int) -> bool:
    """Gone, or a zombie that only waits to be collected by whoever inherited it."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"
