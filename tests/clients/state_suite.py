"""The OpenAI Python SDK: conversations and their items."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIStatusError, NotFoundError, OpenAI

from tests.clients.openai_suite import all_tokens, ask, ask_streamed, given_tokens, text_of


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


def texts(client: OpenAI, conversation_id: str, **query: Any) -> list[str]:
    listed = client.conversations.items.list(conversation_id, **query)
    return [text_of(item) for item in listed]


def test_conversation_object(client: OpenAI) -> None:
    made = client.conversations.create(items=[user("One"), user("Two")], metadata={"topic": "a"})
    assert made.id.startswith("conv_")
    assert made.object == "conversation"
    assert client.conversations.retrieve(made.id).metadata == {"topic": "a"}
    assert client.conversations.update(made.id, metadata={"topic": "b"}).metadata == {"topic": "b"}
    assert client.conversations.retrieve(made.id).to_dict() == made.to_dict() | {"metadata": {"topic": "b"}}
    assert texts(client, made.id, order="asc") == ["One", "Two"]


def test_conversation_items(client: OpenAI) -> None:
    conversation = client.conversations.create()
    added = client.conversations.items.create(conversation.id, items=[user(f"Text {n}") for n in range(4)])
    assert [text_of(item) for item in added.data] == [f"Text {n}" for n in range(4)]
    assert texts(client, conversation.id) == [f"Text {n}" for n in (3, 2, 1, 0)]
    assert texts(client, conversation.id, order="asc", limit=3) == [f"Text {n}" for n in range(4)]
    second = added.data[1].id
    assert second is not None
    assert texts(client, conversation.id, order="asc", after=second) == ["Text 2", "Text 3"]
    kept = client.conversations.items.retrieve(second, conversation_id=conversation.id)
    assert kept.to_dict() == added.data[1].to_dict()
    client.conversations.items.delete(second, conversation_id=conversation.id)
    assert texts(client, conversation.id, order="asc") == ["Text 0", "Text 2", "Text 3"]
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(second, conversation_id=conversation.id)


@pytest.mark.parametrize("as_object", [False, True])
def test_turns_in_a_conversation(client: OpenAI, model: str, as_object: bool) -> None:
    conversation = client.conversations.create(items=[user("Let us talk about Norway.")])
    chosen: Any = {"id": conversation.id} if as_object else conversation.id
    first = ask(client, model, input="Is Oslo in Norway?", conversation=chosen)
    last = ask_streamed(client, model, input="And Bergen?", conversation=chosen)[-1]
    assert last.type == "response.completed"
    assert given_tokens(last.response) > all_tokens(first)
    assert texts(client, conversation.id, order="asc") == [
        "Let us talk about Norway.", "Is Oslo in Norway?", first.output_text, "And Bergen?",
        last.response.output_text,
    ]  # fmt: skip


def test_store_false_still_appends_to_a_named_conversation(client: OpenAI, model: str) -> None:
    conversation = client.conversations.create()
    response = ask(client, model, input="Is Oslo in Norway?", conversation=conversation.id, store=False)
    assert texts(client, conversation.id, order="asc") == ["Is Oslo in Norway?", response.output_text]
    with pytest.raises(NotFoundError):
        client.responses.retrieve(response.id)


def test_a_deleted_conversation_is_gone(client: OpenAI, model: str) -> None:
    conversation = client.conversations.create(items=[user("One")])
    deleted = client.conversations.delete(conversation.id)
    assert (deleted.id, deleted.deleted) == (conversation.id, True)
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(conversation.id)
    with pytest.raises(NotFoundError):
        client.conversations.items.list(conversation.id)
    with pytest.raises(APIStatusError) as caught:
        ask(client, model, input="x", conversation=conversation.id)
    assert caught.value.status_code in (400, 404)


def test_an_unknown_conversation_is_never_made_silently(client: OpenAI, model: str) -> None:
    with pytest.raises(APIStatusError) as caught:
        ask(client, model, input="x", conversation="conv_of_nobody")
    assert caught.value.status_code in (400, 404)
    with pytest.raises(NotFoundError):
        client.conversations.retrieve("conv_of_nobody")
