"""A backend for benchmarks, with a tool's endpoint beside it: answers at once, in the shape of vLLM's streams.

    python -m benchmarks.backend PORT

POST /v1/responses with `{"n": N}` streams N text deltas, `gap` milliseconds apart. With a tool in the body and no
output of it in the input, it streams a call of that tool first.
GET /times tells how long second rounds were in coming.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.frames import frame, lifecycle, text_round

ended: dict[str, float] = {}  # by turn: when its first round was written
between: list[float] = []  # seconds from there to the next round's request


def call_round(id_: str, name: str, call_id: str) -> list[bytes]:
    item = {"id": "fc_1", "type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}
    return [
        lifecycle("created", 0, id_, "in_progress", []),
        lifecycle("in_progress", 1, id_, "in_progress", []),
        frame("response.output_item.added", 2, output_index=0, item={**item, "arguments": ""}),
        frame("response.function_call_arguments.delta", 3, output_index=0, item_id="fc_1", delta="{}"),
        frame("response.function_call_arguments.done", 4, output_index=0, item_id="fc_1", arguments="{}"),
        frame("response.output_item.done", 5, output_index=0, item={**item, "status": "completed"}),
        lifecycle("completed", 6, id_, "completed", [{**item, "status": "completed"}]),
    ]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            arrived = time.perf_counter()
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)
            await answer(head.split(b" ", 2)[1], body, arrived, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def answer(path: bytes, body: bytes, arrived: float, writer: asyncio.StreamWriter) -> None:
    if path != b"/v1/responses":
        said = json.dumps(between if path == b"/times" else "done").encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(said) + said
        )
        return
    asked = json.loads(body)
    turn, deltas, gap = str(asked["turn"]), int(asked["n"]), float(asked.get("gap", 0)) / 1000
    calls = bool(asked.get("tools")) and b"function_call_output" not in body
    if turn in ended:
        between.append(arrived - ended.pop(turn))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    name = asked["tools"][0]["name"] if calls else ""
    for chunk in call_round(f"resp_{turn}", name, f"call_{turn}") if calls else text_round(f"resp_{turn}_t", deltas):
        writer.write(chunk)
        if gap:
            await asyncio.sleep(gap)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    if calls:
        ended[turn] = time.perf_counter()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
