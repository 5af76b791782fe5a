"""The ``anthropic`` SDK: Messages."""

from __future__ import annotations

import json
from typing import Any

import anthropic

from tests.contract.clients.drivers.driver import MESSAGES, PARAMETERS, SCHEMA, WEATHER, Driver

TOOL: Any = {"name": "get_weather", "input_schema": PARAMETERS}


class Messages(Driver):
    def connect(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=f"{self.server}/api", api_key=self.key, max_retries=0, timeout=30
        )

    def plain(self, model: str, **fields: Any) -> str:
        with self.connect() as client:
            answer: Any = client.messages.create(
                model=model, max_tokens=2_000, messages=MESSAGES, **fields
            )
        return str(answer.content[0].text)

    def stream(self, model: str) -> list[str]:
        with (
            self.connect() as client,
            client.messages.stream(model=model, max_tokens=50, messages=MESSAGES) as stream,
        ):
            return list(stream.text_stream)

    def tools(self, model: str) -> list[Any]:
        with self.connect() as client:
            wanted: Any = {"model": model, "max_tokens": 50, "tools": [TOOL]}
            first = client.messages.create(messages=MESSAGES, **wanted)
            calls: Any = first.content
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER}
                for call in calls
            ]
            turns: Any = [
                *MESSAGES,
                {"role": "assistant", "content": calls},
                {"role": "user", "content": results},
            ]
            client.messages.create(messages=turns, **wanted)
        return [call.input for call in calls]

    def structured(self, model: str) -> Any:
        wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
        return json.loads(self.plain(model, output_config=wanted))

    def cancel(self, model: str) -> None:
        with (
            self.connect() as client,
            client.messages.stream(model=model, max_tokens=50, messages=MESSAGES) as stream,
        ):
            next(stream.text_stream)
