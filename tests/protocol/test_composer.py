"""Rounds as one stream: at any cut of the bytes, in any spelling, whatever is hidden."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import jsonbytes
from proxy.protocol.composer import Composer, summed
from proxy.protocol.events import Event, Frames, encode
from proxy.protocol.loop import decide, result
from tests.rounds import COMPACT, SPACED, WIDE, Wire, a_call, check, custom, message, one_by_one, read, reasoning

HOSTED = frozenset({"weather", "srv__look"})
NASTY = '"sequence_number":5 "output_index":7 \\"sequence_number\\": 9 {"output_index":1}'
TOOLS = b'[{"type":"mcp","server_label":"srv"}]'


def composed(
    rounds: Sequence[bytes], cuts: Iterable[int] = (), overrides: jsonbytes.Fields | None = None
) -> list[Event | Frames]:
    """What a client is shown of these rounds; hosted calls become items of the gateway's own."""
    composer = Composer(HOSTED, {} if overrides is None else overrides)
    shown: list[Event | Frames] = []
    cuts = list(cuts)
    last: Event | None = None
    for raw in rounds:
        composer.begin_round()
        for part in read(raw, cuts):
            if isinstance(part, Frames):
                shown += composer.frames(part)
            elif part.terminal:
                last = part
            elif part.data != b"[DONE]":
                shown += composer.event(part)
        assert last is not None
        response = last.fields["response"]
        composer.count(response)
        for call in decide(result(last.type, response, ()), HOSTED, None).calls:
            item = {"id": f"mcp_{call.call_id}", "type": "mcp_call", "name": call.name, "arguments": call.arguments}
            place = composer.place()
            shown.append(composer.local("response.output_item.added", {"output_index": place, "item": item}))
            shown.append(composer.local("response.output_item.done", {"output_index": place, "item": item}))
            composer.output.append(jsonbytes.encode(item))
    assert last is not None
    shown.append(composer.final(last.type, last.fields["response"], {}))
    return shown


def usage(tokens: int) -> dict[str, Any]:
    return {"input_tokens": tokens, "input_tokens_details": {"cached_tokens": 1, "turns": [tokens]}, "total_tokens": 9}


def raw_of(parts: Iterable[Event | Frames]) -> bytes:
    return b"".join(part.raw for part in parts)


FIRST = [
    reasoning("rs_1", NASTY),
    message("msg_1", NASTY),
    a_call("weather", "c1", json.dumps({"q": NASTY})),
    a_call("mine", "c2", json.dumps({"sequence_number": 5, "output_index": 7})),
    custom("patch", "c3", NASTY),
    a_call("srv__look", "c4"),
]
SECOND = [reasoning("rs_2", "hm"), message("msg_2", NASTY), a_call("weather", "c5")]
THIRD = [message("msg_3", "done")]


def rounds(wire: Wire) -> list[bytes]:
    scripts = (FIRST, SECOND, THIRD)
    return [wire.round(f"resp_{n}", items, usage=usage(n)) for n, items in enumerate(scripts, 1)]


# Whole streams


@pytest.mark.parametrize("separators", [COMPACT, SPACED, WIDE])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_three_rounds_are_one_stream(separators: tuple[str, str], newline: bytes):
    final = check(one_by_one(composed(rounds(Wire(separators, newline)))), HOSTED)
    assert [item["id"] for item in final["output"]] == [
        *("rs_1", "msg_1", "fc_c2", "ctc_c3", "mcp_c1", "mcp_c4"),
        *("rs_2", "msg_2", "mcp_c5", "msg_3"),
    ]
    assert final["id"] == "resp_1"
    assert final["usage"] == {
        "input_tokens": 6,
        "input_tokens_details": {"cached_tokens": 3, "turns": [3]},
        "total_tokens": 27,
    }
    kept = {item["id"]: item for item in final["output"]}
    assert all(kept[item["id"]] == item for item in (*FIRST, *SECOND, *THIRD) if item["id"] in kept)


