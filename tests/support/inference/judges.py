"""What the public SDKs hold of an answer in the end: the judges of what reaches a caller."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from openrouter import OpenRouter

from tests.support.contract.sdks import anthropic_client, openai_client
from tests.support.inference.site import Site
from tests.support.upstreams.tls import Script

TOOLS: Final = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "get_time")
]


@dataclass
class Held:
    """The answer as an SDK accumulated it; a call is its name and its arguments as text.

    ``pieces`` are the numbers of the calls in each event of a stream of chat.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str | None = None
    ids: list[str] = field(default_factory=list)
    usage: tuple[int, int] | None = None
    pieces: list[list[float]] = field(default_factory=list, compare=False)


def written(answer: bytes, *, kind: str = "text/event-stream") -> Script:
    """Returns a script that sends these bytes in chunks of 97 as the body of each answer."""

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
            % kind.encode()
        )
        for start in range(0, len(answer), 97):
            piece = answer[start : start + 97]
            line.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        line.sendall(b"0\r\n\r\n")
        return True

    return script


def ask_openai(site: Site, *, stream: bool, **fields: Any) -> Held:
    """Asks ``/chat/completions`` by the ``openai`` SDK, whose helper accumulates a stream."""
    with openai_client(site) as client:
        asked: Any = {**site.chat_body(), **fields}
        if stream:
            with client.chat.completions.stream(**asked) as events:
                events.until_done()
                whole: Any = events.get_final_completion()
        else:
            whole = client.chat.completions.create(**asked)
    return _read_chat(whole)


def ask_openrouter(site: Site, *, stream: bool, **fields: Any) -> Held:
    """Asks ``/chat/completions`` by the ``openrouter`` SDK, and adds up the deltas by index."""
    with httpx.Client(timeout=30) as transport:
        client = OpenRouter(
            api_key=site.tenant.api_key,
            server_url=f"{site.server}/api/v1",
            client=transport,
            async_client=httpx.AsyncClient(),
            retry_config=None,
        )
        asked: Any = {**site.chat_body(), **fields, "stream": stream}
        if not stream:
            return _read_chat(client.chat.send(**asked))
        held, calls = Held(), {}
        with client.chat.send(**asked) as events:
            for event in events:
                if event.usage is not None:
                    held.usage = int(event.usage.prompt_tokens), int(event.usage.completion_tokens)
                for choice in event.choices:
                    delta = choice.delta
                    held.text += delta.content or ""
                    held.reasoning += "".join(_read_details(delta.reasoning_details))
                    held.finish = choice.finish_reason or held.finish
                    held.pieces.append([each.index for each in delta.tool_calls or ()])
                    for piece in delta.tool_calls or ():
                        call = calls.setdefault(piece.index, ["", "", ""])
                        call[0] += piece.id or ""
                        if piece.function is not None:
                            call[1] += piece.function.name or ""
                            call[2] += piece.function.arguments or ""
        held.ids = [call[0] for call in calls.values()]
        held.calls = [(call[1], call[2]) for call in calls.values()]
        return held


def _read_details(details: Any) -> list[str]:
    return [getattr(each, "text", None) or "" for each in details or ()]


def _read_chat(whole: Any) -> Held:
    [choice] = whole.choices
    message = choice.message
    calls = message.tool_calls or ()
    details = getattr(message, "reasoning_details", None) or ()
    texts = [each["text"] if isinstance(each, dict) else each.text for each in details]
    usage = whole.usage
    return Held(
        text=message.content or "",
        reasoning="".join(texts),
        calls=[(call.function.name, call.function.arguments) for call in calls],
        finish=choice.finish_reason,
        ids=[call.id for call in calls],
        usage=None if usage is None else (int(usage.prompt_tokens), int(usage.completion_tokens)),
    )


_STOPS: Final = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


def ask_anthropic(site: Site, *, stream: bool, **fields: Any) -> Held:
    """Asks ``/messages`` by the ``anthropic`` SDK."""
    tools = [
        {"name": each["function"]["name"], "input_schema": {"type": "object"}}
        for each in fields.pop("tools", ())
    ]
    with anthropic_client(site) as client:
        asked: Any = {**site.chat_body(), "max_tokens": 500, **fields}
        if tools:
            asked["tools"] = tools
        if stream:
            with client.messages.stream(**asked) as events:
                whole: Any = events.get_final_message()
        else:
            whole = client.messages.create(**asked)
    held = Held(finish=_STOPS[whole.stop_reason])
    held.usage = whole.usage.input_tokens, whole.usage.output_tokens
    for block in whole.content:
        if block.type == "text":
            held.text += block.text
        elif block.type == "thinking":
            held.reasoning += block.thinking
        elif block.type == "tool_use":
            held.calls.append((block.name, json.dumps(block.input, separators=(",", ":"))))
            held.ids.append(block.id)
    return held


def ask_responses(site: Site, *, stream: bool, **fields: Any) -> Held:
    """Asks ``/responses`` by the ``openai`` SDK."""
    tools = [{"type": "function", **each["function"]} for each in fields.pop("tools", ())]
    with openai_client(site) as client:
        asked: Any = {"model": site.model.slug, "input": "one two", **fields}
        if tools:
            asked["tools"] = tools
        if stream:
            with client.responses.stream(**asked) as events:
                events.until_done()
                whole: Any = events.get_final_response()
        else:
            whole = client.responses.create(**asked)
    held = Held(text=whole.output_text)
    held.usage = whole.usage.input_tokens, whole.usage.output_tokens
    for item in whole.output:
        if item.type == "function_call":
            held.calls.append((item.name, item.arguments))
            held.ids.append(item.call_id)
        elif item.type == "reasoning":
            held.reasoning += "".join(part.text for part in item.summary)
    held.finish = "tool_calls" if held.calls else "stop"
    if whole.status == "incomplete":
        held.finish = "length"
    return held


Judge = Callable[..., Held]
JUDGES: Final[Mapping[str, Judge]] = {
    "openai": ask_openai,
    "openrouter": ask_openrouter,
    "anthropic": ask_anthropic,
    "responses": ask_responses,
}
