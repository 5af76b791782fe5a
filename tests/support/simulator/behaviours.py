"""Defines the behaviours of the simulated upstream; the model's name in a request chooses one.

A parameter follows a colon or a question mark, as in ``sim-slow:0.05``; a prefix up to the last
slash is ignored, as in ``acme/sim-slow``. A name that does not start with ``sim-`` behaves like
``sim-echo``, so that any model name can be tried. Tokens are words: counts are those of
``str.split``. A behaviour is a function from a request to steps: bytes to send, seconds to wait, or
a :class:`Signal`. Ordinary answers come from a cache in one step, so that the same server can stand
behind a benchmark.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import itertools
import json
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support.simulator import abilities
from tests.support.simulator.protocol import (
    ID_PLACEHOLDER,
    STREAM_HEAD,
    WHOLE,
    WRITE_BYTES,
    Request,
    Script,
    Signal,
    Step,
    chunked_response,
    encode_json,
    error_object,
    error_reply,
    http_chunk,
    http_response,
    insert_request_id,
    response_head,
    to_sse,
)
from tests.support.simulator.refusals import REFUSALS

MAX_ECHOED_WORDS = 256
_HELLO = "Hello from the simulated upstream. Ask me something and I will repeat it."
_GREETINGS = {"", "hi", "hello", "hey", "test", "ping"}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(_text(part.get("text") if isinstance(part, dict) else part)
                        for part in content)  # fmt: skip
    return content if isinstance(content, str) else ""


@dataclass(slots=True)
class ScriptedReply:
    """A good answer; a behaviour may change its fields before it is written."""

    kind: str
    model: str
    pieces: tuple[str, ...]
    """The words of the answer; for embeddings the inputs, for a rerank the documents."""
    prompt_tokens: int
    finish: str = "stop"
    created: int = 0
    vector: tuple[int, bool] = (8, False)
    """The number of dimensions, and whether the vector is encoded in base64."""
    query: str = ""
    """The query of a rerank."""
    first: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": ""})
    message: dict[str, Any] = field(default_factory=dict)
    deltas: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.count()

    def count(self) -> None:
        completion = 0 if self.kind in WHOLE else len(self.pieces) + len(self.deltas)
        self.usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }

    @classmethod
    def to(cls, request: Request) -> Self:
        """Returns the good answer to a request, which repeats the last user message."""
        body, kind = request.body, request.kind
        created = int(time.time())
        if kind == "embeddings":
            given = body.get("input")
            inputs = tuple(map(str, given)) if isinstance(given, list) else (_text(given),)
            vector = (int(body.get("dimensions") or 8), body.get("encoding_format") == "base64")
            tokens = sum(len(text.split()) for text in inputs)
            return cls(kind, request.model, inputs, tokens, vector=vector)
        if kind == "rerank":
            documents, query = tuple(map(str, body["documents"])), _text(body["query"])
            tokens = sum(len(f"{query} {text}".split()) for text in documents)
            return cls(kind, request.model, documents, tokens, query=query)
        if kind == "completions" and "prompt" in body:
            texts = last = [_text(body["prompt"])]
        else:
            messages = [m for m in body.get("messages") or () if isinstance(m, dict)]
            if not messages:
                raise ValueError("messages are required")
            texts = [_text(m.get("content")) for m in messages]
            last = [t for m, t in zip(messages, texts, strict=True) if m.get("role") == "user"]
        asked = last[-1].strip() if last else ""
        answer = _HELLO if asked.lower().strip(" .!?") in _GREETINGS else f"You said: {asked}"
        words = answer.split()[:MAX_ECHOED_WORDS]
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        finish = "length" if isinstance(limit, int) and 0 < limit < len(words) else "stop"
        words = words[:limit] if finish == "length" else words
        pieces = (words[0], *(f" {word}" for word in words[1:]))
        return cls(kind, request.model, pieces, sum(len(t.split()) for t in texts), finish, created)

    def plain(self) -> dict[str, Any]:
        """Returns the JSON body of an answer that is not streamed."""
        usage: dict[str, Any] = {} if self.usage is None else {"usage": self.usage}
        if self.kind == "embeddings":
            usage.get("usage", {}).pop("completion_tokens", None)
            data = [
                {"object": "embedding", "index": index, "embedding": _embed(text, *self.vector)}
                for index, text in enumerate(self.pieces)
            ]
            return {"object": "list", "data": data, "model": self.model} | usage | self.extra
        if self.kind == "rerank":
            results = [
                {"index": index, "relevance_score": _score(self.query, text)}
                for index, text in enumerate(self.pieces)
            ]
            return {"model": self.model, "results": results} | usage | self.extra
        text = "".join(self.pieces)
        choice: dict[str, Any] = {"text": text}
        if self.kind == "chat":
            choice = {"message": {"role": "assistant", "content": text} | self.message}
        ending = {"logprobs": None, "finish_reason": self.finish}
        return self._frame("", [{"index": 0} | choice | ending]) | usage | self.extra

    def events(self, include_usage: bool) -> list[bytes]:
        """Returns the payloads of the stream; the last one is `[DONE]`."""
        chat = self.kind == "chat"
        # OpenAI writes `"usage": null` into the other chunks when usage was asked for.
        extra = {"usage": None} | self.extra if include_usage else self.extra
        deltas = [self.first, *self.deltas] if chat else []
        deltas += [{"content": piece} if chat else {"text": piece} for piece in self.pieces]
        deltas.append({} if chat else {"text": ""})
        events = []
        for number, delta in enumerate(deltas, 1):
            choice: dict[str, Any] = {"index": 0} | ({"delta": delta} if chat else delta)
            choice["finish_reason"] = self.finish if number == len(deltas) else None
            events.append(encode_json(self._frame(".chunk", [choice]) | extra))
        if include_usage and self.usage is not None:
            events.append(
                encode_json(self._frame(".chunk", []) | {"usage": self.usage} | self.extra)
            )
        return [*events, b"[DONE]"]

    def _frame(self, suffix: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chat = self.kind == "chat"
        return {
            "id": f"chatcmpl-{ID_PLACEHOLDER}" if chat else f"cmpl-{ID_PLACEHOLDER}",
            "object": f"chat.completion{suffix}" if chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "fp_simulated",
            "choices": choices,
        }


def _embed(text: str, dimensions: int, as_base64: bool) -> list[float] | str:
    digest = hashlib.shake_128(text.encode()).digest(dimensions)
    vector = [byte / 127.5 - 1 for byte in digest]
    if as_base64:
        return base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
    return vector


def _score(query: str, text: str) -> float:
    """Returns the share of the query's words that a text has."""
    words = query.lower().split()
    return sum(word in text.lower() for word in words) / max(1, len(words))


