"""The command line: what it prints, and with which status it ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from proxy.__main__ import main
from proxy.demo.process import free_port
from tests.gateways import ROOT, serving

GOOD = "backends: {main: {endpoints: ['http://127.0.0.1:8000']}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD)
    return path


def rejoinder(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], catch_exceptions=False)


def test_the_version_is_the_packages():
    assert version("rejoinder") in rejoinder("--version").output


def test_without_a_command_it_lists_them():
    said = rejoinder("--help").output
    for command in ("serve", "check", "schema", "migrate", "demo"):
        assert f"  {command} " in said


# check


def test_check_shows_what_would_be_served(file: Path):
    checked = rejoinder("check", file)
    assert checked.exit_code == 0
    assert checked.stdout.splitlines() == [
        "listening  http://127.0.0.1:8080 (1 worker)",
        "chain      owner > validate > response_store > rehydrate > mcp_tools > agentic_loop > repair > upstream",
        "backend    main = http://127.0.0.1:8000",
        "store      sqlite:///rejoinder.db",
        "health     with the listener: /healthz /readyz /metrics",
        "ok",
    ]


def test_check_shows_no_password(file: Path):
    file.write_text(GOOD + "store: {url: 'postgresql://u:hunter2@db/x'}\n")
    checked = rejoinder("check", file)
    assert "hunter2" not in checked.output
    assert "postgresql://u:***@db/x" in checked.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "wrokers: 2\n", "wrokers: unknown key; known: listeners"),
        (GOOD + "store: {url: 'mysql://h/db'}\n", "store.url: 'mysql': unknown scheme; known: sqlite, postgresql"),
        (GOOD + "listeners: [{chain: other}]\n", "listeners: chain: 'other': unknown chain; known: default"),
        (GOOD + "chains: {default: []}\n", "chains.default: must end with 'upstream', and hold it once"),
        (GOOD + "chains: {default: [{filter: owner}]}\n", "chains.default: must end with 'upstream'"),
        (
            GOOD + "chains: {default: [{filter: upstream}, {filter: upstream}]}\n",
            "chains.default: must end with 'upstream', and hold it once",
        ),
        (
            GOOD + "chains: {spare: [{filter: rehydrate}, {filter: owner}, {filter: upstream}]}\n",
            "chains.spare[0].filter: 'rehydrate' must come after owner",
        ),
        (
            GOOD + "chains: {default: [{filter: nope}, {filter: upstream}]}\n",
            "chains.default[0].filter: 'nope': unknown filter",
        ),
        (
            GOOD + "chains: {default: [{filter: upstream, backend: other}]}\n",
            "chains.default[0].backend: 'other': unknown backend; known: main",
        ),
        (
            "backends: {a: {endpoints: ['http://a']}, b: {endpoints: ['http://b']}}\n",
            "chains.default[7].backend: is missing; known: a, b",
        ),
        (
            GOOD + "chains: {default: [{filter: mcp_tools}, {filter: upstream}]}\n",
            "chains.default[0].filter: 'mcp_tools' does nothing without agentic_loop",
        ),
        (GOOD + "listeners: [{address: 'h:0'}]\n", "listeners[0].address: 'h:0': must be HOST:PORT"),
        (GOOD + "admin: {address: '127.0.0.1:8080'}\n", "address: '127.0.0.1:8080' is there twice"),
        (
            GOOD + "listeners: [{tls: {cert_file: /no.pem, key_file: /no.key}}]\n",
            "listeners[0].tls: the certificate or key cannot be used: [Errno 2]",
        ),
        (
            GOOD + "chains: {default: [{filter: ../x}, {filter: upstream}]}\n",
            "chains.default[0].filter: '../x': unknown filter",
        ),
        (
            'backends: {main: {endpoints: ["http://a"], credentials: {api_key: "a\\nX-Evil: 1"}}}\n',
            "backends.main.credentials.api_key: must be visible ASCII characters without spaces",
        ),
        (
            'backends: {main: {endpoints: ["http://me:hush@a"]}}\n',
            "backends.main.endpoints[0]",
        ),
    ],
)
def test_a_mistake_ends_check_with_its_message_and_status_2(file: Path, text: str, message: str):
    file.write_text(text)
    checked = rejoinder("check", file)
    assert checked.exit_code == 2
    assert message in checked.stderr
    assert checked.stdout == ""


def test_a_file_that_is_not_there_ends_check_with_status_2(tmp_path: Path):
    checked = rejoinder("check", tmp_path / "gone.yaml")
    assert checked.exit_code == 2
    assert "gone.yaml" in checked.stderr


# schema, reference, migrate


def test_schema_prints_a_json_schema():
    assert json.loads(rejoinder("schema").stdout)["title"] == "Rejoinder configuration"


def test_reference_prints_a_page():
    assert rejoinder("reference").stdout.startswith("# Configuration\n")


def test_migrate_brings_an_empty_store_up_to_date(store_url: str):
    migrated = rejoinder("migrate", "--store", store_url)
    assert migrated.exit_code == 0
    assert migrated.stdout.startswith("schema is at revision ")


def test_migrate_says_what_is_wrong(tmp_path: Path):
    failed = rejoinder("migrate", "--store", f"sqlite:///{tmp_path}/no/such/folder/x.db")
    assert failed.exit_code == 1
    assert failed.stderr.startswith("store: ")


# serve


def test_serve_needs_a_backend():
    refused = rejoinder("serve")
    assert refused.exit_code == 2
    assert refused.stderr == "name a backend: --backend http://host:8000, or 'backends' in a file given with -c\n"


@pytest.mark.parametrize("flags", [["--backend", "host:8000"], ["--backend", "http://a", "--store", "mysql://x"]])
def test_serve_refuses_flags_that_cannot_work(flags: list[str]):
    refused = rejoinder("serve", *flags)
    assert refused.exit_code == 2
    assert "host:8000" in refused.stderr or "unknown scheme" in refused.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_says_when_its_port_is_taken(workers: str, sqlite_url: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "proxy", "serve", "--backend", "http://127.0.0.1:1", "--port", str(port)]
        command += ["--store", sqlite_url, "--workers", workers]
        refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert refused.returncode == 2
    assert refused.stderr == f"cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_serve_says_when_its_store_cannot_be_opened(tmp_path: Path):
    command = [sys.executable, "-m", "proxy", "serve", "--backend", "http://127.0.0.1:1", "--port", str(free_port())]
    command += ["--store", f"sqlite:///{tmp_path}/no/such/folder/x.db"]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("store: ")
    assert "Traceback" not in refused.stderr


def test_serve_prints_five_lines_and_ends_with_status_0(tmp_path: Path, sqlite_url: str):
    with serving("--backend", "http://127.0.0.1:1", "--store", sqlite_url, folder=tmp_path) as gateway:
        address = gateway.url.removeprefix("http://")
        assert gateway.said().splitlines()[:5] == [
            f"listening  http://{address} (1 worker)",
            "chain      owner > validate > response_store > rehydrate > mcp_tools > agentic_loop > repair > upstream",
            "backend    default = http://127.0.0.1:1",
            f"store      {sqlite_url}",
            "health     with the listener: /healthz /readyz /metrics",
        ]
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said()


def test_flags_change_what_the_file_says(file: Path, tmp_path: Path, sqlite_url: str):
    with serving("-c", str(file), "--store", sqlite_url, "--host", "localhost", folder=tmp_path) as gateway:
        assert gateway.said().startswith("listening  http://localhost:")
        assert "backend    main = http://127.0.0.1:8000" in gateway.said()


@pytest.mark.parametrize("command", [["migrate", "--store"], ["serve", "--backend", "http://127.0.0.1:1", "--store"]])
def test_a_store_of_an_unknown_kind_is_named(command: list[str]):
    failed = rejoinder(*command, "mysql://me@here/state")
    assert failed.exit_code == 2
    assert "'mysql': unknown scheme; known: sqlite, postgresql" in failed.stderr


def test_workers_are_not_started_over_a_store_that_cannot_be_used(tmp_path: Path):
    flags = ["--backend", "http://127.0.0.1:1", "--workers", "2", "--port", str(free_port())]
    store = f"sqlite:///{tmp_path}/no/such/folder/x.db"
    command = [sys.executable, "-m", "proxy", "serve", *flags, "--store", store]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 1
    assert "cannot be opened" in failed.stderr
    assert "Traceback" not in failed.stderr
