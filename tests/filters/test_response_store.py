"""A turn is stored before its client may believe it, and never as more than it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxy import errors
from proxy.protocol.events import Answer, Event, Frames, Head, encode
from proxy.protocol.headers import Headers
from proxy.protocol.records import PageQuery, TurnRecord
from proxy.protocol.turn import Operation
from proxy.services import Services
from proxy.store import Store
from tests.filters.conftest import NOW
from tests.filters.stage import ANN, Stage, user
from tests.playbook import (
    JSON,
    SSE,
    Played,
    answer,
    called,
    delta,
    event,
    items_of,
    opening,
    play,
    post,
    response,
    said,
    streamed,
)


class Watched:
    """The real store, whose commits a test can hold back or make fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.saving = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.failure: errors.StoreError | None = None
        self.records: list[TurnRecord] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save(self, record: TurnRecord) -> None:
        self.records.append(record)
        self.saving.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await self._store.save(record)


@pytest.fixture
def watched(services: Services) -> Watched:
    return Watched(services.store)


@pytest.fixture
def open_stage(services: Services, watched: Watched) -> Callable[..., Stage]:
    """Makes a stage whose filter has these options."""
    return lambda **options: Stage(replace(services, store=watched), response_store=options)


@pytest.fixture
def stage(open_stage: Callable[..., Stage]) -> Stage:
    return open_stage()


async def input_of(stage: Stage, response_id: str) -> list[bytes]:
    page = await stage.store.input_items(ANN, response_id, PageQuery(order="asc"))
    assert page is not None
    return [item.body for item in page.items]


# What is stored


async def test_an_answer_is_stored_with_its_input_and_every_byte(stage: Stage):
    sent = answer("resp_1", said("two"), called("c"))
    played = await stage.turn({"input": "one"}, sent)
    assert played.heard == [sent]
    stored = await stage.store.response(ANN, "resp_1")
    assert stored is not None
    assert (stored.head.status, stored.head.created_at) == ("completed", NOW)
    assert stored.head.envelope == response("resp_1")
    assert [item.body for item in stored.output] == [said("two"), called("c")]
    assert await input_of(stage, "resp_1") == [user("one")]


async def test_a_stream_passes_unchanged_and_is_stored_with_its_log(stage: Stage):
    stream = streamed("resp_1", said("two"))
    played = await stage.turn({"input": "one", "stream": True}, stream, Event(b": bye\n\n"))
    assert played.heard[: len(stream)] == stream
    stored = await stage.store.response(ANN, "resp_1")
    assert stored is not None
    assert [item.body for item in stored.output] == [said("two")]
    assert await stage.store.events(ANN, "resp_1") == b"".join(getattr(part, "raw", b"") for part in stream)


async def test_items_that_only_streamed_by_are_stored(stage: Stage):
    stream = [*opening("resp_1"), *items_of(said("two")), event("response.completed", 6, response=response("resp_1"))]
    await stage.turn({"input": "one", "stream": True}, stream)
    stored = await stage.store.response(ANN, "resp_1")
    assert stored is not None
    assert [item.body for item in stored.output] == [said("two")]


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
async def test_a_response_is_stored_under_its_own_status(stage: Stage, status: str):
    await stage.turn({"input": "one", "stream": True}, streamed("resp_1", said("two"), status=status))
    assert await stage.kept("resp_1") == status
    await stage.turn({"input": "one"}, answer("resp_2", said("two"), status=status))
    assert await stage.kept("resp_2") == status


async def test_the_output_sent_back_as_input_is_stored_again_and_again(stage: Stage):
    item = json.loads(said("two"))
    first = [{"role": "user", "content": "one"}]
    await stage.turn({"input": first}, answer("resp_1", said("two")))
    for number in (2, 3):
        await stage.turn(
            {"input": [*first, item, {"role": "user", "content": "on"}]}, answer(f"resp_{number}", said("two"))
        )
        assert await stage.kept(f"resp_{number}") == "completed"
        assert len(await input_of(stage, f"resp_{number}")) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_that_is_not_to_be_stored_leaves_nothing(stage: Stage, stream: bool):
    steps: Any = streamed("resp_1", said("x")) if stream else answer("resp_1", said("x"))
    played = await stage.turn({"input": "one", "store": False, "stream": stream}, steps)
    assert played.heard == (steps if stream else [steps])
    assert await stage.kept("resp_1") is None
    assert await stage.store.items(ANN, ["msg_1"]) == {}


@pytest.mark.parametrize("operation", [Operation.INPUT_TOKENS, Operation.COMPACT, Operation.OTHER])
async def test_only_a_create_is_stored(stage: Stage, operation: Operation):
    await stage.turn({"input": "one"}, answer("resp_1", said("x")), operation=operation)
    assert await stage.kept("resp_1") is None


