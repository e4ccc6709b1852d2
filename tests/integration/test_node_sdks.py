"""The OpenAI Node SDK and the Vercel AI SDK over composed answers, run by Node itself."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backend import ScriptedVLLM
from tests.integration.gateway import Gateway
from tests.integration.test_hosted_sdks import whole
from tests.integration.test_loop import message_item, round_frames, streamed
from tests.integration.test_mcp import ADD, before
from tests.tools.servers import Seen, real, serving

SUITE = Path(__file__).parents[1] / "clients" / "node"
HOME = Path(__file__).parents[2] / ".demo" / "node"
NPM = shutil.which("npm")

pytestmark = pytest.mark.skipif(NPM is None, reason="npm is not installed, so there are no Node SDKs to run")


@pytest.fixture(scope="module")
def home() -> Path:
    """The SDKs, installed once beside the working copy."""
    wanted = (SUITE / "package.json").read_text()
    marker = HOME / "installed.json"
    if not marker.exists() or marker.read_text() != wanted:
        HOME.mkdir(parents=True, exist_ok=True)
        (HOME / "package.json").write_text(wanted)
        subprocess.run([str(NPM), "install", "--silent", "--no-audit", "--no-fund"], cwd=HOME, check=True, timeout=110)
        marker.write_text(wanted)
    shutil.copy(SUITE / "suite.mjs", HOME)
    return HOME


@pytest.fixture
async def server() -> AsyncIterator[Seen]:
    async with serving(real().streamable_http_app()) as seen:
        yield seen


@pytest.fixture
async def gateway(backend: ScriptedVLLM, sqlite_url: str, server: Seen) -> AsyncIterator[Gateway]:
    async with before(server, backend, sqlite_url) as started:
        yield started


async def run(home: Path, gateway: Gateway, server: Seen, case: str) -> dict[str, Any]:
    words = ["node", "suite.mjs", f"http://127.0.0.1:{gateway.port}/v1", f"{server.origin}/mcp", case]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, cwd=home, stdout=pipe, stderr=pipe)
    said, complained = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, complained.decode()
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


ROUNDS = (round_frames("resp_a", [ADD]), round_frames("resp_b", [message_item("five")]))


async def test_the_node_sdks_stream(home: Path, gateway: Gateway, backend: ScriptedVLLM, server: Seen) -> None:
    backend.script(*streamed(*ROUNDS))
    seen = await run(home, gateway, server, "stream")
    assert seen["output"] == ["mcp_list_tools", "mcp_call", "message"]
    assert seen["text"] == "five"
    assert seen["kinds"][-1] == "response.completed"


async def test_the_ai_sdk_streams(home: Path, gateway: Gateway, backend: ScriptedVLLM, server: Seen) -> None:
    backend.script(*streamed(*ROUNDS))
    seen = await run(home, gateway, server, "aiStream")
    assert (seen["text"], seen["finish"]) == ("five", "stop"), seen
    assert "tool-result" in seen["parts"]
    assert not [part for part in seen["parts"] if "rror" in part], seen["parts"]


async def test_the_ai_sdk_reads_json(home: Path, gateway: Gateway, backend: ScriptedVLLM, server: Seen) -> None:
    backend.script(*whole([ADD]), *whole([message_item("five")], "resp_b"))
    seen = await run(home, gateway, server, "aiJson")
    assert (seen["text"], seen["finish"]) == ("five", "stop"), seen
    assert "tool-result" in seen["content"]


async def test_the_ai_sdk_approves(home: Path, gateway: Gateway, backend: ScriptedVLLM, server: Seen) -> None:
    backend.script(*whole([ADD]), *whole([message_item("five")], "resp_b"))
    seen = await run(home, gateway, server, "aiApproval")
    assert (seen["text"], seen["finish"]) == ("five", "stop"), seen


async def test_the_open_responses_provider(home: Path, gateway: Gateway, backend: ScriptedVLLM, server: Seen) -> None:
    backend.script(*streamed(round_frames("resp_a", [message_item("hello back")])))
    seen = await run(home, gateway, server, "openResponses")
    assert (seen["text"], seen["finish"]) == ("hello back", "stop")
