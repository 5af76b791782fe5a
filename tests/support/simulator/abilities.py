"""The parameters that a simulated deployment can honour, ignore or refuse.

``sim-able`` honours all of them. ``sim-able:seed,stop`` ignores those that it names, and
``sim-strict:seed,stop`` refuses them and honours the others. ``tool_name`` is the choice of a tool
by its name.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from tests.support.simulator.protocol import Request, encode_json, error_reply, http_response

Body = dict[str, Any]
Message = dict[str, Any]
# The fields of a request that stand for one ability.
_FIELDS = {
    "max_tokens": ("max_tokens",),
    "max_completion_tokens": ("max_completion_tokens",),
    "stop": ("stop",),
    "tools": ("tools", "tool_choice"),
    "parallel_tool_calls": ("parallel_tool_calls",),
    "response_format": ("response_format",),
    "seed": ("seed",),
    "logprobs": ("logprobs",),
    "top_logprobs": ("top_logprobs",),
    "reasoning": ("reasoning_effort", "reasoning"),
}
TOO_LONG = (
    "This model's maximum context length is 8 tokens. However, your messages resulted in 9000 "
    "tokens."
)
_COLOURS = {(255, 0, 0): "red", (0, 160, 0): "green", (0, 0, 255): "blue"}


def honour(request: Request, plain: Body, *, is_strict: bool) -> bytes | None:
    """Returns the answer to a plain chat, or a refusal; ``None`` where neither is due.

    ``plain`` is the body of a good answer.
    """
    named = set(request.option.split(",")) - {""}
    if is_strict and (field := find_refused(request.body, named)) is not None:
        text = f"Unsupported parameter: {field}."
        if field == "max_tokens":
            text += " Use max_completion_tokens."
        return error_reply(400, message=text, param=field)
    if request.kind != "chat" or request.stream:
        return None
    said = _said((request.body.get("messages") or [{}])[-1].get("content"))
    message, finish, logprobs = answer(request.body, set() if is_strict else named, said)
    plain["choices"][0] |= {"message": message, "finish_reason": finish, "logprobs": logprobs}
    return http_response(200, encode_json(plain))


def _said(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def find_refused(body: Body, names: set[str]) -> str | None:
    """Returns the first field of a request that one of the named abilities stands for."""
    fields = [field for name in names for field in _FIELDS.get(name, ())]
    if "image" in names and _picture(body) is not None:
        fields.append("messages")
    if "structured_outputs" in names and _schema(body) is not None:
        return "response_format"
    return next((field for field in sorted(fields) if field in body), None)


def answer(body: Body, ignored: set[str], said: str) -> tuple[Message, str, Any]:
    """Returns the message, finish reason and logprobs of an answer that honours the rest.

    ``said`` is the answer to a plain question.
    """
    kept = dict(body)
    for name in ignored:
        for field in _FIELDS.get(name, ()):
            kept.pop(field, None)
    if "tool_name" in ignored and isinstance(kept.get("tool_choice"), dict):
        kept["tool_choice"] = "auto"
    if calls := _calls(kept):
        return {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls", None
    text = said
    if "stop" in kept or "exactly" in said:
        text = said.rsplit(":", 1)[-1].strip()
    colour = None if "image" in ignored else _picture(kept)
    text = colour or text
    if "seed" in kept:
        text = str(zlib.crc32(str(kept["seed"]).encode()))
    kind = (kept.get("response_format") or {}).get("type")
    schema = None if "structured_outputs" in ignored else _schema(kept)
    if schema is not None:
        text = json.dumps(_fill(schema))
    elif kind == "json_object":
        text = json.dumps({"said": text})
    text, finish = _cut(text, kept)
    message: Message = {"role": "assistant", "content": text}
    if "reasoning_effort" in kept or "reasoning" in kept:
        message["reasoning"] = "Let me think."
    return message, finish, _logprobs(text, kept)


def _calls(body: Body) -> list[dict[str, Any]]:
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    if not tools or (choice in (None, "auto", "none") and not body.get("parallel_tool_calls")):
        return []
    name = tools[0]["function"]["name"]
    count = 2 if body.get("parallel_tool_calls") else 1
    arguments = json.dumps({"city": "Rome"})
    return [
        {"id": f"call_{number}", "type": "function",
         "function": {"name": name, "arguments": arguments}}
        for number in range(count)
    ]  # fmt: skip


def _cut(text: str, body: Body) -> tuple[str, str]:
    stops = body.get("stop") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        text = text.split(stop)[0]
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    words = text.split(" ")
    if isinstance(limit, int) and "Count" in text:
        return " ".join(["one"] * limit), "length"
    if isinstance(limit, int) and len(words) > limit:
        return " ".join(words[:limit]), "length"
    return text, "stop"


def _logprobs(text: str, body: Body) -> Any:
    if not body.get("logprobs"):
        return None
    count = int(body.get("top_logprobs") or 0)
    tops = [{"token": "x", "logprob": -1.0, "bytes": [120]}] * count
    item = {"token": text[:1], "logprob": -0.5, "bytes": [65], "top_logprobs": tops}
    return {"content": [item], "refusal": None}


def _schema(body: Body) -> Any:
    wanted = body.get("response_format") or {}
    return wanted["json_schema"]["schema"] if wanted.get("type") == "json_schema" else None


def _fill(schema: Body) -> Any:
    properties: dict[str, Body] = schema.get("properties", {})
    return {name: (each.get("enum") or ["x"])[0] for name, each in properties.items()}


def _picture(body: Body) -> str | None:
    """Returns the colour of the first picture of a request, a PNG of one colour."""
    for message in body.get("messages") or ():
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "image_url":
                png = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                size = int.from_bytes(png[33:37], "big")
                pixel = zlib.decompress(png[41 : 41 + size])[1:4]
                return _COLOURS.get((pixel[0], pixel[1], pixel[2]), "unknown")
    return None
