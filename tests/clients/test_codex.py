"""The real Codex CLI through the gateway, over the scripted backend (whose context must hold Codex's 10,000 tokens)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.gateway import ROOT, Gateway, running_gateway, running_scripted_backend

VERSION = "0.171.0"
NPM = shutil.which("npm")
LIMIT = 120
CONFIG = """
model = "smollm2"
model_provider = "rejoinder"
check_for_update_on_startup = false
[model_providers.rejoinder]
name = "Rejoinder"
base_url = "{url}/v1"
env_key = "REJOINDER_TEST_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""

pytestmark = pytest.mark.skipif(NPM is None, reason="npm is not installed, so there is no Codex CLI to run")


@dataclass(frozen=True)
class Codex:
    program: Path
    home: Path
    folder: Path

    def exec(self, *arguments: str) -> list[dict[str, Any]]:
        """Runs `codex exec --json` and returns its events; the sandbox is off, in a folder of the test's own."""
        flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        done = subprocess.run(
            [self.program, "exec", *flags, *arguments], cwd=self.folder, capture_output=True, text=True,
            timeout=LIMIT, stdin=subprocess.DEVNULL, check=False,
            env={**os.environ, "CODEX_HOME": str(self.home), "REJOINDER_TEST_KEY": "secret"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def completed(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event["item"] for event in events if event["type"] == "item.completed" and event["item"]["type"] == kind]


def last_words(events: list[dict[str, Any]]) -> str:
    return str(completed(events, "agent_message")[-1]["text"])


@pytest.fixture(scope="session")
def program() -> Path:
    folder = ROOT / ".demo" / f"codex-{VERSION}"
    program = folder / "node_modules" / ".bin" / "codex"
    if not program.exists():
        assert NPM is not None
        wanted = ["install", "--no-fund", "--no-audit", "--prefix", str(folder), f"@openai/codex@{VERSION}"]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([NPM, *wanted], check=True, timeout=300)
    return program


@pytest.fixture(scope="module")
def roomy_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("codex-gateway")
    roomy = running_scripted_backend("--max-model-len", "200000")
    with roomy as backend, running_gateway(backend, folder) as gateway:
        yield gateway


@pytest.fixture
def codex(program: Path, roomy_gateway: Gateway, tmp_path: Path) -> Codex:
    codex = Codex(program, tmp_path / "home", tmp_path / "work")
    codex.home.mkdir()
    codex.folder.mkdir()
    (codex.home / "config.toml").write_text(CONFIG.format(url=roomy_gateway.url))
    return codex


def test_a_plain_turn(codex: Codex) -> None:
    events = codex.exec("say something plain")
    assert last_words(events).endswith("the last user said: say something plain")
    assert events[-1]["type"] == "turn.completed"


def test_a_tool_turn(codex: Codex) -> None:
    """The backend asks for a command, Codex runs it, and the backend sees what it printed."""
    events = codex.exec('call exec_command {"cmd": "echo made > proof.txt; echo from the tool"}')
    assert (codex.folder / "proof.txt").read_text() == "made\n"
    [command] = completed(events, "command_execution")
    assert command["aggregated_output"] == "from the tool\n"
    assert "the last tool said:" in last_words(events)
    assert "from the tool" in last_words(events)


def items_seen(events: list[dict[str, Any]]) -> int:
    return int(last_words(events).split()[2])


def test_a_resumed_thread(codex: Codex) -> None:
    first = codex.exec("the first words")
    second = codex.exec("resume", "--last", "the second words")
    assert last_words(second).endswith("the last user said: the second words")
    assert items_seen(second) >= items_seen(first) + 2
