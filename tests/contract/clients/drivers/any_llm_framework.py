"""any-llm: its functions ``completion`` and ``responses``, with its provider of OpenRouter."""

from __future__ import annotations

from typing import Any

import any_llm

from tests.contract.clients.drivers.driver import (
    FUNCTION,
    MESSAGES,
    QUESTION,
    AskedChat,
    AskedResponses,
    Driver,
)

DESCRIBED: Any = {**FUNCTION, "description": "The weather."}


def options_of(driver: Driver, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "provider": "openrouter",
        "api_base": driver.base_url,
        "api_key": driver.key,
        "client_args": {"max_retries": 0},
    }


class Chat(AskedChat):
    function = DESCRIBED

    def ask(self, model: str, **fields: Any) -> Any:
        return any_llm.completion(**options_of(self, model), **{"messages": MESSAGES, **fields})

    def stream(self, model: str) -> list[str]:
        chunks = self.ask(model, stream=True)
        return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
        stream.close()


class Responses(AskedResponses):
    function = DESCRIBED
    input_name = "input_data"

    def ask(self, model: str, **fields: Any) -> Any:
        return any_llm.responses(**options_of(self, model), **{"input_data": QUESTION, **fields})

    def plain(self, model: str, **fields: Any) -> str:
        return str(self.ask(model, **fields).output_text)

    def stream(self, model: str) -> list[str]:
        events = self.ask(model, stream=True)
        return [each.delta for each in events if each.type == "response.output_text.delta"]

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(each for each in stream if each.type == "response.output_text.delta")
        stream.close()
