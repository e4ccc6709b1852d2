"""Every example is started as its page says, and answers a turn through each of its listeners."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy import app, config
from proxy.config import Gateway
from proxy.demo.process import free_port
from tests import certificates
from tests.clients.gateway import running_scripted_backend
from tests.gateways import PATIENCE, ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
NAMES = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)

# As `vllm serve MODEL … --port N …`: a backend that listens there.
VLLM = """#!/bin/sh
while [ "$1" != --port ]; do shift; done
exec {python} -m tests.backend --port "$2"
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with running_scripted_backend() as url:
        yield url


@pytest.fixture
def surroundings(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What examples take from outside: variables, secrets, certificates, a `vllm` on the path."""
    certificates.make(tmp_path)
    (tmp_path / "backend-key").write_text("sk-backend\n")
    command = tmp_path / "vllm"
    command.write_text(VLLM.format(python=sys.executable))
    command.chmod(0o755)
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    monkeypatch.setenv("TLS_DIR", str(tmp_path))
    monkeypatch.setenv("SECRETS", str(tmp_path))
    for name in ("PAGES", "HANDBOOK"):
        monkeypatch.setenv(name, str(ROOT / "docs"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@NAMES
def test_it_is_valid_and_its_variables_are_the_ones_its_page_names(path: Path, surroundings: Path):
    app.blueprint(config.load(path))
    page = path.with_suffix(".md").read_text()
    assert page.startswith(f"# {path.stem}\n")
    assert f"\nrejoinder serve -c examples/{path.name}\n" in page
    for variable in re.findall(r"\$\{(\w+)", path.read_text()):
        assert variable in page


@NAMES
def test_it_starts_and_serves_a_turn_on_every_listener(path: Path, surroundings: Path, backend: str):
    data = moved(yaml.safe_load(path.read_text()), backend)
    here = surroundings / path.name
    here.write_text(yaml.safe_dump(data))
    gateway = config.load(here)
    command = [sys.executable, "-m", "proxy", "serve", "-c", str(here)]
    with (surroundings / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, cwd=surroundings)
    try:
        until_ready(gateway, process, surroundings / "log")
        for listener in gateway.listeners:
            url = f"{'https' if listener.tls else 'http'}://{listener.address.replace('0.0.0.0', '127.0.0.1')}"
            response = ask(f"{url}/v1/responses", {"model": "smollm2", "input": "Say hello."})
            assert response["status"] == "completed"
            assert ask(f"{url}/v1/responses/{response['id']}") == response
            again = ask(
                f"{url}/v1/responses", {"model": "smollm2", "input": "And?", "previous_response_id": response["id"]}
            )
            assert again["previous_response_id"] == response["id"]
    finally:
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 0


def moved(data: dict[str, Any], backend: str) -> dict[str, Any]:
    """The example with free ports and this test's backend in place of the well-known ones."""
    listeners = data.get("listeners") or [{}]
    for one in [*listeners, *([data["admin"]] if "admin" in data else [])]:
        host = one.get("address", "127.0.0.1:8080").rpartition(":")[0]
        one["address"] = f"{host}:{free_port()}"
    for one in data["backends"].values():
        if "vllm" in one:
            one["vllm"]["port"] = free_port()
        else:
            one["endpoints"] = [backend] * len(one["endpoints"])
    return {**data, "listeners": listeners}


def until_ready(gateway: Gateway, process: subprocess.Popen[bytes], log: Path) -> None:
    first = gateway.listeners[0]
    address = (gateway.admin or first).address.replace("0.0.0.0", "127.0.0.1")
    url = f"{'https' if first.tls and not gateway.admin else 'http'}://{address}/readyz"
    end = time.monotonic() + PATIENCE
    while True:
        try:
            ask(url)
            return
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)


def ask(url: str, body: Any = None) -> Any:
    """The JSON of a 200; the header of the owner does no harm where nobody looks at it."""
    headers = {"Content-Type": "application/json", "X-Rejoinder-Owner": "ann"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    trusted = ssl.create_default_context(cafile=f"{os.environ['TLS_DIR']}/tls.crt")
    with urllib.request.urlopen(request, timeout=PATIENCE, context=trusted) as answer:
        return json.load(answer)


def test_every_page_has_its_example():
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.md")) == [path.stem for path in EXAMPLES]
