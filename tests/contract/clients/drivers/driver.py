"""What the table asks of every client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

QUESTION: Final = "one two"
PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["city", "number"],
    "additionalProperties": False,
}
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"body": {"type": "object"}},
    "required": ["body"],
}
WEATHER: Final = "12 degrees"
MESSAGES: Final[Any] = [{"role": "user", "content": QUESTION}]
FUNCTION: Final[Any] = {"name": "get_weather", "parameters": PARAMETERS}
# How chat and Responses ask for an answer of the schema.
CHAT_FORMAT: Final[Any] = {
    "type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}
}  # fmt: skip
RESPONSES_FORMAT: Final[Any] = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


def chat_results(calls: Iterable[Any]) -> list[Any]:
    """Returns the messages of a chat with the results of these calls."""
    return [{"role": "tool", "tool_call_id": call.id, "content": WEATHER} for call in calls]


def responses_results(calls: Iterable[Any]) -> list[Any]:
    """Returns the items of Responses with the results of these calls."""
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
        for call in calls
    ]


class Failure(NamedTuple):
    """The name of the exception that a client raises, and the HTTP status that it tells."""

    name: str
    status: int | None


class Driver:
    """Makes one client do what a column of the table says.

    ``server`` is the address of the service and ``key`` an inference key. Each method calls
    ``model`` once, without retries; ``tools`` sends the results of the calls too.
    """

    def __init__(self, server: str, key: str) -> None:
        self.server = server
        self.key = key

    @property
    def base_url(self) -> str:
        return f"{self.server}/api/v1"

    def plain(self, model: str) -> str:
        """Asks ``QUESTION`` and returns the text of the answer."""
        raise NotImplementedError

    def stream(self, model: str) -> list[str]:
        """Asks ``QUESTION`` and returns the pieces of the answer."""
        raise NotImplementedError

    def tools(self, model: str) -> list[Any]:
        """Offers a tool, returns the arguments of its calls, and sends back ``WEATHER``."""
        raise NotImplementedError

    def structured(self, model: str) -> Any:
        """Asks for an answer that fits ``SCHEMA`` and returns the decoded answer."""
        raise NotImplementedError

    def error(self, model: str) -> Failure:
        """Asks for an answer that fails, and returns how the client tells it."""
        try:
            self.plain(model)
        except Exception as exc:
            return Failure(type(exc).__name__, getattr(exc, "status_code", None))
        raise AssertionError("the client told no error")

    def cancel(self, model: str) -> None:
        """Leaves a stream after the first piece of its text."""
        raise NotImplementedError


class AskedChat(Driver):
    """Chat by a function ``ask``, whose answers have the attributes of those of ``openai``."""

    function: Any = FUNCTION

    def ask(self, model: str, **fields: Any) -> Any:
        raise NotImplementedError

    def plain(self, model: str, **fields: Any) -> str:
        return str(self.ask(model, **fields).choices[0].message.content)

    def tools(self, model: str) -> list[Any]:
        tools = [{"type": "function", "function": self.function}]
        message = self.ask(model, tools=tools).choices[0].message
        results = chat_results(message.tool_calls)
        self.ask(model, tools=tools, messages=[*MESSAGES, message, *results])
        return [json.loads(call.function.arguments) for call in message.tool_calls]

    def structured(self, model: str) -> Any:
        return json.loads(self.plain(model, response_format=CHAT_FORMAT))


class AskedResponses(Driver):
    """The same of Responses; ``input_name`` is what the function calls the input."""

    function: Any = FUNCTION
    input_name = "input"

    def ask(self, model: str, **fields: Any) -> Any:
        raise NotImplementedError

    def plain(self, model: str, **fields: Any) -> str:
        return str(self.ask(model, **fields).output[0].content[0].text)

    def tools(self, model: str) -> list[Any]:
        tools = [{"type": "function", **self.function}]
        calls = self.ask(model, tools=tools).output
        made = (call.model_dump(exclude_none=True) for call in calls)
        turns = [*MESSAGES, *made, *responses_results(calls)]
        self.ask(model, tools=tools, **{self.input_name: turns})
        return [json.loads(call.arguments) for call in calls]

    def structured(self, model: str) -> Any:
        return json.loads(self.plain(model, text={"format": RESPONSES_FORMAT}))
