"""Frames come out whole, in order and unchanged, wherever the bytes were cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.events import Event, Frames
from proxy.protocol.sse import Decoder, FrameTooLarge, event, frames, split, usual_run

ENDS = [b"\n", b"\r\n", b"\r"]


def frame(*lines: bytes, end: bytes = b"\n") -> bytes:
    return end.join([*lines, b"", b""])


def delta(text: bytes = b"Hi", end: bytes = b"\n") -> bytes:
    return frame(b"event: response.output_text.delta", b'data: {"delta":"' + text + b'"}', end=end)


def fed(pieces: Sequence[bytes]) -> tuple[list[Frames | Event], bytes]:
    decoder = Decoder()
    return [part for piece in pieces for part in decoder.feed(piece)], decoder.rest()


def flat(parts: Sequence[Frames | Event]) -> list[bytes]:
    """The frames one by one; blank lines between frames belong to neither."""
    single = [one.raw for part in parts for one in (frames(part.raw) if isinstance(part, Frames) else [part])]
    return [raw for raw in (raw.lstrip(b"\r\n") for raw in single) if raw]


def cut(stream: bytes, *places: int) -> list[bytes]:
    borders = [0, *sorted(places), len(stream)]
    return [stream[a:b] for a, b in pairwise(borders)]


@pytest.mark.parametrize("end", ENDS, ids=["LF", "CRLF", "CR"])
def test_a_stream_may_be_cut_at_any_two_places(end: bytes):
    made = [
        frame(b"event: response.created", b'data: {"a":1}', end=end),
        delta(b"a", end),
        delta(b"b", end),
        frame(b": ping", end=end),
        frame(b"data: 1", b"data: 2", end=end),
        frame(b"data: [DONE]", end=end),
    ]
    stream = b"".join(made)
    for places in combinations(range(len(stream) + 1), 2):
        parts, rest = fed(cut(stream, *places))
        assert b"".join(part.raw for part in parts) + rest == stream
        assert flat(parts) + ([rest] if rest else []) == made, places


def test_a_blank_line_of_carriage_returns_at_the_end_may_be_half_of_one():
    decoder = Decoder()
    assert decoder.feed(b"data: 1\r\r") == []
    assert flat(decoder.feed(b"data: 2\r\r")) == [b"data: 1\r\r"]
    assert decoder.rest() == b"data: 2\r\r"


def test_a_crlf_cut_in_the_middle_ends_a_frame_once():
    parts, rest = fed([b"data: 1\r\n\r", b"\ndata: 2\r\n\r\n"])
    assert [part.raw for part in parts] == [b"data: 1\r\n\r\n", b"data: 2\r\n\r\n"]
    assert rest == b""


def test_deltas_that_arrive_together_stay_together():
    stream = frame(b"event: response.created", b"data: {}") + delta(b"a") + delta(b"b")
    created, run = split(stream)
    assert isinstance(created, Event)
    assert created.type == "response.created"
    assert run == Frames(delta(b"a") + delta(b"b"))


@pytest.mark.parametrize(
    "other",
    [
        frame(b"event: response.completed", b"data: {}"),
        frame(b"event:response.completed", b"data: {}"),
        frame(b'data: {"type":"response.completed"}'),
        frame(b": a comment", b"event: response.completed", b"data: {}"),
        b"\n\n" + frame(b"event: response.completed", b"data: {}"),
        frame(b"event: response.completed", b"data: {}", end=b"\r\n"),
        frame(b"id: 7", b"event: response.completed", b"data: {}"),
        frame(b"data: {}", b"event: response.completed"),
        frame(b"event: error", b"data: {}"),
        frame(b"event: response.output_text.delta.done", b"data: {}"),
    ],
)
def test_a_frame_that_is_no_delta_stands_alone_between_deltas(other: bytes):
    run, alone, more = split(delta() + other + delta())
    assert isinstance(run, Frames)
    assert isinstance(alone, Event)
    assert alone.raw == other
    assert isinstance(more, Frames)


def test_blank_lines_and_comments_keep_their_bytes():
    stream = b"\n\n: hello\n\n\r\n" + delta() + b"\n\n\n" + frame(b"data: [DONE]")
    parts, rest = fed([stream])
    assert b"".join(part.raw for part in parts) == stream
    assert rest == b""


def test_data_of_several_lines_is_joined_by_newlines():
    assert event(b'event: x\ndata: {"a":\ndata:  1}\n\n').data == b'{"a":\n 1}'


def test_the_name_comes_from_the_event_line_wherever_it_stands():
    assert event(b"data: {}\nevent: response.completed\n\n").name == "response.completed"
    assert event(b"data: event: x\n\n").name == ""
    assert event(b"event: \xff\n\n").name == "\xff"


def test_an_unfinished_frame_is_held_up_to_a_limit():
    decoder = Decoder(max_frame_bytes=10)
    assert decoder.feed(b"data: 3456") == []
    with pytest.raises(FrameTooLarge):
        decoder.feed(b"7")


def test_whole_frames_before_one_that_is_too_large_come_out_first():
    decoder = Decoder(max_frame_bytes=10)
    assert flat(decoder.feed(b"data: 1\n\ndata: 34567890")) == [b"data: 1\n\n"]
    assert decoder.too_large
    with pytest.raises(FrameTooLarge):
        decoder.feed(b"1")


def test_frames_that_end_count_for_nothing_in_the_limit():
    decoder = Decoder(max_frame_bytes=10)
    for _ in range(5):
        assert len(decoder.feed(b"data: 1\n\n")) == 1
    assert decoder.feed(b"data: 1\n\nda") != []
    assert decoder.rest() == b"da"


def test_the_frame_that_never_ended_is_not_lost():
    parts, rest = fed([delta() + b"event: response.com", b"pleted\ndata: {"])
    assert flat(parts) == [delta()]
    assert rest == b"event: response.completed\ndata: {"


_text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=8).map(str.encode)
_line = st.one_of(
    st.just(b"event: response.output_text.delta"),
    st.just(b"event: response.completed"),
    st.just(b"data: {}"),
    _text.map(b"data: ".__add__),
    _text.map(b": ".__add__),
    _text.map(b"x".__add__),
)
_frame = st.builds(
    lambda lines, end: frame(*lines, end=end), st.lists(_line, min_size=1, max_size=4), st.sampled_from(ENDS)
)
_delta = st.builds(delta, _text, st.sampled_from(ENDS))


@given(st.lists(st.one_of(_delta, _frame), max_size=8), st.lists(st.integers(0, 400), max_size=8))
def test_any_stream_cut_anywhere_gives_the_same_frames_and_the_same_bytes(made: list[bytes], places: list[int]):
    stream = b"".join(made)
    parts, rest = fed(cut(stream, *(min(place, len(stream)) for place in places)))
    assert b"".join(part.raw for part in parts) + rest == stream
    assert flat(parts) + ([rest] if rest else []) == made
    for part in parts:
        if isinstance(part, Frames):
            assert all(one.type.endswith(".delta") for one in frames(part.raw))


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_any_bytes_at_all_come_out_again(data: bytes, places: list[int]):
    parts, rest = fed(cut(data, *(min(place, len(data)) for place in places)))
    assert b"".join(part.raw for part in parts) + rest == data


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_last_event_line_of_a_frame_counts_as_it_does_for_clients(end: bytes):
    delta = b"event: response.a.delta\ndata: {}\n\n"
    twice = b"event: response.a.delta\nevent: response.completed\ndata: {}\n\n"
    late = b"event: response.a.delta\ndata: {}\nevent: response.completed\n\n"
    for odd in (twice, late):
        found = split((delta + odd + delta).replace(b"\n", end))
        assert [part.name for part in found if isinstance(part, Event)].count("response.completed") == 1


def test_a_run_that_is_found_in_one_search_is_the_one_that_frame_by_frame_would_be_found():
    one = b"event: response.output_text.delta\n"
    other = b"event: response.reasoning_text.delta\n"
    frames_ = [one + b"data: 1\n\n", other + b"data: 2\n\n", one + b"data: \n\n", one + b"data: a\rb\n\n"]
    frames_ += [one + b"data: 1\ndata: 2\n\n", one + b"id: 1\ndata: 1\n\n", one + b"\n", one + b"event: x\ndata: 1\n\n"]
    for chosen in product(frames_, repeat=3):
        stream = b"".join(chosen)
        decoder = Decoder()
        decoder.feed(frames_[0])  # from now on it knows what is usual
        assert flat(decoder.feed(stream)) == flat(split(stream)) == flat(frames(stream))
        for part in split(stream):
            if isinstance(part, Frames):
                assert all(each.type.endswith(".delta") for each in frames(part.raw))


def test_what_is_usual_follows_the_stream():
    decoder = Decoder()
    text, more = (frame(b"event: response.%b.delta" % name, b"data: {}") for name in (b"a", b"b"))
    for piece in (text, text * 2, more, more * 2, text + more, frame(b"event: response.completed", b"data: {}")):
        parts = decoder.feed(piece)
        assert b"".join(part.raw for part in parts) == piece
        assert isinstance(parts[0], Event) is (b"completed" in piece)
    assert decoder.feed(text[:-1]) == []
    assert decoder.feed(text[-1:] + text) == [Frames(text + text)]


def test_a_pattern_of_a_run_takes_a_line_for_what_it_says():
    run = usual_run(b"event: response.a.delta\n")
    assert run.fullmatch(b"event: response.a.delta\ndata: 1\n\n" * 3)
    assert not run.fullmatch(b"event: response_a.delta\ndata: 1\n\n")
    assert not run.fullmatch(b"event: response.a.delta\ndata: 1\n\n\n")