@pytest.mark.parametrize("separators", [COMPACT, WIDE])
def test_the_stream_is_the_same_at_every_cut_of_the_bytes(separators: tuple[str, str]):
    wire = Wire(separators)
    scripts = [wire.round("resp_1", FIRST[1:3]), wire.round("resp_2", THIRD)]
    whole = raw_of(composed(scripts))
    check(one_by_one(composed(scripts)), HOSTED)
    for cut in range(1, max(map(len, scripts))):
        assert raw_of(composed(scripts, [cut])) == whole
    assert raw_of(composed(scripts, range(10_000))) == whole


def test_one_round_without_hosted_calls_keeps_its_bytes():
    raw = Wire(SPACED).round("resp_1", [FIRST[0], FIRST[1], FIRST[3]])
    parts = composed([raw])
    unread = [part for part in parts if isinstance(part, Frames) or "response" not in part.fields]
    assert len(unread) > 8
    at = 0
    for part in unread:
        at = raw.index(part.raw, at) + len(part.raw)
    check(one_by_one(parts))


def test_bytes_are_unchanged_until_something_is_hidden():
    raw = Wire(SPACED).round("resp_1", [message("msg_1", NASTY), a_call("weather", "c1"), message("msg_2", NASTY)])
    before, _, _ = raw.partition(
        b'event: response.output_item.added\ndata: {"type": "response.output_item.added", "output_index": 1'
    )
    shown = raw_of(composed([raw]))
    kept = before.partition(b"event: response.output_item.added")[2]
    assert kept in shown
    check(one_by_one(composed([raw])), HOSTED)


def test_comments_pass_and_count_for_nothing():
    wire = Wire(comments=True)
    events = one_by_one(composed([wire.round("resp_1", FIRST), wire.round("resp_2", THIRD)]))
    check(events, HOSTED)
    assert sum(event.raw.startswith(b": ping") for event in events) > 10


@pytest.mark.parametrize("first", [1, 1000])
def test_a_backend_that_begins_to_count_elsewhere_is_counted_from_0(first: int):
    wire = Wire(first=first)
    check(one_by_one(composed([wire.round("resp_1", FIRST[:2])])))
    check(one_by_one(composed([wire.round("resp_1", FIRST), wire.round("resp_2", THIRD)])), HOSTED)


def test_frames_without_numbers_get_none_and_the_others_are_contiguous():
    wire = Wire(numbered=False)
    events = one_by_one(composed([wire.round("resp_1", FIRST), wire.round("resp_2", THIRD)]))
    numbers = [event.sequence_number for event in events if event.sequence_number is not None]
    assert numbers == list(range(len(numbers)))
    assert all(event.sequence_number is None for event in events if event.type.endswith(".delta"))
    done = [json.loads(event.fields["item"]) for event in events if event.type == "response.output_item.done"]
    assert json.loads(events[-1].fields["response"])["output"] == done


# Frames by themselves


def begun(*functions: str, rounds_: int = 1, **overrides: bytes) -> Composer:
    composer = Composer(functions, overrides)
    for _ in range(rounds_):
        composer.begin_round()
    return composer


def an_event(type_: str, **members: Any) -> Event:
    return encode(type_, json.dumps({"type": type_, **members}).encode())


def test_a_number_within_an_item_is_nobodys_number():
    schema = {"sequence_number": 5, "output_index": 7, "deep": [{"sequence_number": 1}]}
    item = {"id": "x_1", "type": "mcp_list_tools", "tools": [schema]}
    for composer in (begun(), begun(rounds_=2)):
        for type_ in ("added", "done"):
            event = an_event(f"response.output_item.{type_}", output_index=0, item=item, sequence_number=0)
            (shown,) = composer.event(event)
            assert json.loads(shown.data)["item"] == item
        assert json.loads(shown.data)["sequence_number"] == 1
        assert composer.output == [json.dumps(item).encode()]