def _answer(reply: ScriptedReply, request: Request) -> bytes:
    if request.stream:
        return chunked_response(to_sse(reply.events(request.include_usage)))
    return http_response(200, encode_json(reply.plain()))


@functools.lru_cache(maxsize=512)
def _encode_cached(stream: bool, include_usage: bool, *fields: Any) -> bytes:
    reply = ScriptedReply(*fields)
    if stream:
        return chunked_response(to_sse(reply.events(include_usage)))
    return http_response(200, encode_json(reply.plain()))


def _answer_cheaply(reply: ScriptedReply, request: Request) -> Script:
    if reply.kind in WHOLE or sum(map(len, reply.pieces)) > 10_000:
        return (_answer(reply, request),)
    fields = (reply.kind, reply.model, reply.pieces, reply.prompt_tokens, reply.finish)
    wanted = (request.stream, request.include_usage)
    return (_encode_cached(*wanted, *fields, reply.created),)


def _echo(request: Request) -> Script:
    return _answer_cheaply(ScriptedReply.to(request), request)


def _status(request: Request) -> Script:
    status, retry_after = (int(number) for number in request.numbers(500, 0))
    retry_after = retry_after or (1 if status == 429 else 0)
    yield error_reply(status, f"retry-after: {retry_after}\r\n" if retry_after else "")


