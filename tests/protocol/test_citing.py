"""Annotations that a message's text earns from the tools of its turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol.citing import cited
from proxy.protocol.composer import Composer
from proxy.protocol.events import Event, encode
from tests.hosted import StandIn

PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
SKY = StandIn(marks={"the sky": "https://sky.example/"})
SEA = StandIn(marks={"the sea": "https://sea.example/"})


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], **more}


def an_event(type_: str, **members: Any) -> Event:
    return encode(type_, json.dumps({"type": type_, **members}).encode())


def played(event: Event, *hosted: StandIn) -> list[dict[str, Any]]:
    """What becomes of the third event of a stream."""
    composer = Composer((), {})
    composer.begin_round()
    composer.local("a", {})
    composer.local("b", {})
    (shown,) = composer.event(event)
    return [json.loads(each.data) for each in cited(shown, hosted, composer)]


def test_a_finished_part_is_announced_annotation_by_annotation():
    done = an_event("response.content_part.done", **PLACE, part=part("see the sky and the sea"), sequence_number=7)
    sky, sea, last = played(done, SKY, SEA)
    citation = {
        "type": "url_citation",
        "start_index": 4,
        "end_index": 11,
        "url": "https://sky.example/",
        "title": "the sky",
    }
    added = "response.output_text.annotation.added"
    assert sky == {"type": added, **PLACE, "annotation_index": 0, "annotation": citation, "sequence_number": 2}
    assert (sea["annotation_index"], sea["sequence_number"], sea["annotation"]["title"]) == (1, 3, "the sea")
    assert last["part"]["annotations"] == [sky["annotation"], sea["annotation"]]
    assert (last["sequence_number"], last["part"]["text"], last["output_index"]) == (4, "see the sky and the sea", 0)


def test_the_item_gets_the_same_without_an_announcement():
    item = {"id": "msg_1", "type": "message", "content": [part("the sky"), {"type": "refusal", "refusal": "the sky"}]}
    (done,) = played(an_event("response.output_item.done", output_index=0, item=item, sequence_number=2), SKY)
    first, second = done["item"]["content"]
    assert [each["title"] for each in first["annotations"]] == ["the sky"]
    assert second == item["content"][1]
    assert done["sequence_number"] == 2


def test_annotations_of_the_backend_come_first():
    own = {"type": "file_path", "file_id": "f"}
    (_, last) = played(
        an_event("response.content_part.done", **PLACE, part=part("the sky", annotations=[own]), sequence_number=2), SKY
    )
    assert last["part"]["annotations"][0] == own
    assert len(last["part"]["annotations"]) == 2


@pytest.mark.parametrize("annotations", [None, "absent"])
def test_a_part_without_annotations_gets_some(annotations: Any):
    whole = part("the sky", annotations=None)
    if annotations == "absent":
        del whole["annotations"]
    *_, last = played(an_event("response.content_part.done", **PLACE, part=whole, sequence_number=2), SKY)
    assert len(last["part"]["annotations"]) == 1


@pytest.mark.parametrize(
    "event",
    [
        an_event("response.content_part.done", **PLACE, part=part("nothing"), sequence_number=2),
        an_event("response.content_part.done", **PLACE, part=part(""), sequence_number=2),
        an_event("response.content_part.done", **PLACE, part={"type": "refusal", "text": "the sky"}, sequence_number=2),
        an_event("response.content_part.done", **PLACE, sequence_number=2),
        an_event("response.output_item.done", output_index=0, item={"type": "reasoning"}, sequence_number=2),
        an_event(
            "response.output_item.done",
            output_index=0,
            item={"type": "function_call", "arguments": '"output_text" the sky'},
            sequence_number=2,
        ),
        an_event("response.output_item.done", output_index=0, item={"content": [part("x")]}, sequence_number=2),
    ],
)
def test_what_earns_nothing_keeps_its_bytes(event: Event):
    composer = Composer((), {})
    composer.begin_round()
    assert cited(event, [SKY, SEA], composer) == [event]
    assert composer.local("x", {}).sequence_number == 0


def test_a_part_that_had_no_number_takes_none_back():
    _, last = played(an_event("response.content_part.done", **PLACE, part=part("the sky")), SKY)
    assert last["sequence_number"] == 3
