"""Scripts for a backend that misbehaves. Where a script pauses, it waits for an event that the test sets: no clocks."""

from __future__ import annotations

import asyncio
import contextlib
import gzip as gzip_module
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.backend import vllm
from tests.backend.wire import Exchange, Headers, Script, head

Step = bytes | asyncio.Event


def raw(*steps: Step, then: str = "keep") -> Script:
    """Writes exactly these bytes, one write each, waiting at each event; then `keep`s, `cut`s or `reset`s."""

    async def run(exchange: Exchange) -> None:
        for step in steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                await exchange.write(step)
        _finish(exchange, then)

    return run


def stream(
    chunks: Iterable[Step], *, headers: Headers | None = None, then: str = "keep", trailers: Headers | None = None
) -> Script:
    """An event stream of these chunks; `then="keep"` writes the last chunk, `cut` and `reset` do not."""

    async def run(exchange: Exchange) -> None:
        await exchange.begin(headers)
        for step in chunks:
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                await exchange.chunk(step)
        if then == "keep":
            await exchange.end(trailers)
        _finish(exchange, then)

    return run


def status(code: int, body: bytes = b"", headers: Headers | None = None) -> Script:
    async def run(exchange: Exchange) -> None:
        await exchange.reply(code, body, headers)

    return run


def _finish(exchange: Exchange, then: str) -> None:
    if then == "cut":
        exchange.cut()
    elif then == "reset":
        exchange.reset()


class _Enough(Exception):
    """The quota of bytes is used up."""


def cut_after(count: int, *, reset: bool = False) -> Script:
    """The usual answer, cut after `count` bytes of head and body."""

    async def run(exchange: Exchange) -> None:
        async def take(data: bytes) -> bytes:
            left = count - exchange.request.written
            if left <= 0:
                raise _Enough
            return data[:left]

        exchange.on_write = take
        with contextlib.suppress(_Enough):
            await exchange.as_usual()
        _finish(exchange, "reset" if reset else "cut")

    return run


def pause_after(writes: int, gate: asyncio.Event | None = None) -> Script:
    """The usual answer, silent after so many writes (the head is the first) until the gate opens; without a gate, for
    ever."""
    opened = gate or asyncio.Event()

    async def run(exchange: Exchange) -> None:
        done = itertools.count()

        async def wait(data: bytes) -> bytes:
            if next(done) == writes:
                await opened.wait()
            return data

        exchange.on_write = wait
        await exchange.as_usual()

    return run


def edited(edit: Callable[[bytes], Iterable[bytes]]) -> Script:
    """The usual answer with its body, or each chunk of it, passed through `edit`."""

    async def run(exchange: Exchange) -> None:
        exchange.on_content = edit
        await exchange.as_usual()

    return run


async def hang(exchange: Exchange) -> None:
    """Accepts the request and never answers."""
    await asyncio.Event().wait()


async def reset(exchange: Exchange) -> None:
    exchange.reset()


async def cut(exchange: Exchange) -> None:
    """Closes without a byte of an answer."""
    exchange.cut()


async def drop_reused(exchange: Exchange) -> None:
    """Closes a reused connection without answering, as a server whose keep-alive just ran out; else as usual."""
    if exchange.request.reused:
        exchange.cut()
        return
    await exchange.as_usual()


def without_ids(data: bytes) -> Iterable[bytes]:
    """An edit: output items lose their ids."""
    start, value = opened_frame(data)
    for item in [value.get("item"), *value.get("output", []), *value.get("response", {}).get("output", [])]:
        if item is not None:
            item.pop("id", None)
    value.pop("item_id", None)
    yield closed_frame(start, value)


def opened_frame(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """A chunk, or a JSON body, as what precedes its JSON and its JSON."""
    start, mark, text = data.rpartition(b"\ndata: ")
    return start + mark, json.loads(text)


def closed_frame(start: bytes, value: dict[str, Any]) -> bytes:
    return start + vllm.compact(value) + (b"\n\n" if start else b"")


def in_band_error(after: int = 5) -> Script:
    """The usual stream up to an `error` event in place of chunk number `after`; nothing follows but the end."""
    value = {"type": "error", "code": "server_error", "message": "the engine died", "param": None}

    async def run(exchange: Exchange) -> None:
        numbers = itertools.count()

        def edit(data: bytes) -> Iterable[bytes]:
            number = next(numbers)
            if number < after:
                yield data
            elif number == after:
                yield closed_frame(b"event: error\ndata: ", value | {"sequence_number": number})

        exchange.on_content = edit
        await exchange.as_usual()

    return run


def gzip(body: bytes, headers: Headers | None = None) -> Script:
    encoded = [("content-encoding", "gzip"), *(headers or [("content-type", "application/json")])]
    return status(200, gzip_module.compress(body, mtime=0), encoded)


def huge(total: int = 200_000_000, size: int = 16_384) -> Script:
    """A stream of `total` bytes of deltas between a proper beginning and end; `request.written` tells how far the
    reader let it come."""
    extra = max(total // size, 1) - 1

    async def run(exchange: Exchange) -> None:
        shift = 0

        def flood(data: bytes) -> Iterable[bytes]:
            nonlocal shift
            start, event = opened_frame(data)
            copies = 1
            if event["type"] == "response.output_text.delta" and not shift:
                copies, event["delta"] = extra + 1, "x" * size
            event["sequence_number"] += shift
            for number in range(copies):
                yield closed_frame(start, event | {"sequence_number": event["sequence_number"] + number})
            shift += copies - 1

        exchange.on_content = flood
        await exchange.as_usual()

    return run


NAMED: dict[str, Callable[..., Script]] = {
    "cut_after": cut_after,
    "pause_after": pause_after,
    "in_band_error": in_band_error,
    "huge": huge,
    "status": status,
    "hang": lambda: hang,
    "reset": lambda: reset,
    "cut": lambda: cut,
    "drop_reused": lambda: drop_reused,
    "without_ids": lambda: edited(without_ids),
}


def named(text: str) -> Script:
    """A script by its header form: `x-script: cut_after 120`."""
    name, *numbers = text.split()
    return NAMED[name](*(int(number) for number in numbers))


def answer_bytes(body: bytes, headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),)) -> bytes:
    """A whole 200 answer as bytes, for `raw`."""
    return head(200, [*headers, ("content-length", str(len(body)))]) + body
