"""What is measured of a contestant, each as figures by name: ↑ is better when more, ↓ when less."""

from __future__ import annotations

import functools
import http.client
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants import DIRECT, Contestant, Session, body
from benchmarks.frames import LIFECYCLE
from benchmarks.load import Job
from benchmarks.processes import ROOT

BURST_CONNECTIONS = 16
GAP = 20  # milliseconds between two events of a paced stream
SHORT = 42  # tokens of the streams that are only asked for their first event: one second

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Sizes:
    """How much of each work."""

    seconds: float
    streams: int
    tokens: int
    turns: int


@dataclass(frozen=True)
class Work:
    """`kind` is its name on the command line, `what` its name in the table."""

    kind: str
    what: str
    measure: Callable[[Contestant, Contestant], tuple[Figures, str]]


def works(sizes: Sizes) -> list[Work]:
    """Memory is measured first, as a process does not give back what it once had."""
    few = min(50, sizes.streams)
    found = []
    for stored in (True, False):
        how = "stored" if stored else "unstored"
        paced = functools.partial(_paced, sizes, stored)
        found.append(Work("paced", f"{sizes.streams} paced streams, {how}", paced))
        found.append(
            Work("first", f"first event at {few} streams, {how}", functools.partial(_first, sizes, few, stored))
        )
    found.append(Work("chain", f"chain of {sizes.turns} turns", functools.partial(_chain, sizes)))
    for stored in (True, False):
        how = "stored" if stored else "unstored"
        found.append(Work("json", f"JSON burst, {how}", functools.partial(_burst, sizes, False, stored)))
        found.append(Work("sse", f"SSE burst, {how}", functools.partial(_burst, sizes, True, stored)))
    return found


def load(one: Contestant, body: dict[str, Any], **how: Any) -> dict[str, Any]:
    """What the load's process tells."""
    job = Job(one.url, {"input": "hi", **body}, pid=one.pid, **how)
    done = subprocess.run(job.command(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load failed:\n{done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _problem(told: dict[str, Any]) -> str:
    if told["errors"]:
        return f"{told['errors']} turns failed, the first with: {told['error']}"
    return "" if told["turns"] else "no turn was answered in time"


def _burst(sizes: Sizes, stream: bool, stored: bool, one: Contestant, _: Contestant) -> tuple[Figures, str]:
    turn = {"model": "canned", "stream": stream, "store": stored}
    told = load(one, turn, connections=BURST_CONNECTIONS, seconds=sizes.seconds, warm=min(0.5, sizes.seconds))
    figures: Figures = {
        "turns per second ↑": told["per_second"],
        "turn p50, ms ↓": told["whole_p50"],
        "turn p99, ms ↓": told["whole_p99"],
    }
    return figures, _problem(told)


def _paced(sizes: Sizes, stored: bool, one: Contestant, _: Contestant) -> tuple[Figures, str]:
    turn = {"model": f"canned-{GAP}-{sizes.tokens}", "stream": True, "store": stored}
    told = load(one, turn, connections=sizes.streams, seconds=0.0, spread=sizes.streams / 1000)
    figures: Figures = {}
    if one.pid:
        figures["CPU per event, µs ↓"] = told["cpu_seconds"] * 1e6 / sizes.streams / (sizes.tokens + LIFECYCLE)
    figures |= {"first event p50, ms ↓": told["first_p50"], "first event p99, ms ↓": told["first_p99"]}
    if one.pid and stored:  # the later run finds the memory of the earlier one
        figures["memory per stream, KiB ↓"] = told["grown_kib"] / sizes.streams
    return figures, _problem(told)


def _first(sizes: Sizes, streams: int, stored: bool, one: Contestant, _: Contestant) -> tuple[Figures, str]:
    tokens = min(SHORT, sizes.tokens)
    lasting = (tokens + LIFECYCLE) * GAP / 1000
    turn = {"model": f"canned-{GAP}-{tokens}", "stream": True, "store": stored}
    told = load(one, turn, connections=streams, seconds=sizes.seconds + lasting, warm=lasting, spread=lasting)
    return {"p50, ms ↓": told["first_p50"], "p99, ms ↓": told["first_p99"]}, _problem(told)


def added(one: Figures, direct: Figures) -> Figures:
    """What a gateway adds to the time to first event."""
    return {f"added {name}": value - (direct[name] or 0) for name, value in one.items() if value is not None}


def _chain(sizes: Sizes, one: Contestant, backend: Contestant) -> tuple[Figures, str]:
    """A conversation by previous_response_id; and its turns' replayed bodies sent straight to the backend."""
    if one.name == DIRECT:
        return {}, ""
    some = max(1, min(20, sizes.turns // 2))  # turns that are looked at, at both ends
    with closing(Session(one.url)) as asked, closing(Session(backend.url)) as behind:
        for _ in range(some):
            asked.turn(body(store=True))  # warm
        before = one.disk() if one.disk else 0
        try:
            times, early, late = _talk(asked, behind, sizes.turns, some)
        except (OSError, http.client.HTTPException) as error:
            return {}, str(error)
        grown = one.disk() - before if one.disk else 0
        through = statistics.median(times[:some]), statistics.median(times[-some:])
        straight = _straight(behind, early, some), _straight(behind, late, some)
    figures: Figures = {
        f"first {some} turns, ms ↓": through[0],
        f"last {some} turns, ms ↓": through[1],
        "the early body straight, ms": straight[0],
        "the late body straight, ms": straight[1],
        "last / first ↓": through[1] / through[0],
        "last / first, less straight ↓": (through[1] - straight[1]) / (through[0] - straight[0]),
        "late body, KiB": len(late) / 1024,
    }
    if grown > 0:
        figures["disk per turn, KiB ↓"] = grown / sizes.turns / 1024
    return figures, ""


def _talk(asked: Session, behind: Session, turns: int, some: int) -> tuple[list[float], bytes, bytes]:
    """Milliseconds of each turn, and what the backend was sent in the midst of the first and of the last ones."""
    times: list[float] = []
    replayed: dict[int, bytes] = {}
    early, late = some // 2, turns - 1 - some // 2
    follow: dict[str, str] = {}
    for number in range(turns):
        turn = body(input="hi" * 50, store=True, **follow)
        begin = time.perf_counter()
        answer = asked.turn(turn)
        times.append((time.perf_counter() - begin) * 1e3)
        follow = {"previous_response_id": answer["id"]}
        if number in (early, late):
            replayed[number] = behind.last()
    return times, replayed[early], replayed[late]


def _straight(behind: Session, replayed: bytes, times: int) -> float:
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        behind.turn(replayed)
        took.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(took)
