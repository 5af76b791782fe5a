"""litellm: its functions ``completion`` and ``responses``."""

from __future__ import annotations

import json
from typing import Any

import litellm

from tests.contract.clients.drivers.driver import PARAMETERS, QUESTION, SCHEMA, WEATHER, Driver

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
FUNCTION: Any = {"name": "get_weather", "parameters": PARAMETERS}
# It imitates the streams of Responses for a model that it does not know.
litellm.register_model(
    {
        "acme/falcon": {
            "litellm_provider": "openai",
            "mode": "chat",
            "supports_native_streaming": True,
        }
    }
)


class Chat(Driver):
    def ask(self, model: str, **fields: Any) -> Any:
        return litellm.completion(
            model=f"openai/{model}",
            api_base=self.base_url,
            api_key=self.key,
            max_retries=0,
            **{"messages": MESSAGES, **fields},
        )

    def plain(self, model: str, **fields: Any) -> str:
        return str(self.ask(model, **fields).choices[0].message.content)

    def stream(self, model: str) -> list[str]:
        pieces = [chunk.choices[0].delta.content for chunk in self.ask(model, stream=True)]
        return [piece for piece in pieces if piece]

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
        schema = {"name": "answer", "schema": SCHEMA}
        wanted = {"type": "json_schema", "json_schema": schema}
        return json.loads(self.plain(model, response_format=wanted))

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.completion_stream.close()


class Responses(Driver):
    def ask(self, model: str, **fields: Any) -> Any:
        return litellm.responses(
            model=f"openai/{model}",
            api_base=self.base_url,
            api_key=self.key,
            **{"input": QUESTION, **fields},
        )

    def plain(self, model: str, **fields: Any) -> str:
        return str(self.ask(model, **fields).output[0].content[0].text)

    def stream(self, model: str) -> list[str]:
        return [event.delta for event in self.ask(model, stream=True) if is_text(event)]

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
        self.ask(model, tools=tools, input=turns)
        return [json.loads(call.arguments) for call in calls]

    def structured(self, model: str) -> Any:
        wanted = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
        return json.loads(self.plain(model, text={"format": wanted}))

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(event for event in stream if is_text(event))
        stream.response.close()


def is_text(event: Any) -> bool:
    kind = getattr(event.type, "value", event.type)
    return bool(kind == "response.output_text.delta")