def _reply(**changes: Callable[[ScriptedReply, Request], Any]) -> Callable[[Request], Script]:
    """Builds a behaviour: a good answer with some fields changed, plain or streamed."""

    def behave(request: Request) -> Script:
        reply = ScriptedReply.to(request)
        for name, change in changes.items():
            setattr(reply, name, change(reply, request))
        if "usage" not in changes:
            reply.count()
        return (_answer(reply, request),)

    return behave


def _stream(change: Callable[[list[bytes], Request], Script]) -> Callable[[Request], Script]:
    """Builds a behaviour from the events of a good stream; a plain request gets a good answer."""

    def behave(request: Request) -> Script:
        if not request.stream:
            yield from _echo(request)
            return
        yield STREAM_HEAD
        for step in change(ScriptedReply.to(request).events(request.include_usage), request):
            yield http_chunk(step) if isinstance(step, bytes) else step
        yield b"0\r\n\r\n"

    return behave


def _raw(make: Callable[[str, bytes, Request], Script]) -> Callable[[Request], Script]:
    """Builds a behaviour from the content type and body of a good answer, plain or streamed."""

    def behave(request: Request) -> Script:
        reply = ScriptedReply.to(request)
        if request.stream:
            events = to_sse(reply.events(request.include_usage))
            return make("text/event-stream", insert_request_id(b"".join(events), request), request)
        return make(
            "application/json", insert_request_id(encode_json(reply.plain()), request), request
        )

    return behave


def _usage(count: Any) -> Callable[[Request], Script]:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return _reply(usage=lambda reply, request: dict.fromkeys(names, count))


def _delta(request: Request, **delta: Any) -> bytes:
    """Returns one event from the middle of a stream, with the given delta."""
    reply = ScriptedReply.to(request)
    reply.deltas, reply.pieces = [delta], ()
    return to_sse(reply.events(False)[1:2])[0]


def _tools(reply: ScriptedReply, request: Request) -> list[dict[str, Any]]:
    tools = request.body.get("tools") or [{"function": {"name": "get_weather"}}]
    return [
        {"id": f"call_{number}", "type": "function",
         "function": {"name": tools[number % len(tools)]["function"]["name"],
                      "arguments": json.dumps({"city": "Zürich", "number": number})}}
        for number in range(int(request.numbers(1)[0]))
    ]  # fmt: skip


def _tool_deltas(reply: ScriptedReply, request: Request) -> list[dict[str, Any]]:
    deltas = []
    for index, call in enumerate(_tools(reply, request)):
        function, text = call["function"], call["function"]["arguments"]
        opened = {"index": index} | call | {"function": function | {"arguments": ""}}
        parts = [text[at : at + 7] for at in range(0, len(text), 7)]
        continued = [{"index": index, "function": {"arguments": part}} for part in parts]
        deltas += [{"tool_calls": [part]} for part in (opened, *continued)]
    return deltas


def _able(request: Request, *, is_strict: bool = False) -> Script:
    reply = ScriptedReply.to(request)
    honoured = abilities.honour(request, reply.plain(), is_strict=is_strict)
    return (honoured or _answer(reply, request),)


def _chunks(request: Request) -> Script:
    reply = ScriptedReply.to(request)
    reply.pieces = tuple(f" {number}" for number in range(int(request.numbers(50)[0])))
    return _answer_cheaply(reply, request)


def _stream_with_pauses(request: Request, before: Step | None, between: Step) -> Script:
    if before is not None:
        yield before
    if not request.stream:
        yield from _echo(request)
        return
    yield STREAM_HEAD
    for number, event in enumerate(to_sse(ScriptedReply.to(request).events(request.include_usage))):
        if number:
            yield between
        yield http_chunk(event)
    yield b"0\r\n\r\n"


def _slow(request: Request) -> Script:
    first = request.numbers(0.2)[0]
    return _stream_with_pauses(request, *request.numbers(first, first))


def _gate(request: Request) -> Script:
    return _stream_with_pauses(request, None if request.stream else Signal.GATE, Signal.GATE)


