"""Relays requests, replies and events of OpenAI's Responses in the caller's own words.

https://platform.openai.com/docs/api-reference/responses describes them. What the gateway must know
of an answer is read from it: usage, status, model and size. The rest passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    ProviderFailure,
    Reply,
    StreamParser,
    decode_object,
    parse_error,
    read_usage,
)
from catalog.dialects.shared import replies
from catalog.dialects.shared.sse import EventDecoder
from catalog.pricing import Usage
from config.credentials import Secret
from config.egress import OutboundRequest

PATH: Final = "responses"
# Events that begin an answer: nothing of it is lost if the next one is an error.
_OPENING: Final = frozenset(("response.created", "response.in_progress", "response.queued"))
_ENDS: Final = frozenset(("response.completed", "response.incomplete"))
# Events by which servers only keep the connection open.
_SILENT: Final = frozenset(("", "ping", "keepalive"))
_REASONS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
_CALLS: Final = frozenset(("function_call", "custom_tool_call"))
# Members that an endpoint may be unable to take; the fields of the call have those that it takes.
_OPTIONAL: Final = frozenset(
    (
        "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "stop", "seed",
        "min_p", "top_a", "repetition_penalty", "logit_bias", "service_tier",
    )
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


class _Part(msgspec.Struct):
    text: Any = None
    refusal: Any = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    arguments: Any = None
    input: Any = None

    @property
    def size(self) -> int:
        """The size of the output in bytes, from which tokens are estimated without a usage."""
        parts = [*(self.content or ()), *(self.summary or ())]
        texts = [self.arguments, self.input]
        texts += [part.text or part.refusal for part in parts]
        return sum(len(text.encode()) for text in texts if isinstance(text, str))


class _Usage(msgspec.Struct):
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: Any = None
    output_tokens_details: Any = None

    def count(self) -> Usage | None:
        return read_usage(
            self.input_tokens,
            self.output_tokens,
            cached=_detail(self.input_tokens_details, "cached_tokens"),
            cache_write=_detail(self.input_tokens_details, "cache_write_tokens"),
            reasoning=_detail(self.output_tokens_details, "reasoning_tokens"),
        )


class _Details(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    """The members of a response that the gateway reads; ``usage`` and ``error`` may be anything."""

    object: str | None = None
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[_Item] = []
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")
    incomplete_details: _Details | None = None

    @property
    def finish(self) -> tuple[str, str]:
        """The finish reason as chat names it, and in the provider's own words."""
        if self.status == "incomplete":
            reason = (self.incomplete_details or _Details()).reason or "max_output_tokens"
            return _REASONS.get(reason, "length"), reason[:64]
        has_call = any(item.type in _CALLS for item in self.output)
        return ("tool_calls" if has_call else "stop"), "completed"

    def count(self) -> Usage | None:
        try:
            usage = _decode_usage(self.usage)
        except (msgspec.DecodeError, RecursionError):
            return None
        return None if usage is None else usage.count()

    def fail(self) -> ProviderFailure:
        return parse_error(b'{"error":' + bytes(self.error) + b"}")


class _Event(msgspec.Struct):
    type: str = ""
    response: _Response | None = None
    output_index: int = 0
    delta: Any = None


_decode_usage = msgspec.json.Decoder(_Usage | None).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_text = msgspec.json.Decoder(str).decode


def _detail(details: Any, name: str) -> Any:
    return details.get(name) if isinstance(details, dict) else None


@dataclass(frozen=True, slots=True)
class NativeResponses:
    """The dialect of an upstream to which requests of Responses pass, and from which answers do."""

    host: Callable[[str | None, Secret], str]
    build: Callable[[Call], OutboundRequest]
    names_deployments: bool = False

    @property
    def operations(self) -> frozenset[Operation]:
        return frozenset((Operation.CHAT,))

    def parse_reply(self, operation: Operation, body: Body) -> Reply:
        return parse_response(body)

    def stream_parser(self, operation: Operation, choices: int = 1) -> StreamParser:
        reader = ResponseReader()
        return replies.EventParser(EventDecoder(), reader.read)


def build_response(call: Call, url: str, login: dict[str, str]) -> OutboundRequest:
    """Returns the HTTP request of a call to this URL; the headers of ``login`` authenticate it."""
    return OutboundRequest(
        method="POST",
        url=url,
        headers={
            **login,
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if call.stream else "application/json",
        },
        body=_encode(build_body(call)),
    )


def build_body(call: Call) -> dict[str, Any]:
    """Returns the caller's body with our model, our pseudonym of the user and our bound."""
    assert call.native is not None
    body = {
        name: value
        for name, value in call.native.fields.items()
        if name not in _OPTIONAL or name in call.fields
    }
    body["model"] = call.model
    # The account is the operator's: what it stores, all tenants of the operator share.
    body["store"] = False
    body["stream"] = call.stream
    if "service_tier" in body:
        body["service_tier"] = call.fields["service_tier"]
    user = _read(call.fields.get("user"))
    if user is not None:
        body["safety_identifier"] = user
    if (key := body.get("prompt_cache_key")) is not None:
        # Keys of two tenants must differ.
        text = f"{user or ''}:{_read(key)}"
        body["prompt_cache_key"] = hashlib.sha256(text.encode()).hexdigest()
    for name in ("max_tokens", "max_completion_tokens"):
        if (bound := call.fields.get(name)) is not None:
            body["max_output_tokens"] = bound
    return body


