"""A mistake in the YAML is told with its path, the value, and what would do; a secret never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.config import Gateway, load, parse
from proxy.errors import ConfigError

GOOD = "backends: {main: {endpoints: ['http://127.0.0.1:8000']}}\n"


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "gateway.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def told(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.replace(str(path), "FILE")


def test_a_file_that_names_a_backend_is_enough(written: Any):
    gateway = load(written(GOOD))
    assert gateway.backends["main"].endpoints == ("http://127.0.0.1:8000",)
    assert gateway.listeners[0].address == "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["FILE: backends: is missing"]),
        (
            GOOD + "backend: {}\n",
            ["FILE: backend: unknown key; known: listeners, chains, backends, store, admin, telemetry, workers"],
        ),
        (
            GOOD + "listeners: [{adress: '127.0.0.1:1'}]\n",
            [
                "FILE: listeners[0].adress: unknown key; known: name, address, facade, chain, tls, passthrough, "
                "max_body_bytes, read_timeout_seconds, heartbeat"
            ],
        ),
        (
            GOOD + "listeners: [{heartbeat: {every: 3}}]\n",
            ["FILE: listeners[0].heartbeat.every: unknown key; known: verbatim_seconds, composed_seconds"],
        ),
        (
            "backends: {main: {endpoints: ['http://a'], timeouts: {conect: 1}}}",
            ["FILE: backends.main.timeouts.conect: unknown key; known: connect, first_byte, idle, total"],
        ),
        (
            GOOD + "workers: many\n",
            ["FILE: workers: 'many': must be a valid integer, unable to parse string as an integer"],
        ),
        (
            "backends: {main: {endpoints: ['http://a:99999']}}",
            [
                "FILE: backends.main.endpoints[0]: 'http://a:99999': must be a URL such as http://host:8000: "
                "Port out of range 0-65535"
            ],
        ),
        (GOOD + "workers: 0\n", ["FILE: workers: 0: must be greater than or equal to 1"]),
        (
            GOOD + "telemetry: {log_level: loud}\n",
            ["FILE: telemetry.log_level: 'loud': must be 'debug', 'info', 'warning' or 'error'"],
        ),
        (
            "backends: {main: {endpoints: ['host:8000']}}",
            ["FILE: backends.main.endpoints[0]: 'host:8000': must be a URL such as http://host:8000"],
        ),
        (
            GOOD + "admin: {address: '9090'}\n",
            ["FILE: admin.address: '9090': must be HOST:PORT, such as 127.0.0.1:8080"],
        ),
        ("backends: {main: {}}", ["FILE: backends.main: name either 'endpoints' or 'vllm'"]),
        ("backends: {}", ["FILE: backends: must have at least 1 item, not 0"]),
        ("backends: {main: http://a}", ["FILE: backends.main: must be a mapping; known keys: endpoints, vllm"]),
        ("backends: {main: {endpoints: http://a}}", ["FILE: backends.main.endpoints: 'http://a': must be a list"]),
        (GOOD + "chains: [default]\n", ["FILE: chains: must be a mapping"]),
        (
            GOOD + "workers: 0\nstore: {pool_size: 0, uri: x}\n",
            [
                "FILE: store.pool_size: 0: must be greater than or equal to 1",
                "FILE: store.uri: unknown key; known: url, pool_size",
                "FILE: workers: 0: must be greater than or equal to 1",
            ],
        ),
    ],
)
def test_every_mistake_is_a_line_with_its_path(written: Any, text: str, lines: list[str]):
    said = told(written(text)).splitlines()
    assert len(said) == len(lines)
    for line, beginning in zip(said, lines, strict=True):
        assert line.startswith(beginning)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' is there twice"),
        ("store:\n  url: a\n  url: b\n", "'url' is there twice"),
        ("- a\n", "must be a mapping; known keys: listeners, chains, backends"),
        ("just text", "must be a mapping"),
        ("a: [", "FILE: line 1, column 5: not valid YAML: "),
        ("a: 1\nb: 2: 3\n", "FILE: line 2, column 5: not valid YAML: mapping values are not allowed here"),
        ("a: '\x01'\n", "not valid YAML"),
        ("a: \t1\n\tb: 2", "not valid YAML"),
        ("a: !!python/object:os.system {}", "not valid YAML"),
        (b"a: \xff", "can't decode"),
    ],
)
def test_a_file_that_is_no_such_mapping_is_refused(written: Any, text: str | bytes, message: str):
    assert message in told(written(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "nested too deep"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested too deep"),
        ("? [a]\n: 1", "a key must be a word"),
        ("a: " + "9" * 5000, "not valid YAML"),
    ],
)
def test_a_file_that_only_python_stumbles_over_is_refused(written: Any, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load(written(text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    assert "No such file" in told(tmp_path / "gone.yaml")


SECRET = "s3cret-hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"backends: {{main: {{endpoints: ['http://a'], credentials: {{api_key: [{SECRET}]}}}}}}",
        f"backends: {{main: {{endpoints: ['http://a'], credentials: {SECRET}}}}}",
        f"backends: {{main: {{endpoints: ['http://a'], credentials: {{key: {SECRET}}}}}}}",
        f"backends: {{main: {{endpoints: ['http://u:{SECRET}@a?x']}}}}",
        f"backends: {{main: {{endpoints: 'http://u:{SECRET}@a'}}}}",
        f"{GOOD}store: {SECRET}\n",
        f"{GOOD}store: {{url: {SECRET}: x}}\n",
        f"{GOOD}store: [{SECRET}\n",
        f"{GOOD}store: {{url: ['postgresql://u:{SECRET}@h/db']}}\n",
        f"{GOOD}store: 'postgresql://u:{SECRET}@h/db'\n",
    ],
)
def test_a_secret_is_in_no_message(written: Any, text: str):
    assert SECRET not in told(written(text))


def test_a_secret_is_in_no_repr(written: Any):
    text = f"backends: {{main: {{endpoints: ['http://a'], credentials: {{api_key: {SECRET}}}}}}}\nstore: {{url: 'sqlite:///{SECRET}'}}"
    assert SECRET not in repr(load(written(text)))


# Variables and files


def parsed(url: str) -> str:
    gateway = parse({"backends": {"m": {"endpoints": ["http://a"]}}, "store": {"url": url}}, "FILE")
    return gateway.store.url.get_secret_value()


def test_a_variable_stands_for_its_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STATE_HOST", "db.internal")
    assert parsed("postgresql://u@${STATE_HOST}:${STATE_PORT:-5432}/db") == "postgresql://u@db.internal:5432/db"
    assert parsed("${NO_SUCH_THING:-}") == ""
    assert parsed("$STATE_HOST ${} {STATE_HOST}") == "$STATE_HOST ${} {STATE_HOST}"


def test_a_variable_that_is_not_set_is_named_with_its_place():
    with pytest.raises(ConfigError, match=r"^FILE: store: url: the environment variable NO_SUCH_THING is not set$"):
        parsed("${NO_SUCH_THING}")


def test_a_file_stands_for_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "url").write_text("sqlite:///state.db\n")
    monkeypatch.setenv("SECRETS", str(tmp_path))
    assert parsed(f"file:{tmp_path}/url") == "sqlite:///state.db"
    assert parsed("file:${SECRETS}/url") == "sqlite:///state.db"


def test_a_file_that_cannot_be_read_is_named_with_its_place(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^FILE: store: url: cannot read .*/gone: "):
        parsed(f"file:{tmp_path}/gone")


def test_numbers_and_lists_are_expanded_where_they_hold_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONE", "http://one")
    monkeypatch.setenv("HOW_MANY", "3")
    gateway = parse({"backends": {"m": {"endpoints": ["${ONE}"]}}, "workers": "${HOW_MANY}"}, "FILE")
    assert isinstance(gateway, Gateway)
    assert (gateway.backends["m"].endpoints, gateway.workers) == (("http://one",), 3)
