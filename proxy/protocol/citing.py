"""Citations: the annotations that a message's text earns from what the tools of its turn found.

The text itself is never touched, since it has been streamed already; annotations are added where a part is finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.protocol import jsonbytes
from proxy.protocol.composer import Composer
from proxy.protocol.events import Event, encode
from proxy.protocol.hosting import Hosted

_PLACE = ("item_id", "output_index", "content_index")


def cited(event: Event, hosted: Sequence[Hosted], composer: Composer) -> list[Event]:
    """The event with the annotations that its text earns, and before a finished part the events that announce them."""
    members = event.fields
    if event.type == "response.content_part.done":
        return _part(event, members, hosted, composer)
    item = members.get("item", b"")
    if b'"output_text"' not in item:
        return [event]
    inner = jsonbytes.fields(item)
    parts = jsonbytes.elements(inner.get("content", b"[]"))
    mended = [_annotated(part, hosted)[0] for part in parts]
    if mended == parts:
        return [event]
    new_item = jsonbytes.join_object({**inner, "content": jsonbytes.join_array(mended)})
    return [encode(event.type, jsonbytes.join_object({**members, "item": new_item}))]


def _part(event: Event, members: jsonbytes.Fields, hosted: Sequence[Hosted], composer: Composer) -> list[Event]:
    mended, found = _annotated(members.get("part", b"{}"), hosted)
    if not found:
        return [event]
    # The announcements come first, so the part itself needs a new number.
    place: dict[str, Any] = {name: jsonbytes.value(members[name]) for name in _PLACE if name in members}
    if event.sequence_number is not None:
        composer.take_back(1)
    events = [
        composer.local(
            "response.output_text.annotation.added", {**place, "annotation_index": index, "annotation": each}
        )
        for index, each in enumerate(found)
    ]
    return [*events, composer.local_raw(event.type, {**members, "part": mended})]


def _annotated(part: bytes, hosted: Sequence[Hosted]) -> tuple[bytes, list[Mapping[str, Any]]]:
    members = jsonbytes.fields(part)
    text = jsonbytes.text(members.get("text"))
    if not text or jsonbytes.text(members.get("type")) != "output_text":
        return part, []
    found = [each for tool in hosted for each in tool.annotate(text)[1]]
    if not found:
        return part, []
    old = jsonbytes.elements(members.get("annotations", b"[]")) if jsonbytes.present(members.get("annotations")) else []
    annotations = jsonbytes.join_array([*old, *map(jsonbytes.encode, found)])
    return jsonbytes.join_object({**members, "annotations": annotations}), found
