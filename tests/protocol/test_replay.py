"""A stored stream sent again."""

import pytest

from proxy.protocol.replay import replayed


def frame(type_: str, number: int | None, end: str = "\n") -> bytes:
    tail = "" if number is None else f',"sequence_number": {number}'
    return f'event: {type_}{end}data: {{"type":"{type_}"{tail}}}{end}{end}'.encode()


CREATED = frame("response.created", 0)
COMMENT = b": still here\n\n"
KEEPALIVE = frame("keepalive", None)
DELTA = frame("response.output_text.delta", 1, "\r\n")
COMPLETED = frame("response.completed", 2)
DONE = b"data: [DONE]\n\n"
LOG = CREATED + COMMENT + KEEPALIVE + DELTA + COMPLETED + DONE


def test_the_whole_stream_comes_again_as_it_was():
    assert replayed(LOG, None) == LOG


def test_only_numbered_frames_after_the_given_one_come_again():
    assert replayed(LOG, 0) == DELTA + COMPLETED + DONE
    assert replayed(LOG, 1) == COMPLETED + DONE


@pytest.mark.parametrize("number", [2, 3, 2**64 - 1])
def test_nothing_comes_after_the_end(number: int):
    assert replayed(LOG, number) == b""


def test_done_comes_only_where_it_came_before():
    assert replayed(CREATED + COMPLETED, None) == CREATED + COMPLETED


def test_the_stream_ends_with_its_terminal():
    assert replayed(CREATED + COMPLETED + DELTA + DONE, None) == CREATED + COMPLETED + DONE


@pytest.mark.parametrize("type_", ["response.completed", "response.incomplete", "response.failed", "error"])
def test_every_terminal_ends_it(type_: str):
    assert replayed(CREATED + frame(type_, 1), 0) == frame(type_, 1)


def test_a_stream_without_an_end_is_no_whole_log():
    assert replayed(CREATED + DELTA, None) is None
    assert replayed(b"", None) is None


def test_a_type_that_stands_only_in_the_data_counts():
    bare = b'data: {"type":"response.completed","sequence_number":1}\n\n'
    assert replayed(CREATED + bare + DELTA, 0) == bare
