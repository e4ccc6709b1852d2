"""A stream about a server that could not be listed: whole, numbered, without secrets."""

from __future__ import annotations

import json

from proxy.protocol.events import Event, Head
from proxy.protocol.turn import Body
from proxy.protocol.unlisted import Unlisted, stream


def test_the_stream_is_a_response_that_begins_and_fails():
    tool = {"type": "mcp", "server_label": "srv", "server_url": "https://a/", "authorization": "hush"}
    body = Body(json.dumps({"model": "m", "input": "a", "tools": [tool]}).encode())
    head, *events = stream(Unlisted("resp_1", "mcpl_1", 7, "srv", "it is away"), body)
    assert isinstance(head, Head)
    assert (head.status, head.events) == (200, True)
    data = [json.loads(event.data) for event in events if isinstance(event, Event)]
    assert [each["type"] for each in data] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.failed",
        "response.output_item.done",
        "response.failed",
    ]
    assert [each["sequence_number"] for each in data] == list(range(7))
    assert {each["response"]["id"] for each in data if "response" in each} == {"resp_1"}
    final = data[-1]["response"]
    assert (final["status"], final["error"]["message"], final["output"][0]["error"]) == ("failed", *["it is away"] * 2)
    assert final["output"] == [data[5]["item"]]
    assert "hush" not in json.dumps(data)
