"""The ``openrouter`` SDK: chat and Responses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
from openrouter import OpenRouter

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


class OpenRouterDriver(Driver):
    @contextlib.contextmanager
    def connect(self) -> Iterator[Any]:
        with httpx.Client(timeout=30) as transport:
            yield OpenRouter(
                api_key=self.key,
                server_url=self.base_url,
                client=transport,
                # One that the SDK creates is closed in whichever event loop runs then.
                async_client=httpx.AsyncClient(),
                retry_config=None,
            )


class Chat(OpenRouterDriver):
    def plain(self, model: str, **fields: Any) -> str:
        with self.connect() as client:
            answer = client.chat.send(model=model, messages=MESSAGES, **fields)
        return str(answer.choices[0].message.content)

    def stream(self, model: str) -> list[str]:
        with (
            self.connect() as client,
            client.chat.send(model=model, messages=MESSAGES, stream=True) as stream,
        ):
            choices = [choice for chunk in stream for choice in chunk.choices]
        return [choice.delta.content for choice in choices if choice.delta.content]

    def tools(self, model: str) -> list[Any]:
        tools = [{"type": "function", "function": FUNCTION}]
        with self.connect() as client:
            first = client.chat.send(model=model, messages=MESSAGES, tools=tools)
            message = first.choices[0].message
            results = chat_results(message.tool_calls)
            turns = [*MESSAGES, message.model_dump(exclude_none=True, by_alias=True), *results]
            client.chat.send(model=model, messages=turns, tools=tools)
        return [json.loads(call.function.arguments) for call in message.tool_calls]

    def structured(self, model: str) -> Any:
        return json.loads(self.plain(model, response_format=CHAT_FORMAT))

    def cancel(self, model: str) -> None:
        with (
            self.connect() as client,
            client.chat.send(model=model, messages=MESSAGES, stream=True) as stream,
        ):
            next(each for each in stream if each.choices and each.choices[0].delta.content)


class Responses(OpenRouterDriver):
    def plain(self, model: str, **fields: Any) -> str:
        with self.connect() as client:
            answer = client.beta.responses.send(model=model, input=QUESTION, **fields)
        return str(answer.output[0].content[0].text)

    def stream(self, model: str) -> list[str]:
        with (
            self.connect() as client,
            client.beta.responses.send(model=model, input=QUESTION, stream=True) as stream,
        ):
            return [event.delta for event in stream if event.type == "response.output_text.delta"]

    def tools(self, model: str) -> list[Any]:
        wanted = {"model": model, "tools": [{"type": "function", **FUNCTION}]}
        with self.connect() as client:
            calls = client.beta.responses.send(input=QUESTION, **wanted).output
            turns = [
                {"type": "message", "role": "user", "content": QUESTION},
                *(call.model_dump(mode="json", by_alias=True, exclude_none=True) for call in calls),
                *responses_results(calls),
            ]
            client.beta.responses.send(input=turns, **wanted)
        return [json.loads(call.arguments) for call in calls]

    def structured(self, model: str) -> Any:
        return json.loads(self.plain(model, text={"format": RESPONSES_FORMAT}))

    def cancel(self, model: str) -> None:
        with (
            self.connect() as client,
            client.beta.responses.send(model=model, input=QUESTION, stream=True) as stream,
        ):
            next(each for each in stream if each.type == "response.output_text.delta")
