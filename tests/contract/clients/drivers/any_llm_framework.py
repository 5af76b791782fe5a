"""any-llm: its functions ``completion`` and ``responses``, with its provider of OpenRouter."""

from __future__ import annotations

import json
from typing import Any

import any_llm

from tests.contract.clients.drivers.driver import PARAMETERS, QUESTION, SCHEMA, WEATHER, Driver

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
FUNCTION: Any = {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}


class Chat(Driver):
    def options(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "provider": "openrouter",
            "api_base": self.base_url,
            "api_key": self.key,
            "client_args": {"max_retries": 0},
        }

    def ask(self, model: str, **fields: Any) -> Any:
        return any_llm.completion(**self.options(model), **{"messages": MESSAGES, **fields})

    def plain(self, model: str, **fields: Any) -> str:
        return str(self.ask(model, **fields).choices[0].message.content)

    def stream(self, model: str) -> list[str]:
        chunks = self.ask(model, stream=True)
        return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]

    def tools(self, model: str) -> list[Any]:
        tools = [{"type": "function", "function": FUNCTION}]
        message = self.ask(model, tools=tools).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": WEATHER}
            for call in message.tool_calls
        ]
        self.ask(model, tools=tools, messages=[*MESSAGES, message, *results])
        return [json.loads(call.function.arguments) for call in message.tool_calls]

    def structured(self, model: str) -> Any:
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        return json.loads(self.plain(model, response_format=wanted))

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
        stream.close()


class Responses(Chat):
    def ask(self, model: str, **fields: Any) -> Any:
        return any_llm.responses(**self.options(model), **{"input_data": QUESTION, **fields})

    def plain(self, model: str, **fields: Any) -> str:
        return str(self.ask(model, **fields).output_text)

    def stream(self, model: str) -> list[str]:
        events = self.ask(model, stream=True)
        return [each.delta for each in events if each.type == "response.output_text.delta"]

    def tools(self, model: str) -> list[Any]:
        tools = [{"type": "function", **FUNCTION}]
        calls = self.ask(model, tools=tools).output
        turns = [
            *MESSAGES,
            *(call.model_dump(exclude_none=True) for call in calls),
            *(
                {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
                for call in calls
            ),
        ]
        self.ask(model, tools=tools, input_data=turns)
        return [json.loads(call.arguments) for call in calls]

    def structured(self, model: str) -> Any:
        wanted = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
        return json.loads(self.plain(model, text={"format": wanted}))

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(each for each in stream if each.type == "response.output_text.delta")
        stream.close()
