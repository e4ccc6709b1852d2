"""The conversation that the demo shows: the OpenAI Python SDK against the gateway, one line of explanation a step."""

from __future__ import annotations

import sys

from openai import NotFoundError, OpenAI, OpenAIError
from openai.types.responses import Response

from proxy.demo.process import DemoError, Say


def show(gateway: str, model: str, say: Say) -> None:
    try:
        Conversation(gateway, model, say).show()
    except OpenAIError as failure:
        raise DemoError(f"the conversation stopped: {failure}") from failure


class Conversation:
    def __init__(self, gateway: str, model: str, say: Say) -> None:
        self._client = OpenAI(base_url=f"{gateway}/v1", api_key="demo", max_retries=0)
        self._model = model
        self._say = say

    def show(self) -> None:
        first = self.streamed_turn()
        second = self.continued_turn(first)
        self.conversation_turns()
        self.stored_objects(first, second)
        self.deletion(second)

    def streamed_turn(self) -> str:
        self._say('\n1. A streamed turn: responses.create(stream=True, input="What is the capital of France?")')
        _type("   ")
        response_id = ""
        stream = self._client.responses.create(
            model=self._model, input="What is the capital of France?", stream=True, temperature=0
        )
        for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                _type(event.delta)
        _type("\n")
        self._say(f"   stored as {response_id}")
        return response_id

    def continued_turn(self, previous: str) -> str:
        self._say(f"\n2. The next turn sends only new words and previous_response_id={previous}")
        response = self._client.responses.create(
            model=self._model, input="And of Norway?", previous_response_id=previous,
            temperature=0,
        )  # fmt: skip
        self._told(response)
        self._say("   vLLM keeps no state: the gateway put the first turn back in front of the question.")
        return response.id

    def conversation_turns(self) -> None:
        conversation = self._client.conversations.create(metadata={"topic": "demo"})
        self._say(f"\n3. A conversation of three turns: conversation={conversation.id}")
        for words in ("My name is Ada.", "I live in London.", "What is my name?"):
            self._say(f"   > {words}")
            self._told(self._client.responses.create(
                model=self._model, input=words, conversation=conversation.id, temperature=0,
            ))  # fmt: skip
        count = len(list(self._client.conversations.items.list(conversation.id)))
        self._say(f"   the conversation now holds {count} items")

    def stored_objects(self, first: str, second: str) -> None:
        stored = self._client.responses.retrieve(first)
        self._say(f"\n4. GET /v1/responses/{first}: status {stored.status}, {len(stored.output)} output item(s)")
        items = list(self._client.responses.input_items.list(second))
        self._say(f"5. GET /v1/responses/{second}/input_items: what this turn brought, {len(items)} item(s)")
        for item in items:
            self._say(f"   - {item.type} {getattr(item, 'role', '')}")

    def deletion(self, response_id: str) -> None:
        self._client.responses.delete(response_id)
        self._say(f"6. DELETE /v1/responses/{response_id}: done")
        try:
            self._client.responses.retrieve(response_id)
        except NotFoundError as gone:
            self._say(f"   GET now answers {gone.status_code}: {gone.body}")

    def _told(self, response: Response) -> None:
        usage = response.usage
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else "no usage"
        self._say(f"   {response.output_text.strip()}\n   ({tokens}; {response.id})")


def _type(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