def _choices(request: Request) -> Script:
    """Answers with many choices, all of them first in line, or in one event."""
    count = int(request.numbers(500_000)[0])
    answer = ScriptedReply.to(request).plain()
    name = "delta" if request.stream else "message"
    choice = encode_json({"index": 0, name: {"role": "assistant", "content": "a"}})
    head, _, tail = encode_json({**answer, "choices": []}).partition(b"[]")
    body = head + b"[" + b",".join([choice] * count) + b"]" + tail
    if request.stream:
        yield http_response(200, b"data: " + body + b"\n\n", "text/event-stream")
    else:
        yield http_response(200, body)


def _calls(request: Request) -> Script:
    """Streams many tool calls: half of them in one event, the others in an event each."""
    half = int(request.numbers(100_000)[0]) // 2
    call = b'{"index":%d,"id":"c%d","function":{"name":"f","arguments":""}}'
    begun = [call % (number, number) for number in range(2 * half)]
    event = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}\n\n'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    events = [event % calls for calls in (b",".join(begun[:half]), *begun[half:])]
    yield http_response(200, b"".join((*events, end, b"data: [DONE]\n\n")), "text/event-stream")


def _hang(request: Request) -> Script:
    """Sends an answer of many bytes, or such an event, except for the last ones, and waits."""
    size, missing = map(int, request.numbers(47_000_000, 1))
    if request.stream:
        head, name, tail = _delta(request, content="").partition(b'"content":"')
        yield STREAM_HEAD
        yield http_chunk(head + name)
        for start in range(0, size, WRITE_BYTES):
            yield http_chunk(b"x" * min(WRITE_BYTES, size - start))
        yield http_chunk(tail[: len(tail) - missing])
        yield Signal.STALL
    head, name, tail = encode_json(ScriptedReply.to(request).plain()).partition(b'"content":"')
    yield response_head(200, len(head + name + tail) + size, "application/json")
    yield head + name
    for start in range(0, size, WRITE_BYTES):
        yield b"x" * min(WRITE_BYTES, size - start)
    yield tail[: len(tail) - missing]
    yield Signal.STALL