async def test_an_error_of_the_backends_is_not_stored(stage: Stage):
    error = Answer(400, b"Bad Request", JSON, b'{"error":{"message":"m"}}')
    assert (await stage.turn({"input": "one"}, error)).heard == [error]
    assert await stage.kept("resp_1") is None


async def test_a_bare_error_event_stores_nothing_and_passes(stage: Stage):
    last = event("error", 0, message=b'"m"')
    played = await stage.turn({"input": "one", "stream": True}, opening("resp_1")[0], last)
    assert played.heard[-1] is last
    assert await stage.kept("resp_1") is None


async def test_a_200_that_is_no_response_is_502_and_not_passed_off_as_stored(stage: Stage):
    for body in (b"{}", b"<html>", b'{"id":"r","output":7}'):
        played = await stage.turn({"input": "one"}, Answer(200, b"OK", JSON, body))
        assert played.error is not None
        assert (played.error.status, played.error.code) == (502, "upstream_protocol_error")
        assert played.heard == []


async def test_an_answer_that_cannot_be_read_is_not_passed_off_as_stored(stage: Stage):
    packed: Headers = (*JSON, (b"Content-Encoding", b"gzip"))
    for unreadable in (
        Answer(200, b"OK", packed, response("resp_1")),
        Answer(200, b"OK", (*JSON, (b"Content-Encoding", b"br")), response("resp_1")),
        Head(200, b"OK", (*SSE, (b"Content-Encoding", b"gzip"))),
    ):
        played = await stage.turn({"input": "one"}, unreadable)
        assert isinstance(played.error, errors.UpstreamProtocol)
        assert played.heard == []


@pytest.mark.parametrize(("days", "expires"), [(30, NOW + 30 * 86_400), (None, None), (0.5, NOW + 43_200)])
async def test_a_response_is_kept_as_long_as_it_is_said(
    open_stage: Callable[..., Stage], watched: Watched, days: float | None, expires: float | None
):
    await open_stage(retention_days=days).turn({"input": "a"})
    (record,) = watched.records
    assert record.response is not None
    assert record.response.expires_at == expires


# Before completion


async def begun(
    stage: Stage, watched: Watched, request: dict[str, Any], *steps: Any
) -> tuple[Played, asyncio.Task[None]]:
    watched.gate = asyncio.Event()
    played, running = stage.begin(request, *steps)
    await watched.saving.wait()
    await asyncio.sleep(0.02)
    return played, running


async def test_the_terminal_event_waits_for_the_commit(stage: Stage, watched: Watched):
    stream = streamed("resp_1", said("x"))
    played, running = await begun(stage, watched, {"input": "a", "stream": True}, stream)
    assert played.heard == stream[:-1]
    assert await stage.kept("resp_1") is None
    assert watched.gate is not None
    watched.gate.set()
    await running
    assert played.heard == stream
    assert await stage.kept("resp_1") == "completed"


async def test_a_json_body_waits_for_the_commit(stage: Stage, watched: Watched):
    played, running = await begun(stage, watched, {"input": "a"}, answer("resp_1", said("x")))
    assert played.heard == []
    assert watched.gate is not None
    watched.gate.set()
    await running
    assert len(played.heard) == 1


FAILURES = [errors.StoreUnavailable(), errors.StoreError(), errors.StoreConflict(), errors.LeaseLost()]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_no_completion_goes_out_that_could_not_be_stored(
    stage: Stage, watched: Watched, failure: errors.StoreError
):
    watched.failure = failure
    stream = streamed("resp_1", said("x"))
    played = await stage.turn({"input": "a", "stream": True}, stream)
    assert played.error is failure
    assert played.heard == stream[:-1]
    assert len(watched.records) == 1, "a store that fails is not asked again"
    played = await stage.turn({"input": "a"}, answer("resp_2", said("x")))
    assert played.error is failure
    assert played.heard == []


async def test_in_the_open_mode_the_answer_goes_out_and_is_logged(
    open_stage: Callable[..., Stage], watched: Watched, caplog: pytest.LogCaptureFixture
):
    stage = open_stage(failure_mode="open")
    watched.failure = errors.StoreUnavailable()
    stream = streamed("resp_1", said("x"))
    played = await stage.turn({"input": "a", "stream": True}, stream)
    assert played.heard == stream
    assert "resp_1 goes out although it could not be stored" in caplog.text
    assert (await stage.turn({"input": "a"}, answer("resp_2", said("x")))).error is None
    assert len(caplog.records) == 2


async def test_a_response_id_that_the_backend_repeats_is_a_conflict(stage: Stage):
    await stage.turn({"input": "a"}, answer("resp_1", said("x")))
    played = await stage.turn({"input": "b"}, answer("resp_1", said("y")))
    assert isinstance(played.error, errors.StoreConflict)
    assert played.heard == []


async def test_nothing_is_said_twice_after_the_end(stage: Stage):
    stream = streamed("resp_1", said("x"))
    again = streamed("resp_2", said("y"))[-1]
    await stage.turn({"input": "a", "stream": True}, stream, again)
    assert await stage.kept("resp_2") is None