def test_a_call_that_is_only_said_to_be_done_is_hidden_too():
    composer = begun("weather")
    done = an_event("response.output_item.done", output_index=0, item=a_call("weather", "c"), sequence_number=0)
    assert composer.event(done) == []
    assert composer.output == []
    theirs = an_event("response.output_item.done", output_index=1, item=a_call("mine", "d"), sequence_number=1)
    (shown,) = composer.event(theirs)
    assert (json.loads(shown.data)["output_index"], shown.sequence_number) == (0, 0)


@pytest.mark.parametrize(
    "item",
    [
        a_call("mine", "c"),
        a_call("weather", "c", namespace="theirs"),
        custom("weather", "c"),
        message("msg_1", '{"type":"function_call","name":"weather"}'),
        {"id": "x", "type": "other", "name": "weather", "about": "function_call"},
    ],
)
def test_what_is_not_hosted_is_shown(item: dict[str, Any]):
    event = an_event("response.output_item.added", output_index=0, item=item, sequence_number=0)
    assert begun("weather").event(event) == [event]


def test_a_null_namespace_is_none():
    event = an_event("response.output_item.added", output_index=0, item=a_call("weather", "c", namespace=None))
    assert begun("weather").event(event) == []


def test_hidden_deltas_are_taken_out_of_a_run():
    composer = begun("weather")
    composer.event(
        an_event("response.output_item.added", output_index=0, item=a_call("weather", "c"), sequence_number=0)
    )
    composer.event(an_event("response.output_item.added", output_index=1, item=a_call("mine", "d"), sequence_number=1))
    type_ = "response.function_call_arguments.delta"
    hidden, shown = (an_event(type_, output_index=index, delta=NASTY, sequence_number=9) for index in (0, 1))
    assert composer.frames(Frames(hidden.raw * 3)) == []
    (run,) = composer.frames(Frames(hidden.raw + shown.raw + hidden.raw + shown.raw))
    assert [json.loads(event.data) for event in one_by_one([run])] == [
        {"type": type_, "output_index": 0, "delta": NASTY, "sequence_number": number} for number in (1, 2)
    ]


def test_the_response_is_pinned_and_its_tools_are_the_clients():
    composer = begun(tools=TOOLS, tool_choice=b'{"type":"mcp"}')
    response = {"id": "resp_1", "tools": [], "tool_choice": "auto"}
    for type_ in ("created", "queued", "in_progress"):
        (shown,) = composer.event(an_event(f"response.{type_}", response=response))
        inner = json.loads(shown.data)["response"]
        assert inner == {"id": "resp_1", "tools": json.loads(TOOLS), "tool_choice": {"type": "mcp"}}
    composer.begin_round()
    assert composer.event(an_event("response.created", response={"id": "resp_2"})) == []
    last = composer.final("response.completed", b'{"id":"resp_2","tools":[],"x":1.50}', {"status": b'"completed"'})
    assert last.fields["response"] == (
        b'{"id":"resp_1","tools":%b,"x":1.50,"output":[],"status":"completed"}' % TOOLS
    ), "a tool_choice that the backend does not repeat is not made up"


def test_numbers_that_were_not_sent_are_given_back():
    composer = begun()
    assert composer.local("a", {}).sequence_number == 0
    assert composer.local("b", {}).sequence_number == 1
    composer.take_back(1)
    assert composer.local_raw("c", {"x": b"1.50"}).raw == b'event: c\ndata: {"x":1.50,"sequence_number":1}\n\n'


@pytest.mark.parametrize(
    ("one", "other", "sum_"),
    [
        ({"a": 1}, {"a": 2}, {"a": 3}),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": "x"}}, {"a": {"b": 1, "c": "y"}}, {"a": {"b": 2, "c": "y"}}),
        ({"a": True}, {"a": True}, {"a": True}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 0.5}, {"a": 0.25}, {"a": 0.25}),
    ],
)
def test_usages_are_summed_at_every_depth(one: Any, other: Any, sum_: Any):
    assert summed(one, other) == sum_


