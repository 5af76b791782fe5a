"""langchain-openai: its modes for chat and for Responses."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.contract.clients.drivers.driver import FUNCTION, QUESTION, SCHEMA, WEATHER, Driver

DESCRIBED: Any = {**FUNCTION, "description": "The weather."}


class Chat(Driver):
    options: dict[str, Any] = {"use_responses_api": False}

    def connect(self, model: str) -> Any:
        return ChatOpenAI(
            model=model,
            base_url=self.base_url,
            api_key=self.key,  # type: ignore[arg-type]
            max_retries=0,
            **self.options,
        )

    def plain(self, model: str) -> str:
        return str(self.connect(model).invoke(QUESTION).text)

    def stream(self, model: str) -> list[str]:
        return [chunk.text for chunk in self.connect(model).stream(QUESTION) if chunk.text]

    def tools(self, model: str) -> list[Any]:
        chat = self.connect(model).bind_tools([{"type": "function", "function": DESCRIBED}])
        asked = HumanMessage(QUESTION)
        answer = chat.invoke([asked])
        results = [ToolMessage(WEATHER, tool_call_id=call["id"]) for call in answer.tool_calls]
        chat.invoke([asked, answer, *results])
        return [call["args"] for call in answer.tool_calls]

    def structured(self, model: str) -> Any:
        chat = self.connect(model)
        schema = {"title": "Answer", **SCHEMA}
        return chat.with_structured_output(schema, method="json_schema").invoke(QUESTION)

    def cancel(self, model: str) -> None:
        stream = self.connect(model).stream(QUESTION)
        next(chunk for chunk in stream if chunk.text)
        stream.close()


class Responses(Chat):
    options = {"use_responses_api": True, "store": False}