# A cut is a cut


async def test_a_stream_that_breaks_is_stored_as_failed_with_what_was_done(stage: Stage):
    cut = errors.StreamCut()
    played = await stage.turn(
        {"input": "a", "stream": True}, [*opening("resp_1"), *items_of(said("x")), Frames(delta(6))], cut
    )
    assert played.error is cut
    stored = await stage.store.response(ANN, "resp_1")
    assert stored is not None
    assert stored.head.status == "failed"
    assert json.loads(stored.head.envelope)["error"] == {"code": "server_error", "message": cut.message}
    assert [item.body for item in stored.output] == [said("x")]


async def test_a_stream_that_breaks_before_its_response_began_leaves_nothing(stage: Stage):
    played = await stage.turn({"input": "a", "stream": True}, opening("resp_1")[:1], errors.StreamCut())
    assert played.error is not None
    assert await stage.kept("resp_1") is None


async def test_an_error_event_of_a_begun_response_is_stored_as_its_failure(stage: Stage):
    last = event("error", 2, code=b'"rate"', message=b'"slow down"')
    played = await stage.turn({"input": "a", "stream": True}, opening("resp_1"), last)
    assert played.heard[-1] is last
    stored = await stage.store.response(ANN, "resp_1")
    assert stored is not None
    assert stored.head.status == "failed"
    assert json.loads(stored.head.envelope)["error"] == {"code": "rate", "message": "slow down"}


async def test_a_cut_that_is_not_to_be_stored_leaves_nothing(stage: Stage):
    await stage.turn({"input": "a", "stream": True, "store": False}, opening("resp_1"), errors.StreamCut())
    assert await stage.kept("resp_1") is None


async def test_a_client_that_leaves_leaves_nothing(stage: Stage):
    played, running = stage.begin({"input": "a", "stream": True}, opening("resp_1"), asyncio.Event())
    await played.waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await stage.kept("resp_1") is None
    assert len(stage.services.runs) == 0


# Cancelling from outside


async def test_a_run_that_is_cancelled_ends_incomplete_and_is_stored_so(stage: Stage):
    steps = [*opening("resp_1"), *items_of(said("x"))]
    played, running = stage.begin({"input": "a", "stream": True}, steps, asyncio.Event())
    await played.waiting.wait()
    assert stage.services.runs.find(ANN, "resp_2") is None
    run = stage.services.runs.find(ANN, "resp_1")
    assert run is not None
    run.cancel()
    await running
    assert run.over.is_set()
    assert await stage.kept("resp_1") == "cancelled"
    last = played.events[-1]
    assert last.type == "response.incomplete"
    told = json.loads(last.fields["response"])
    assert (told["status"], told["incomplete_details"]) == ("cancelled", {"reason": "cancelled"})
    assert said("x") in last.raw


# The log


@pytest.mark.parametrize("options", [{"max_event_count": 4}, {"max_event_bytes": 400}])
async def test_a_stream_that_is_too_long_keeps_no_log_but_all_the_rest(
    open_stage: Callable[..., Stage], options: dict[str, int]
):
    stage = open_stage(**options)
    await stage.turn({"input": "a", "stream": True}, streamed("resp_1", said("x")))
    assert await stage.kept("resp_1") == "completed"
    assert await stage.store.events(ANN, "resp_1") is None


async def test_an_answer_has_no_log(stage: Stage):
    await stage.turn({"input": "a"}, answer("resp_1"))
    assert await stage.store.events(ANN, "resp_1") is None


# Alone, without the filter that finds histories


async def test_the_filter_works_without_rehydrate(stage: Stage):
    played = await play(stage.filters[1:2], post({"input": "a"}), answer("resp_1", said("x")))
    assert played.error is None
    assert await input_of(stage, "resp_1") == [user("a")]


async def test_a_success_that_nobody_can_read_is_no_answer_to_a_turn_that_must_be_stored(stage: Stage):
    page = Head(200, b"OK", ((b"content-type", b"text/html"),))
    refused = await stage.turn({"input": "a"}, page)
    assert isinstance(refused.error, errors.UpstreamProtocol)
    assert refused.heard == []
    assert (await stage.turn({"input": "a", "store": False}, page)).heard == [page]
    failure = Head(503, b"Sorry", ((b"content-type", b"text/html"),))
    assert (await stage.turn({"input": "a"}, failure)).heard == [failure]


async def test_a_response_that_changes_its_id_is_not_believed(stage: Stage):
    begun = opening("resp_1")
    other = next(each for each in opening("resp_2") if isinstance(each, Event))
    final = encode("response.completed", other.data.replace(b"in_progress", b"completed"))
    played = await stage.turn({"input": "a", "stream": True}, [*begun, final])
    assert isinstance(played.error, errors.UpstreamProtocol)
    assert final not in played.heard
