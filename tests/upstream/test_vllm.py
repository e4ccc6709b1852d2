"""The co-deployed vLLM: started, brought back, stopped with all its processes. (A real one is run in tests/live.)"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from proxy.config.shape import VLLM
from proxy.errors import ConfigError
from proxy.upstream.vllm import Supervisor
from tests.integration.gateway import free_port

ROOT = Path(__file__).parents[2]


def processes(mark: str) -> list[int]:
    """The living processes whose command line holds `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if mark.encode() in (entry / "cmdline").read_bytes() and state != "Z":
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def answering(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def test_it_is_brought_back_and_stopped_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    mark, port = uuid.uuid4().hex, free_port()
    command = (sys.executable, "-m", "tests.upstream.stand_in_vllm")
    child = Supervisor(VLLM(model="m", command=command, port=port, args=("--engine-mark", mark)))
    child.start()
    try:
        async with asyncio.timeout(60):
            await answering(port)
            first = child._process
            assert first is not None
            os.kill(first.pid, signal.SIGKILL)
            while child._process is first:  # noqa: ASYNC110  # it lives in a thread
                await asyncio.sleep(0.05)
            await answering(port)
        assert len(processes(mark)) == 2, "the engine of the one that died is gone too"
    finally:
        await asyncio.to_thread(child.stop)
    assert processes(mark) == []


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot start no-such-vllm"):
        Supervisor(VLLM(model="m", command=("no-such-vllm", "serve"))).start()
