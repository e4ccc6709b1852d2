"""The conversation that the demo shows: the OpenAI Python SDK against the gateway, one line of explanation a step."""

from __future__ import annotations

from typing import Any

from openai import NotFoundError, OpenAI, OpenAIError
from openai.types.responses import Response

from proxy.demo.process import DemoError, Say, write

FIRST, SECOND = "What is the capital of France?", "And of Norway?"
SEARCHED = "Look for the lighthouse keeper. What is the name of the cat?"
CONVERSATION = ("What is the capital of Italy?", "And of Spain?", "And of Sweden?")
# Only a complete response can be continued: short answers, and a limit that no short answer meets.
FIELDS: dict[str, Any] = {"instructions": "You answer in one short sentence.", "temperature": 0}
FIELDS |= {"max_output_tokens": 1000}


def show(gateway: str, model: str, say: Say) -> None:
    try:
        Conversation(gateway, model, say).show()
    except OpenAIError as failure:
        raise DemoError(f"the conversation stopped: {failure}") from failure


class Conversation:
    def __init__(self, gateway: str, model: str, say: Say) -> None:
        self._client = OpenAI(base_url=f"{gateway}/v1", api_key="demo", max_retries=0)
        self._fields = {"model": model, **FIELDS}
        self._say = say

    def show(self) -> None:
        first = self.streamed_turn()
        second = self.continued_turn(first)
        self.conversation_turns()
        self.stored_objects(first, second)
        self.deletion(second)
        self.hosted_tool()

    def streamed_turn(self) -> str:
        self._say(f'\n1. A streamed turn: responses.create(stream=True, input="{FIRST}")')
        write("   ")
        response_id = ""
        for event in self._client.responses.create(input=FIRST, stream=True, **self._fields):
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                write(event.delta)
        self._say(f"\n   stored as {response_id}")
        return response_id

    def continued_turn(self, previous: str) -> str:
        self._say(f'\n2. The next turn: input="{SECOND}", previous_response_id="{previous}"')
        response = self._answer(input=SECOND, previous_response_id=previous)
        self._say("   The backend keeps no state: the gateway put the first turn back in front of the question.")
        return response.id

    def conversation_turns(self) -> None:
        conversation = self._client.conversations.create(metadata={"topic": "demo"})
        self._say(f'\n3. A conversation of three turns: conversation="{conversation.id}"')
        for words in CONVERSATION:
            self._say(f"   > {words}")
            self._answer(input=words, conversation=conversation.id)
        count = len(list(self._client.conversations.items.list(conversation.id)))
        self._say(f"   The conversation now holds {count} items.")

    def stored_objects(self, first: str, second: str) -> None:
        stored = self._client.responses.retrieve(first)
        self._say(f"\n4. GET /v1/responses/{first}: {stored.status}, “{stored.output_text.strip()}”")
        items = list(self._client.responses.input_items.list(second))
        self._say(f"\n5. GET /v1/responses/{second}/input_items: what this turn brought, {len(items)} item(s)")
        for item in items:
            self._say(f"   - {item.to_json(indent=None)}")

    def deletion(self, response_id: str) -> None:
        self._client.responses.delete(response_id)
        self._say(f"\n6. DELETE /v1/responses/{response_id}: done")
        try:
            self._client.responses.retrieve(response_id)
        except NotFoundError as gone:
            self._say(f"   GET now answers {gone.status_code}: {gone.response.text}")

    def hosted_tool(self) -> None:
        """Two rounds of the model, between them a search by the gateway, shown as one stream."""
        self._say(f'\n7. A tool that the gateway runs: tools=[file_search], input="{SEARCHED}"')
        tool: Any = {"type": "file_search", "vector_store_ids": ["demo"]}
        stream = self._client.responses.create(
            input=SEARCHED, tools=[tool], tool_choice="required", stream=True, **self._fields
        )
        write("   ")
        for event in stream:
            if event.type == "response.output_item.done" and event.item.type == "file_search_call":
                self._say(f"[file_search {event.item.status}: {event.item.queries}]")
                write("   ")
            if event.type == "response.output_text.delta":
                write(event.delta)
        self._say("\n   Two rounds of the model, one response. (A model this small asks and answers as it pleases.)")

    def _answer(self, **fields: Any) -> Response:
        response: Response = self._client.responses.create(**self._fields, **fields)
        usage = response.usage
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else "no usage"
        self._say(f"   {response.output_text.strip()}   ({tokens})")
        return response
