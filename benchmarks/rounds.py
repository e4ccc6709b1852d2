"""What a second round costs: CPU per delta, and the time that a round adds, beside those of the verbatim path.

    python -m benchmarks.rounds [--streams 40] [--deltas 400] [--gap 5]

Starts the benchmark backend and the gateway (SQLite, one worker, access log off), and asks for two kinds of turns: one
round relayed as it is, and two rounds with a hosted function between them. CPU is the gateway's own, read from /proc;
per delta it is the slope between long and short streams, so that what a turn costs once does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

CHAIN = ("owner", "validate", "response_store", "rehydrate", "mcp_tools", "agentic_loop", "repair", "upstream")
turns = iter(range(10**9))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream(port: int, body: dict[str, Any]) -> tuple[float, float]:
    """One streamed turn: seconds to its first text delta, and to its end."""
    raw = json.dumps({"model": "m", "input": "hi", "stream": True, "turn": next(turns), **body}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    head = b"POST /v1/responses HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(raw) + raw)
    seen = b""
    first = 0.0
    while not seen.endswith(b"0\r\n\r\n"):
        data = await reader.read(65536)
        if not data:
            raise SystemExit(f"a stream was cut: {seen[-300:]!r}")
        seen = (seen + data)[-8192:]
        if not first and b"output_text.delta" in seen:
            first = time.perf_counter() - began
    writer.close()
    if b"response.completed" not in seen:
        raise SystemExit(f"a stream did not complete: {seen[-300:]!r}")
    return first, time.perf_counter() - began


async def many(port: int, streams: int, body: dict[str, Any]) -> list[tuple[float, float]]:
    return list(await asyncio.gather(*(stream(port, body) for _ in range(streams))))


async def slope(port: int, pid: int, streams: int, deltas: int, body: dict[str, Any]) -> float:
    """Microseconds of CPU for each further delta."""
    used = []
    for count in (deltas // 10, deltas):
        before = cpu(pid)
        await many(port, streams, {**body, "n": count})
        used.append(cpu(pid) - before)
    return (used[1] - used[0]) / (streams * (deltas - deltas // 10)) * 1e6


async def one_by_one(port: int, count: int, body: dict[str, Any]) -> list[float]:
    return sorted([(await stream(port, body))[0] * 1e3 for _ in range(count)])


def recorded(port: int) -> list[float]:
    """The times between rounds that the backend saw."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/times") as answer:
        times: list[float] = json.load(answer)
    return times


async def measure(ports: dict[str, int], pid: int, options: argparse.Namespace) -> list[tuple[str, float]]:
    verbatim: dict[str, Any] = {"gap": options.gap, "store": False}
    composed = {**verbatim, "tools": [{"type": "function", "name": "probe"}]}
    await many(ports["gateway"], 5, {**composed, "n": 5})  # warm
    rows: list[tuple[str, float]] = []
    costs = {}
    for name, body in (("verbatim", verbatim), ("composed", composed)):
        costs[name] = await slope(ports["gateway"], pid, options.streams, options.deltas, body)
        rows.append((f"CPU per delta, {name}, µs", costs[name]))
    rows.append(("CPU per delta, composed / verbatim", costs["composed"] / costs["verbatim"]))
    quick = {"n": 3, "gap": 0, "store": False}
    times = {
        "direct": await one_by_one(ports["backend"], 300, quick),
        "verbatim": await one_by_one(ports["gateway"], 300, quick),
        "composed": await one_by_one(ports["gateway"], 300, {**quick, "tools": composed["tools"]}),
    }
    between = sorted(each * 1e3 for each in (await asyncio.to_thread(recorded, ports["backend"]))[-300:])
    for label, share in (("p50", 0.50), ("p99", 0.99)):
        at = {name: values[int(len(values) * share)] for name, values in times.items()}
        added, gap = at["verbatim"] - at["direct"], between[int(len(between) * share)]
        rows.append((f"added by the gateway to a verbatim turn, {label}, ms", added))
        rows.append((f"between two rounds, the tool's call included, {label}, ms", gap))
        rows.append((f"between two rounds / added to a verbatim turn, {label}", gap / added))
    rows.append(("median of a whole two-round turn, ms", statistics.median(times["composed"])))
    return rows


def start(stack: ExitStack, ports: dict[str, int]) -> int:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    function = {"probe": {"endpoint": f"http://127.0.0.1:{ports['backend']}/tool"}}
    tools = {"tools": {"function": {"functions": function}}}
    config = {
        "listeners": [{"address": f"127.0.0.1:{ports['gateway']}"}],
        "backends": {"b": {"endpoints": [f"http://127.0.0.1:{ports['backend']}"]}},
        "store": {"url": f"sqlite:///{folder / 'b.db'}"},
        "telemetry": {"access_log": False, "log_level": "warning"},
        "chains": {"default": [{"filter": each, **(tools if each == "agentic_loop" else {})} for each in CHAIN]},
    }
    path = folder / "gateway.yaml"
    path.write_text(json.dumps(config))
    backend = subprocess.Popen([sys.executable, "-m", "benchmarks.backend", str(ports["backend"])])
    stack.callback(backend.kill)
    gateway = subprocess.Popen([sys.executable, "-m", "proxy", "serve", "-c", str(path)], stderr=subprocess.DEVNULL)
    stack.callback(gateway.kill)
    for _ in range(200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports['gateway']}/readyz", timeout=1):
                return gateway.pid
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the gateway did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--deltas", type=int, default=400)
    parser.add_argument("--gap", type=float, default=5, help="milliseconds between two deltas")
    options = parser.parse_args()
    ports = {"backend": free_port(), "gateway": free_port()}
    with ExitStack() as stack:
        pid = start(stack, ports)
        for name, value in asyncio.run(measure(ports, pid, options)):
            sys.stdout.write(f"{name}: {value:.2f}\n")


if __name__ == "__main__":
    main()
