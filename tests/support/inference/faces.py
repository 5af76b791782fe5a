"""The three faces of chat: how a request is asked, and how its answer or error is read."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.support.inference.site import Site


@dataclass
class Told:
    """What an answer says: its text, its usage, and the error that ended it."""

    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None


class Face(ABC):
    """One interface; ``metadata`` of an error has our ``error_type``, whatever the interface."""

    name: str
    path: str

    def ask(self, site: Site, words: str, *, stream: bool, **fields: Any) -> requests.Response:
        body = {"model": site.model.slug, **self.body(words), "stream": stream, **fields}
        return site.post(body, path=self.path)

    def read(self, answer: requests.Response, *, stream: bool) -> Told:
        if answer.status_code != 200:
            return Told(error=self.read_error(answer.json()))
        return (
            self.read_stream(_events_of(answer.text)) if stream else self.read_reply(answer.json())
        )

    @abstractmethod
    def body(self, words: str) -> dict[str, Any]: ...

    @abstractmethod
    def read_error(self, body: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    def read_reply(self, body: dict[str, Any]) -> Told: ...

    @abstractmethod
    def read_stream(self, events: list[Any]) -> Told: ...


class _Chat(Face):
    name = "chat"
    path = "/api/v1/chat/completions"

    def body(self, words: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": words}]}

    def read_error(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body["error"]["metadata"], "message": body["error"]["message"]}

    def read_reply(self, body: dict[str, Any]) -> Told:
        usage = body["usage"]
        return Told(body["choices"][0]["message"]["content"], _count(usage, "prompt", "completion"))

    def read_stream(self, events: list[Any]) -> Told:
        told = Told()
        for event in events:
            if event == "[DONE]":
                continue
            if "error" in event:
                told.error = self.read_error(event) | {"code": event["error"]["code"]}
            for choice in event["choices"]:
                told.text += choice["delta"].get("content") or ""
            if "usage" in event:
                told.usage = _count(event["usage"], "prompt", "completion")
        assert (events[-1] == "[DONE]") is (told.error is None)
        return told


class _Messages(Face):
    name = "messages"
    path = "/api/v1/messages"

    def body(self, words: str) -> dict[str, Any]:
        return {"max_tokens": 100, "messages": [{"role": "user", "content": words}]}

    def read_error(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["type"] == "error"
        details = dict(body["error"]["details"])
        named = {"error_type": details.pop("error_code"), "type": body["error"]["type"]}
        return {**details, **named, "message": body["error"]["message"]}

    def read_reply(self, body: dict[str, Any]) -> Told:
        text = "".join(block["text"] for block in body["content"])
        return Told(text, _count(body["usage"], "input", "output"))

    def read_stream(self, events: list[Any]) -> Told:
        told = Told()
        for event in events:
            match event["type"]:
                case "content_block_delta":
                    told.text += event["delta"]["text"]
                case "message_delta":
                    told.usage = _count(event["usage"], "input", "output")
                case "error":
                    told.error = self.read_error(event)
        assert events[-1]["type"] == ("message_stop" if told.error is None else "error")
        return told


class _Responses(Face):
    name = "responses"
    path = "/api/v1/responses"

    def body(self, words: str) -> dict[str, Any]:
        return {"input": words}

    def read_error(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body["error"]["metadata"], "message": body["error"]["message"]}

    def read_reply(self, body: dict[str, Any]) -> Told:
        content = [part for item in body["output"] for part in item["content"]]
        return Told(
            "".join(part["text"] for part in content), _count(body["usage"], "input", "output")
        )

    def read_stream(self, events: list[Any]) -> Told:
        told = Told()
        events = [event for event in events if event != "[DONE]"]
        for event in events:
            match event["type"]:
                case "response.output_text.delta":
                    told.text += event["delta"]
                case "response.completed" | "response.incomplete":
                    told.usage = _count(event["response"]["usage"], "input", "output")
                case "response.failed":
                    told.error = self.read_error(event["response"])
                    told.error["type"] = event["response"]["error"]["code"]
        last = events[-1]["type"]
        assert last in ("response.completed", "response.incomplete", "response.failed")
        assert (last == "response.failed") is (told.error is not None)
        return told


def _count(usage: dict[str, Any], prompt: str, completion: str) -> dict[str, Any]:
    return {"prompt": usage[f"{prompt}_tokens"], "completion": usage[f"{completion}_tokens"]}


def _events_of(text: str) -> list[Any]:
    """Returns the data of each event; comments are skipped."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


FACES: list[Face] = [_Chat(), _Messages(), _Responses()]
