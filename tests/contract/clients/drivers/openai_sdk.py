"""The ``openai`` SDK: chat and Responses."""

from __future__ import annotations

import json
from typing import Any

import openai

from tests.contract.clients.drivers.driver import (
    CHAT_FORMAT,
    FUNCTION,
    MESSAGES,
    QUESTION,
    RESPONSES_FORMAT,
    Driver,
    chat_results,
    responses_results,
)

STRICT: Any = {**FUNCTION, "strict": True}
TOOL: Any = {"type": "function", "function": STRICT}


class OpenAIDriver(Driver):
    def connect(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base_url, api_key=self.key, max_retries=0, timeout=30)


class Chat(OpenAIDriver):
    def plain(self, model: str, **fields: Any) -> str:
        with self.connect() as client:
            answer = client.chat.completions.create(model=model, messages=MESSAGES, **fields)
        return answer.choices[0].message.content or ""

    def stream(self, model: str) -> list[str]:
        with (
            self.connect() as client,
            client.chat.completions.stream(model=model, messages=MESSAGES) as stream,
        ):
            return [event.delta for event in stream if event.type == "content.delta"]

    def tools(self, model: str) -> list[Any]:
        with self.connect() as client:
            ask = client.chat.completions.create
            first = ask(model=model, messages=MESSAGES, tools=[TOOL])
            message = first.choices[0].message
            calls: Any = message.tool_calls or []
            results = chat_results(calls)
            ask(model=model, messages=[*MESSAGES, message, *results], tools=[TOOL])
        return [json.loads(call.function.arguments) for call in calls]

    def structured(self, model: str) -> Any:
        return json.loads(self.plain(model, response_format=CHAT_FORMAT))

    def cancel(self, model: str) -> None:
        with (
            self.connect() as client,
            client.chat.completions.create(model=model, messages=MESSAGES, stream=True) as stream,
        ):
            next(each for each in stream if each.choices and each.choices[0].delta.content)


class Responses(OpenAIDriver):
    def plain(self, model: str, **fields: Any) -> str:
        with self.connect() as client:
            return client.responses.create(model=model, input=QUESTION, **fields).output_text

    def stream(self, model: str) -> list[str]:
        with (
            self.connect() as client,
            client.responses.stream(model=model, input=QUESTION) as stream,
        ):
            return [event.delta for event in stream if event.type == "response.output_text.delta"]

    def tools(self, model: str) -> list[Any]:
        tool: Any = {"type": "function", **STRICT}
        turns: Any = [*MESSAGES]
        with self.connect() as client:
            first = client.responses.create(model=model, input=turns, tools=[tool])
            calls: Any = first.output
            turns += [call.to_dict() for call in calls]
            turns += responses_results(calls)
            client.responses.create(model=model, input=turns, tools=[tool])
        return [json.loads(call.arguments) for call in calls]

    def structured(self, model: str) -> Any:
        return json.loads(self.plain(model, text={"format": RESPONSES_FORMAT}))

    def cancel(self, model: str) -> None:
        with (
            self.connect() as client,
            client.responses.create(model=model, input=QUESTION, stream=True) as stream,
        ):
            next(each for each in stream if each.type == "response.output_text.delta")
