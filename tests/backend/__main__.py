"""python -m tests.backend --port 8000: the scripted backend as a process."""

from __future__ import annotations

import argparse
import asyncio

from tests.backend.server import ScriptedVLLM


async def serve(port: int, token_seconds: float, max_model_len: int) -> None:
    backend = ScriptedVLLM(token_seconds=token_seconds, max_model_len=max_model_len)
    await backend.start(port)
    print(backend.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-seconds", type=float, default=0.0)
    parser.add_argument("--max-model-len", type=int, default=4096)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.token_seconds, options.max_model_len))