def _read(value: Any) -> Any:
    return _decode_text(value) if isinstance(value, msgspec.Raw) else value


def parse_response(body: Body) -> Reply:
    """Parses a whole response; its fields stay raw and pass to the caller."""
    fields = decode_object(body)
    try:
        response = None if fields is None else _decode_response(body)
    except (msgspec.DecodeError, RecursionError):
        response = None
    if fields is None or response is None:
        raise InvalidReply("The answer is not a response.")
    if bytes(response.error) != b"null" or response.status == "failed":
        raise response.fail()
    if response.object != "response" or response.status not in ("completed", "incomplete"):
        raise InvalidReply("The answer is not a finished response.")
    finish, native = response.finish
    return Reply(
        fields=fields,
        model=response.model,
        usage=response.count(),
        finish_reason=finish,
        native_finish_reason=native,
        output_bytes=sum(item.size for item in response.output),
        upstream_id=response.id,
    )


def join_response(chunks: Iterable[Chunk]) -> Reply:
    """Returns the response that the last event of a stream repeats."""
    for chunk in reversed([*chunks]):
        if chunk.finish_reason is not None:
            return parse_response(_encode(chunk.fields["response"]))
    raise InvalidReply("The answer is not a response.")


def split_response(reply: Reply) -> list[Chunk]:
    """Returns the events of a whole response; each item of its output begins and ends whole."""
    response = msgspec.json.decode(_encode(reply.fields))
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(response.get("output") or ()):
        for kind in ("added", "done"):
            event = {"type": f"response.output_item.{kind}", "output_index": index, "item": item}
            events.append(event)
    events.append({"type": f"response.{response['status']}", "response": response})
    reader = ResponseReader()
    chunks = []
    for number, event in enumerate(events):
        data = _encode({**event, "sequence_number": number})
        chunks += [chunk for chunk in reader.read(data) if not chunk.is_done]
    return chunks


class ResponseReader:
    """Reads the events of one stream, and passes them.

    The events that begin and end a response have ``fields``, because the gateway changes them; the
    others are ``data``. Those that begin it are held back until the next one: it may be an error,
    after which another provider can answer.
    """

    __slots__ = ("_has_begun", "_id", "_items", "_model", "_opening")

    def __init__(self) -> None:
        self._has_begun = False
        self._opening: list[Chunk] = []
        self._id: str | None = None
        self._model: str | None = None
        # The items of the output that have begun.
        self._items = 0

    def read(self, data: bytes) -> Iterator[Chunk]:
        if data == b"[DONE]":
            raise InvalidStream("The stream ended without its end mark.")
        try:
            event = _decode_event(data.decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidStream("An event of the stream is malformed.") from None
        match event.type:
            case "error":
                raise parse_error(data)
            case "response.failed" if event.response is not None:
                raise event.response.fail()
            case kind if kind in _SILENT:
                return
            case kind if kind in _OPENING:
                self._open(event, data)
                return
            case _ if not self._has_begun:
                raise InvalidStream("The stream does not begin with a response.")
            case "response.output_item.added":
                if event.output_index != self._items:
                    raise InvalidStream("An item of the output has a wrong index.")
                self._items += 1
            case kind if kind.startswith("response.") and kind not in _ENDS:
                if not 0 <= event.output_index < max(self._items, 1):
                    raise InvalidStream("An event names an item that has not begun.")
        yield from self._opening
        self._opening.clear()
        if event.type not in _ENDS:
            size = len(event.delta.encode()) if isinstance(event.delta, str) else 0
            yield self._pass(event, data, size)
            return
        yield self._end(event, data)
        yield replies.build_end_mark()

    def _open(self, event: _Event, data: bytes) -> None:
        response = event.response
        is_first = event.type == "response.created"
        if response is None or is_first is self._has_begun or (self._has_begun and self._items):
            raise InvalidStream("The stream does not begin with one response.")
        if len(self._opening) >= len(_OPENING):
            raise InvalidStream("The stream begins again and again.")
        self._has_begun = True
        self._id, self._model = response.id, response.model
        self._opening.append(self._chunk(fields=decode_object(data) or {}))

    def _end(self, event: _Event, data: bytes) -> Chunk:
        response = event.response
        if response is None:
            raise InvalidStream("The last event has no response.")
        finish, native = response.finish
        self._id, self._model = response.id or self._id, response.model or self._model
        return self._chunk(
            fields={**(decode_object(data) or {}), "usage": response.usage},
            usage=response.count(),
            finish_reason=finish,
            native_finish_reason=native,
        )

    def _pass(self, event: _Event, data: bytes, size: int) -> Chunk:
        return self._chunk(
            fields={}, output_bytes=size, data=replies.encode_named_event(event.type, data)
        )

    def _chunk(self, **members: Any) -> Chunk:
        return Chunk(has_choices=True, model=self._model, upstream_id=self._id, **members)
