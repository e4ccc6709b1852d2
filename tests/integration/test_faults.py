"""The database fails, in every way we could think of: no completion without a row, no hang, recovery by itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.backend import ScriptedVLLM, faults
from tests.integration.gateway import Answer, Gateway, chain, free_port, running
from tests.integration.test_streams import COMPLETED, CREATED, DELTA
from tests.postgres import PostgresServer

JSON = ((b"Content-Type", b"application/json"),)
QUICK = {"acquire_timeout_seconds": 0.5, "statement_timeout_seconds": 1}


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    server = PostgresServer()
    server.start()
    try:
        server.execute("CREATE DATABASE state")
        yield server
    finally:
        server.stop()


@pytest.fixture
async def killable(backend: ScriptedVLLM, own_postgres: PostgresServer) -> AsyncIterator[Gateway]:
    async with running(backend, own_postgres.url("state"), store=QUICK) as gateway:
        yield gateway


def check_not_completed(answer: Answer, stream: bool) -> None:
    if stream:
        assert answer.final["type"] == "error", answer.body
        assert answer.final["code"] == "server_error"
        assert all(event["type"] != "response.completed" for event in answer.events)
    else:
        assert answer.status == 500, answer.body
        assert answer.error["type"] == "server_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_postgres_killed_between_the_last_token_and_the_commit(
    killable: Gateway, own_postgres: PostgresServer, stream: bool
) -> None:
    first = (await killable.create(input="before")).json["id"]
    gate = asyncio.Event()
    body = json.dumps(json.loads(COMPLETED.partition(b"data: ")[2])["response"]).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    killable.backend.script(
        faults.stream([CREATED, DELTA, gate, COMPLETED]) if stream else faults.raw(head, gate, body)
    )
    turn = asyncio.get_running_loop().create_task(killable.create(input="during", stream=stream))
    await killable.backend.received(2)
    own_postgres.kill()
    gate.set()
    check_not_completed(await asyncio.wait_for(turn, 10), stream)
    refused = await asyncio.wait_for(killable.create(input="x", previous_response_id=first), 10)
    assert (refused.status, refused.error["type"]) == (500, "server_error")
    assert (await killable.ask("GET", "/readyz")).json["missing"] == ["store"]
    asked = len(killable.backend.turns)
    own_postgres.start()
    assert (await killable.ask("GET", "/v1/responses/resp_s")).status == 404
    after = await killable.create(input="after", previous_response_id=first)
    assert after.status == 200, after.body
    assert len(killable.backend.turns) == asked + 1
    assert (await killable.ask("GET", "/readyz")).status == 200


async def test_a_table_locked_by_somebody_else(killable: Gateway, own_postgres: PostgresServer) -> None:
    await killable.create(input="before")
    other = await asyncpg.connect(own_postgres.url("state"))
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
            answer = await asyncio.wait_for(killable.create(input="during"), 10)
            check_not_completed(answer, stream=False)
    finally:
        await other.close()
    assert (await killable.create(input="after")).status == 200


async def test_a_full_pool_is_an_error_not_a_hang(backend: ScriptedVLLM, own_postgres: PostgresServer) -> None:
    async with running(backend, own_postgres.url("state"), store={**QUICK, "pool_size": 1}) as gateway:
        first = (await gateway.create(input="before")).json["id"]
        other = await asyncpg.connect(own_postgres.url("state"))
        try:
            async with other.transaction():
                await other.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
                turns = [gateway.create(input="x", previous_response_id=first) for _ in range(5)]
                answers = await asyncio.wait_for(asyncio.gather(*turns), 15)
                assert {answer.status for answer in answers} == {500}
        finally:
            await other.close()
        assert (await gateway.create(input="after", previous_response_id=first)).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_sqlite_locked_by_another_process(backend: ScriptedVLLM, tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "store.db"
    async with running(backend, f"sqlite:///{path}", store=QUICK) as gateway:
        await gateway.create(input="before")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        try:
            answer = await asyncio.wait_for(gateway.create(input="during", stream=stream), 10)
            check_not_completed(answer, stream)
        finally:
            other.execute("ROLLBACK")
            other.close()
        assert (await gateway.create(input="after")).status == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
@pytest.mark.parametrize("stream", [True, False])
async def test_sqlite_on_a_full_disk(backend: ScriptedVLLM, tmp_path: Path, stream: bool) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    await command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk))
    try:
        async with running(backend, f"sqlite:///{disk / 'store.db'}", store=QUICK) as gateway:
            assert (await gateway.create(input="before")).status == 200
            filler = disk / "filler"
            with pytest.raises(OSError, match="No space"):
                filler.write_bytes(b"x" * 2_000_000)
            big = "word " * 3000
            check_not_completed(await asyncio.wait_for(gateway.create(input=big, stream=stream), 10), stream)
            filler.unlink()
            assert (await gateway.create(input=big, stream=stream)).status == 200
    finally:
        await command("umount", "-l", str(disk))


async def command(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words)
    assert await process.wait() == 0


async def test_failure_mode_open_lets_the_answer_through(backend: ScriptedVLLM, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    options = chain(response_store={"failure_mode": "open"})
    async with running(backend, f"sqlite:///{path}", store=QUICK, **options) as gateway:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        try:
            answer = await gateway.create(input="during", stream=True)
            assert answer.final["type"] == "response.completed"
        finally:
            other.close()
        stored = await gateway.ask("GET", f"/v1/responses/{answer.final['response']['id']}")
        assert stored.status == 404


async def test_a_backend_that_repeats_a_response_id(both: Gateway) -> None:
    for expected in ("response.completed", "error"):
        both.backend.script(faults.stream([CREATED, DELTA, COMPLETED]))
        answer = await both.create(input=expected, stream=True)
        assert answer.final["type"] == expected
    items = (await both.ask("GET", "/v1/responses/resp_s/input_items")).json["data"]
    assert items[0]["content"][0]["text"] == "response.completed"


async def test_two_replicas_write_one_conversation(backend: ScriptedVLLM, store_url: str) -> None:
    async with running(backend, store_url) as one, running(backend, store_url) as two:
        id_ = (await one.ask("POST", "/v1/conversations", b"{}")).json["id"]
        turns = [(one, two)[n % 2].create(input=f"turn {n}", conversation=id_) for n in range(8)]
        answers = await asyncio.gather(*turns)
        assert {answer.status for answer in answers} == {200}
        items = (await two.ask("GET", f"/v1/conversations/{id_}/items?order=asc&limit=100")).json["data"]
        assert [item["role"] for item in items] == ["user", "assistant"] * 8
        lengths = sorted(len(json.loads(turn.body)["input"]) for turn in backend.turns)
        assert lengths == [1, 3, 5, 7, 9, 11, 13, 15]


async def test_state_of_one_replica_is_that_of_the_other(backend: ScriptedVLLM, store_url: str) -> None:
    async with running(backend, store_url) as one, running(backend, store_url) as two:
        first = (await one.create(input="one")).json["id"]
        second = (await two.create(input="two", previous_response_id=first)).json["id"]
        await one.create(input="three", previous_response_id=second)
        assert len(json.loads(backend.turns[-1].body)["input"]) == 5


async def test_a_stream_is_cancelled_through_another_replica(backend: ScriptedVLLM, postgres_url: str) -> None:
    async with running(backend, postgres_url) as one, running(backend, postgres_url) as two:
        backend.script(faults.pause_after(4))
        async with one.client() as client:
            await client.send("POST", "/v1/responses", one.body(input="a", stream=True), JSON)
            created = (await client.until(b"response.in_progress")).partition(b'"id":"')[2]
            id_ = created.partition(b'"')[0].decode()
            cancelled = await two.ask("POST", f"/v1/responses/{id_}/cancel")
            assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
            assert (await client.answer()).final["response"] == cancelled.json


async def test_a_conversation_outlives_the_worker_that_held_it(
    backend: ScriptedVLLM, postgres_url: str, tmp_path: Path
) -> None:
    """The worker is killed in the middle of a turn; its lease runs out, and nothing of the turn was kept."""
    config = tmp_path / "gateway.yaml"
    config.write_text(json.dumps(chain(rehydrate={"lease_seconds": 3})))
    async with running(backend, postgres_url, **chain(rehydrate={"lease_seconds": 3})) as survivor:
        id_ = (await survivor.ask("POST", "/v1/conversations", b"{}")).json["id"]
        victim, port = await started(config, backend.url, postgres_url)
        backend.script(faults.pause_after(4))
        doomed = Gateway(port, backend, survivor.app)
        async with doomed.client() as client:
            await client.send("POST", "/v1/responses", doomed.body(input="lost", stream=True, conversation=id_), JSON)
            await client.until(b"response.in_progress")
            os.kill(victim.pid, signal.SIGKILL)
            await victim.wait()
        answer = await asyncio.wait_for(survivor.create(input="kept", conversation=id_), 20)
        assert answer.status == 200, answer.body
        items = (await survivor.ask("GET", f"/v1/conversations/{id_}/items?order=asc")).json["data"]
        assert [item["content"][0]["text"] for item in items if item["role"] == "user"] == ["kept"]


async def started(config: Path, backend: str, store: str) -> tuple[Any, int]:
    port = free_port()
    words = ["-m", "proxy", "serve", "-c", str(config), "--backend", backend, "--store", store, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while b"rejoinder: ready" not in (line := await process.stderr.readline()):
        assert line, "the gateway ended"
    return process, port


async def test_a_full_queue_for_a_conversation_is_refused(backend: ScriptedVLLM, sqlite_url: str) -> None:
    options = chain(rehydrate={"conversation_queue": 1, "conversation_wait_seconds": 0.5})
    async with running(backend, sqlite_url, **options) as gateway:
        id_ = (await gateway.ask("POST", "/v1/conversations", b"{}")).json["id"]
        gate = asyncio.Event()
        backend.script(faults.stream([CREATED, gate, COMPLETED]))
        loop = asyncio.get_running_loop()
        runs = loop.create_task(gateway.create(input="a", stream=True, conversation=id_))
        await backend.received(1)
        waits = loop.create_task(gateway.create(input="b", conversation=id_))
        refused = await waits
        assert (refused.status, refused.error["code"]) == (409, "conversation_locked")
        assert refused.headers(b"retry-after") == [b"1"]
        queue = [loop.create_task(gateway.create(input="c", conversation=id_)) for _ in range(3)]
        statuses = sorted([(await task).status for task in queue])
        assert statuses == [409, 409, 409]
        assert len(backend.turns) == 1, "nobody paid for a generation"
        gate.set()
        assert (await runs).final["type"] == "response.completed"
        assert (await gateway.create(input="d", conversation=id_)).status == 200
