"""Started as `vllm serve` would be: the scripted backend, with a child process as vLLM's engine is one."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys

from tests.backend import ScriptedVLLM


async def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("--host")
    arguments.add_argument("--port", type=int)
    arguments.add_argument("--engine-mark")
    chosen = arguments.parse_args()
    engine = [sys.executable, "-c", "import time; time.sleep(600)", chosen.engine_mark]
    with subprocess.Popen(engine):  # noqa: ASYNC220  # nothing else runs yet
        async with ScriptedVLLM(model=chosen.model) as backend:
            await backend.stop()
            await backend.start(chosen.port)
            await asyncio.Event().wait()


asyncio.run(main())
