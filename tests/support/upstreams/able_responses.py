"""A model that is served by Responses alone and honours parameters, or ignores or refuses one."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

from tests.support.upstreams.recorded_responses import RESPONSE

Body = dict[str, Any]
_GREEN: Final = bytes((0, 160, 0))
_THOUGHT: Final = {"id": "rs_1", "type": "reasoning", "summary": []}


@dataclass(frozen=True)
class Able:
    """Answers as it is asked; each member names an ability that is missing.

    ``ignored`` has no effect, ``refused`` is answered with 400, and over ``thinking`` the model
    thinks until it has used up its tokens.
    """

    ignored: str = ""
    refused: str = ""
    thinking: str = ""

    def respond(self, body: Body) -> tuple[str, Body]:
        """Returns the status and the answer to a request for a response."""
        asked = find_asked(body)
        if self.refused in asked:
            return "400 Bad Request", {"error": {"message": f"Unsupported: {self.refused}"}}
        if self.thinking in asked:
            return "200 OK", _cut_off([_THOUGHT])
        return "200 OK", self._answer(body, asked - {self.ignored})

    def _answer(self, body: Body, asked: set[str]) -> Body:
        question = body["input"][0]["content"]
        if "tools" in asked:
            arguments = json.dumps({"city": "Rome"})
            call = {"type": "function_call", "name": "report_city", "arguments": arguments}
            return _finish([call])
        if "parallel_tool_calls" in asked:
            call = {"type": "function_call", "name": "report_city", "arguments": "{}"}
            return _finish([call, call])
        if "Count" in question and body["max_output_tokens"] < 200:
            return _cut_off([_say("one two three")])
        if "reasoning" in asked:
            return _finish([{**_THOUGHT, "summary": [{"text": "Hm."}]}, _say("391")])
        return _finish([_say(*_speak(body, asked))])


def find_asked(body: Body) -> set[str]:
    """Returns the abilities that a request asks for, one after another."""
    asked = set()
    shape = body.get("text", {}).get("format", {}).get("type")
    if "tool_choice" in body:
        asked.add("tools")
    elif "tools" in body:
        asked.add("parallel_tool_calls")
    if shape == "json_schema":
        asked.add("structured_outputs")
    elif shape == "json_object":
        asked.add("response_format")
    if "top_logprobs" in body:
        asked.add("top_logprobs")
    elif "include" in body:
        asked.add("logprobs")
    if isinstance(body["input"][0]["content"], list):
        asked.add("image")
    return asked | ({"stop", "seed", "reasoning"} & body.keys())


def _speak(body: Body, asked: set[str]) -> tuple[str, list[Body]]:
    """Returns the text of an answer, and its log probabilities."""
    text = "Hello."
    if "structured_outputs" in asked:
        schema = body["text"]["format"]["schema"]
        text = json.dumps({name: each["enum"][0] for name, each in schema["properties"].items()})
    elif "response_format" in asked:
        text = json.dumps({"said": "Hello."})
    elif "seed" in asked:
        text = str(zlib.crc32(str(body["seed"]).encode()))
    elif "exactly" in body["input"][0]["content"]:
        text = "alpha " if "stop" in asked else "alpha bravo charlie"
    elif "image" in asked:
        png = base64.b64decode(body["input"][0]["content"][1]["image_url"].partition(",")[2])
        size = int.from_bytes(png[33:37], "big")
        text = "Green." if zlib.decompress(png[41 : 41 + size])[1:4] == _GREEN else "Grey."
    tops = [{"token": "x", "logprob": -1.0}] * body.get("top_logprobs", 0)
    item = {"token": "H", "logprob": -0.5, "top_logprobs": tops if "top_logprobs" in asked else []}
    return text, [item] if "include" in body and _wants_logprobs(asked) else []


def _wants_logprobs(asked: set[str]) -> bool:
    return bool({"logprobs", "top_logprobs"} & asked)


def _say(text: str, logprobs: list[Body] | None = None) -> Body:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}


def _finish(output: list[Body]) -> Body:
    usage = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}
    return {**RESPONSE, "output": output, "usage": usage}


def _cut_off(output: list[Body]) -> Body:
    why = {"incomplete_details": {"reason": "max_output_tokens"}}
    return {**_finish(output), "status": "incomplete", **why}