def _burst(request: Request) -> Script:
    """Sends many of the shortest events at once."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    yield http_response(200, event * int(request.numbers(20_000)[0]) + end, "text/event-stream")


def _drip(data: bytes, request: Request) -> Script:
    (pause,) = request.numbers(1)
    for number, byte in enumerate(insert_request_id(data, request)):
        if number:
            yield pause
        yield bytes([byte])


def _send_without_end(request: Request) -> Script:
    """Sends an answer that never ends, as fast as the client reads it."""
    if request.stream:
        yield STREAM_HEAD
        yield from itertools.repeat(http_chunk(_delta(request, content="x" * 1000)))
    head, name, _ = encode_json(ScriptedReply.to(request).plain()).partition(b'"content":"')
    yield STREAM_HEAD.replace(b"text/event-stream", b"application/json")
    yield http_chunk(head + name)
    yield from itertools.repeat(http_chunk(b"x" * WRITE_BYTES))


def _echo_key(request: Request) -> Script:
    status = int(request.numbers(401)[0])
    given = request.headers["authorization"]
    yield error_reply(status, message=f"Incorrect API key provided: {given}.")


def _flaky(request: Request) -> Script:
    return (error_reply(503),) if request.nth <= request.numbers(1)[0] else _echo(request)


def _limited(request: Request) -> Script:
    most = request.numbers(60)[0]
    return (error_reply(429),) if request.nth > most else _echo(request)


def _demand_bound(request: Request) -> Script:
    least = request.numbers(20)[0]
    bound = request.body.get("max_completion_tokens") or request.body.get("max_tokens")
    if bound is not None and bound < least:
        return (error_reply(400, message=f"max_tokens must be at least {least:g}"),)
    return _echo(request)


def _exhausted(request: Request) -> Script:
    seconds = int(request.numbers(20)[0])
    more = f"x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: {seconds}s\r\n"
    yield http_response(200, encode_json(ScriptedReply.to(request).plain()), more=more)


def _mirror(reply: ScriptedReply, request: Request) -> tuple[str, ...]:
    seen = {"body": request.body, "headers": request.headers, "path": request.path}
    return (json.dumps(seen, ensure_ascii=False),)


def _cut_character(events: list[bytes], request: Request) -> Script:
    event = _delta(request, content="Zürich")
    return (*to_sse(events[:1]), event[: event.index("ü".encode()) + 1])


def _usage_twice(events: list[bytes], request: Request) -> Script:
    first, last = ScriptedReply.to(request), ScriptedReply.to(request)
    last.usage = {name: 2 * count for name, count in (last.usage or {}).items()}
    return to_sse([*first.events(True)[:-1], *last.events(True)[-2:]])


def _usage_with_choices(events: list[bytes], request: Request) -> Script:
    reply = ScriptedReply.to(request)
    finish = json.loads(reply.events(False)[-2]) | {"usage": reply.usage}
    return to_sse([*reply.events(False)[:-2], encode_json(finish), b"[DONE]"])


def _reasoning(reply: ScriptedReply, request: Request) -> dict[str, Any]:
    reply.deltas = [{"reasoning_content": "Let me"}, {"reasoning_content": " think."}]
    counts = reply.usage or {}
    return counts | {
        "completion_tokens": counts["completion_tokens"] + 3,
        "total_tokens": counts["total_tokens"] + 3,
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def _tokens(reply: ScriptedReply, request: Request) -> dict[str, Any]:
    prompt, completion = (int(number) for number in request.numbers(1000, 500))
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def _cached_tokens(reply: ScriptedReply, request: Request) -> dict[str, Any]:
    cached = int(request.numbers(reply.prompt_tokens)[0])
    return (reply.usage or {}) | {"prompt_tokens_details": {"cached_tokens": cached}}


_TIMINGS = {"prompt_n": 1, "prompt_ms": 1.5, "predicted_n": 2, "predicted_ms": 2.5}
# Without the pause, the reset overtakes the bytes that were sent before it.
_GONE: tuple[Step, ...] = (0.05, Signal.RESET)

BEHAVIOURS: dict[str, tuple[str, Callable[[Request], Script]]] = {
    # Good answers.
    "sim-echo": ("repeats the last user message; what any other model name does", _echo),
    "sim-chunks": ("answers :N words (50), a chunk each when streamed", _chunks),
    "sim-big": ("answers one word of :N bytes (3000000)", _reply(
        pieces=lambda r, q: ("x" * int(q.numbers(3_000_000)[0]),))),
    "sim-mirror": ("answers the received body, headers and path as JSON text",
                   _reply(pieces=_mirror)),
    "sim-tools": ("calls :N tools (1) of the request, arguments streamed in parts", _reply(
        pieces=lambda r, q: (), deltas=_tool_deltas, finish=lambda r, q: "tool_calls",
        message=lambda r, q: {"content": None, "tool_calls": _tools(r, q)},
        first=lambda r, q: {"role": "assistant", "content": None})),
    "sim-reasoning": ("reasons (reasoning_content) before it answers", _reply(
        usage=_reasoning, message=lambda r, q: {"reasoning_content": "Let me think."})),
    "sim-content-filter": ("finishes with content_filter",
                           _reply(finish=lambda r, q: "content_filter")),
    "sim-null-content": ("first delta has content null", _reply(
        first=lambda r, q: {"role": "assistant", "content": None})),
    "sim-extra": ("adds a field `timings` that OpenAI does not have",
                  _reply(extra=lambda r, q: {"timings": _TIMINGS})),
    "sim-cached": ("reports :N cached prompt tokens (all)", _reply(usage=_cached_tokens)),
    "sim-tokens": ("reports :PROMPT,COMPLETION tokens (1000,500)", _reply(usage=_tokens)),
    "sim-versioned": ("reports <model>-2026-01-01",
                      _reply(model=lambda r, q: f"{r.model}-2026-01-01")),
    "sim-slow": ("waits :FIRST,BETWEEN seconds (0.2) before the first event and between", _slow),
    "sim-gated": ("each event after the first (a plain answer: all) waits for release()", _gate),
    "sim-held": ("everything waits for one release()", lambda q: (Signal.GATE, *_echo(q))),
    "sim-able": ("honours parameters except :NAMES", _able),
    "sim-strict": ("honours parameters, refuses :NAMES", lambda q: _able(q, is_strict=True)),
    # Errors.
    "sim-status": ("error :STATUS,RETRY_AFTER (500); also sim-status-429", _status),
    "sim-held-status": ("the error of sim-status after one release()",
                        lambda q: (Signal.GATE, *_status(q))),
    "sim-flaky": ("503 for the first :N requests (1), then good", _flaky),
    "sim-limited": ("429 after :N requests (60) since its records were cleared", _limited),
    "sim-least": ("400 for a bound of the output below :N (20)", _demand_bound),
    "sim-exhausted": ("a whole answer that says that no request is left for :SECONDS (20)",
                      _exhausted),
    "sim-redirect": ("redirects with :STATUS (302); also sim-redirect-307", lambda q: (
        http_response(int(q.numbers(302)[0]), b"", more="location: /v1/elsewhere\r\n"),)),
    "sim-echo-key": ("error :STATUS (401) that repeats the Authorization header", _echo_key),
    "sim-too-long": ("400: the prompt exceeds the context", lambda q: (
        error_reply(400, message=abilities.TOO_LONG),)),
    "sim-flagged": ("error :STATUS (403) of a moderation", lambda q: (error_reply(
        int(q.numbers(403)[0]), code=None, message="Your input was flagged by our moderation."),)),
    **REFUSALS,
    # Bodies.
    "sim-wrong-model": ("reports `another-model`", _reply(model=lambda r, q: "another-model")),
    "sim-wrong-shape": ("valid JSON that is no completion", lambda q: (
        http_response(200, b'{"status":"ok","items":[1,2]}'),)),
    "sim-html": ("a page of HTML with 200", lambda q: (
        http_response(200, b"<!doctype html><title>Sign in</title>", "text/html"),)),
    "sim-truncated": ("JSON cut in half, its length announced correctly", _raw(
        lambda t, body, q: (http_response(200, body[: len(body) // 2], t),))),
    "sim-short-body": ("100 bytes fewer than announced, then closes", _raw(
        lambda t, body, q: (response_head(200, len(body) + 100, t), body, Signal.CLOSE))),
    "sim-reset-body": ("half the body, then a reset", _raw(
        lambda t, body, q: (response_head(200, len(body), t), body[: len(body) // 2], *_GONE))),
    "sim-endless": ("a body (or a stream) without end", _send_without_end),
    "sim-gzip": ("a body compressed though nobody asked", _raw(lambda t, body, q: (
        http_response(200, gzip.compress(body, mtime=0), t, more="content-encoding: gzip\r\n"),))),
    "sim-no-usage": ("no usage", _reply(usage=lambda r, q: None)),
    "sim-null-usage": ("usage null", _reply(
        usage=lambda r, q: None, extra=lambda r, q: {"usage": None})),
    "sim-usage-negative": ("token counts -1", _usage(-1)),
    "sim-usage-huge": ("token counts 1000000000", _usage(1_000_000_000)),
    "sim-usage-float": ("token counts 1.5", _usage(1.5)),
    "sim-usage-string": ('token counts "5"', _usage("5")),
    "sim-usage-nan": ("token counts NaN, which is not JSON", _usage(float("nan"))),
    "sim-usage-zero": ("token counts 0", _usage(0)),
    "sim-usage-null": ("token counts null", _usage(None)),
    "sim-choices": ("an answer, or an event, with :N choices (500000)", _choices),
    "sim-calls": ("a stream of :N tool calls (100000)", _calls),
    "sim-hanging": ("an answer, or event, of :N bytes (47000000) without the last :M (1)", _hang),
    # Connections.
    "sim-connect-reset": ("reset before any header", lambda q: (Signal.RESET,)),
    "sim-connect-close": ("closes before any header", lambda q: (Signal.CLOSE,)),
    "sim-stall": ("never answers", lambda q: (Signal.STALL,)),
    "sim-drip": ("a byte of the body every :SECONDS (1)", _raw(
        lambda t, body, q: itertools.chain((response_head(200, len(body), t),), _drip(body, q)))),
    "sim-drip-headers": ("a byte of everything every :SECONDS (1)", _raw(
        lambda t, body, q: _drip(http_response(200, body, t), q))),
    # Streams; a plain request gets a good answer.
    "sim-no-done": ("no [DONE]", _stream(lambda e, q: to_sse(e[:-1]))),
    "sim-cut-event": ("ends inside an event", _stream(
        lambda e, q: (*to_sse(e[:2]), b"data: " + e[2][: len(e[2]) // 2]))),
    "sim-cut-character": ("ends inside a UTF-8 character", _stream(_cut_character)),
    "sim-bad-json": ("an event that is not JSON", _stream(
        lambda e, q: to_sse([*e[:2], b'{"id": oops', *e[2:]]))),
    "sim-bad-shape": ("an event that is JSON but no chunk", _stream(
        lambda e, q: to_sse([*e[:2], b"[1,2]", *e[2:]]))),
    "sim-big-event": ("an event of :N bytes of content (2 MiB)", _stream(lambda e, q: (
        *to_sse(e[:1]), _delta(q, content="x" * int(q.numbers(2**21)[0])), *to_sse(e[1:])))),
    "sim-burst": ("the shortest event :N times (20000) at once", _burst),
    "sim-choice-index": ("choices with the index :N (1)", _stream(lambda e, q: to_sse(
        event.replace(b'"index":0', b'"index":%d' % q.numbers(1)[0]) for event in e))),
    "sim-only-comments": ("three comments and no event", _stream(
        lambda e, q: [b": still here\n\n"] * 3)),
    "sim-comments": ("a comment before each event", _stream(
        lambda e, q: to_sse(e, name=b": still here\n\ndata: "))),
    "sim-cr": ("lines end in CR", _stream(lambda e, q: to_sse(e, b"\r"))),
    "sim-lf": ("lines end in LF", _stream(lambda e, q: to_sse(e))),
    "sim-crlf": ("lines end in CRLF", _stream(lambda e, q: to_sse(e, b"\r\n"))),
    "sim-no-space": ("no space after `data:`", _stream(lambda e, q: to_sse(e, name=b"data:"))),
    "sim-multi-line": ("an event's data in two lines", _stream(
        lambda e, q: to_sse(event.replace(b",", b",\ndata: ", 1) for event in e))),
    "sim-bom": ("begins with a byte order mark", _stream(
        lambda e, q: (b"\xef\xbb\xbf", *to_sse(e)))),
    "sim-usage-twice": ("usage twice, doubled the second time", _stream(_usage_twice)),
    "sim-usage-with-choices": ("usage in the chunk that finishes", _stream(_usage_with_choices)),
    "sim-after-done": ("content after [DONE]", _stream(
        lambda e, q: (*to_sse(e), _delta(q, content=" late")))),
    "sim-linger": ("keeps the connection after [DONE]", _stream(
        lambda e, q: (*to_sse(e), Signal.STALL))),
    "sim-error-stream": ("an error object after two events", _stream(
        lambda e, q: to_sse([*e[:2], encode_json(error_object(500))]))),
    "sim-error-first": ("an error object as the first event", _stream(
        lambda e, q: to_sse([encode_json(error_object(429))]))),
    "sim-empty-stream": ("no event at all", _stream(lambda e, q: ())),
    "sim-reset-stream": ("two events, then a reset", _stream(
        lambda e, q: (*to_sse(e[:2]), *_GONE))),
    "sim-close-stream": ("two events, then closes without the last chunk", _stream(
        lambda e, q: (*to_sse(e[:2]), Signal.CLOSE))),
    "sim-stall-stream": ("one event, then silence", _stream(
        lambda e, q: (*to_sse(e[:1]), Signal.STALL))),
}  # fmt: skip


def find_behaviour(model: str) -> tuple[str, str]:
    """Returns the behaviour's name, which may be missing in `BEHAVIOURS`, and its option."""
    tail = re.sub(r"^[^:?]*/", "", model)
    if not tail.startswith("sim-"):
        return "sim-echo", ""
    name, _, option = tail.replace("?", ":", 1).partition(":")
    numbered = re.fullmatch(r"(sim-status|sim-redirect)-(\d{3})", name)
    if numbered:
        return numbered[1], f"{numbered[2]},{option}"
    return name, option
