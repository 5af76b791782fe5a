"""``curl``: chat, Responses and Messages."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.clients.drivers.driver import (
    CHAT_FORMAT,
    FUNCTION,
    MESSAGES,
    PARAMETERS,
    QUESTION,
    RESPONSES_FORMAT,
    SCHEMA,
    WEATHER,
    Driver,
    Failure,
)


class Refused(Exception):
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


class Curl(Driver):
    """What the faces share: ``route``, ``body`` with a question, and where an answer has what."""

    route: str
    body: dict[str, Any]

    def command(self, **fields: Any) -> list[str]:
        program = shutil.which("curl")
        if program is None:
            pytest.skip("needs curl")
        body = json.dumps({**self.body, **fields})
        return [
            *(program, "--silent", "--no-buffer", f"{self.base_url}/{self.route}", "--data", body),
            *("-H", f"Authorization: Bearer {self.key}", "-H", "Content-Type: application/json"),
        ]

    def ask(self, **fields: Any) -> Any:
        command = [*self.command(**fields), "--write-out", "\n%{http_code}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        text, _, status = done.stdout.rpartition("\n")
        if status != "200":
            raise Refused(int(status))
        return json.loads(text)

    def events(self, **fields: Any) -> Iterator[Any]:
        """Yields the events of a stream; ends the program when nobody reads them any more."""
        command = self.command(**fields, stream=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            try:
                for line in program.stdout:
                    if line.startswith("data: {"):
                        yield json.loads(line.removeprefix("data: "))
            finally:
                program.terminate()

    def plain(self, model: str, **fields: Any) -> str:
        return self.text_of(self.ask(model=model, **fields))

    def stream(self, model: str) -> list[str]:
        return [text for text in map(self.piece_of, self.events(model=model)) if text]

    def structured(self, model: str) -> Any:
        return json.loads(self.plain(model, **self.format()))

    def error(self, model: str) -> Failure:
        return Failure("", super().error(model).status)

    def cancel(self, model: str) -> None:
        events = self.events(model=model)
        next(event for event in events if self.piece_of(event))
        events.close()  # type: ignore[attr-defined]

    def text_of(self, answer: Any) -> str:
        raise NotImplementedError

    def piece_of(self, event: Any) -> str | None:
        raise NotImplementedError

    def format(self) -> dict[str, Any]:
        """Returns the fields that ask for an answer of the schema."""
        raise NotImplementedError


class Chat(Curl):
    route = "chat/completions"
    body = {"messages": MESSAGES}

    def text_of(self, answer: Any) -> str:
        return str(answer["choices"][0]["message"]["content"])

    def piece_of(self, event: Any) -> str | None:
        return event["choices"][0]["delta"].get("content") if event["choices"] else None

    def format(self) -> dict[str, Any]:
        return {"response_format": CHAT_FORMAT}

    def tools(self, model: str) -> list[Any]:
        tools = [{"type": "function", "function": FUNCTION}]
        message = self.ask(model=model, tools=tools)["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": WEATHER}
            for call in message["tool_calls"]
        ]
        self.ask(model=model, tools=tools, messages=[*MESSAGES, message, *results])
        return [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]]


class Responses(Curl):
    route = "responses"
    body = {"input": QUESTION}

    def text_of(self, answer: Any) -> str:
        return str(answer["output"][0]["content"][0]["text"])

    def piece_of(self, event: Any) -> str | None:
        return event["delta"] if event["type"] == "response.output_text.delta" else None

    def format(self) -> dict[str, Any]:
        return {"text": {"format": RESPONSES_FORMAT}}

    def tools(self, model: str) -> list[Any]:
        tools = [{"type": "function", **FUNCTION}]
        calls = self.ask(model=model, tools=tools)["output"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": WEATHER}
            for call in calls
        ]
        self.ask(model=model, tools=tools, input=[*MESSAGES, *calls, *results])
        return [json.loads(call["arguments"]) for call in calls]


class Messages(Curl):
    route = "messages"
    body = {"messages": MESSAGES, "max_tokens": 2_000}

    def text_of(self, answer: Any) -> str:
        return str(answer["content"][0]["text"])

    def piece_of(self, event: Any) -> str | None:
        return event["delta"]["text"] if event["type"] == "content_block_delta" else None

    def format(self) -> dict[str, Any]:
        return {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}

    def tools(self, model: str) -> list[Any]:
        tools = [{"name": "get_weather", "input_schema": PARAMETERS}]
        calls = self.ask(model=model, tools=tools)["content"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": WEATHER} for call in calls
        ]
        turns = [
            *MESSAGES,
            {"role": "assistant", "content": calls},
            {"role": "user", "content": results},
        ]
        self.ask(model=model, tools=tools, messages=turns)
        return [call["input"] for call in calls]