@pytest.mark.parametrize("missing", [b'{"id":"resp_1"}', b'{"id":"resp_1","usage":null}'])
def test_a_round_without_usage_counts_for_nothing(missing: bytes):
    for order in ([missing, b'{"id":"resp_1","usage":{"a":1}}'], [b'{"id":"resp_1","usage":{"a":1}}', missing]):
        composer = begun()
        for response in order:
            composer.count(response)
        assert json.loads(composer.merged(order[-1], {}))["usage"] == {"a": 1}
    composer = begun()
    composer.count(missing)
    assert json.loads(composer.merged(missing, {})).get("usage") is None


# Any rounds

texts = st.one_of(st.text(max_size=8), st.sampled_from([NASTY, "", '"', "\\", "\n\n", "event: x", "\u2028"]))
arguments = st.dictionaries(st.sampled_from(["q", "sequence_number", "output_index"]), st.integers(0, 9) | texts).map(
    json.dumps
)


@st.composite
def scripts(draw: st.DrawFn) -> list[bytes]:
    wire = Wire(
        draw(st.sampled_from([COMPACT, SPACED, WIDE])),
        draw(st.sampled_from([b"\n", b"\r\n"])),
        comments=draw(st.booleans()),
        first=draw(st.sampled_from([0, 0, 1])),
        done=draw(st.booleans()),
    )
    made: list[bytes] = []
    serial = 0
    for number in range(draw(st.integers(1, 4))):
        items: list[dict[str, Any]] = []
        for kind in draw(st.lists(st.sampled_from("mrcxhhn"), max_size=5)):
            serial += 1
            items.append(
                {
                    "m": lambda n: message(f"msg_{n}", draw(texts)),
                    "r": lambda n: reasoning(f"rs_{n}", draw(texts)),
                    "c": lambda n: a_call("mine", f"c{n}", draw(arguments)),
                    "x": lambda n: custom("weather", f"c{n}", draw(texts)),
                    "h": lambda n: a_call(draw(st.sampled_from(sorted(HOSTED))), f"c{n}", draw(arguments)),
                    "n": lambda n: a_call("weather", f"c{n}", draw(arguments), namespace="theirs"),
                }[kind](serial)
            )
        made.append(wire.round(f"resp_{number}", items, usage={"a": number, "b": {"c": 1}}))
    return made


@given(scripts(), st.lists(st.integers(1, 4000), max_size=20))
def test_any_rounds_make_one_proper_stream(made: list[bytes], cuts: list[int]):
    shown = composed(made, cuts, {"tools": TOOLS})
    events = one_by_one(shown)
    final = check(events, HOSTED)
    assert final["id"] == "resp_0"
    assert final["usage"] == {"a": sum(range(len(made))), "b": {"c": len(made)}}
    for event in events:
        if "response" in event.fields:
            assert jsonbytes.fields(event.fields["response"])["tools"] == TOOLS
    responses = [json.loads(read(raw)[-1 if b"[DONE]" not in raw else -2].data)["response"] for raw in made]  # type: ignore[union-attr]
    said = [item for response in responses for item in response["output"]]
    assert [item["id"].removeprefix("mcp_") for item in final["output"] if item["type"] == "mcp_call"] == [
        item["call_id"] for item in said if _hosted(item)
    ]
    assert [item for item in final["output"] if item["type"] != "mcp_call"] == [
        item for item in said if not _hosted(item)
    ]
    assert raw_of(composed(made, (), {"tools": TOOLS})) == raw_of(shown)


def _hosted(item: dict[str, Any]) -> bool:
    return item["type"] == "function_call" and item["name"] in HOSTED and not item.get("namespace")
