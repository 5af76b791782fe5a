"""OpenAI's chat and text completions, and everyone who speaks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import (
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    Reply,
    Untranslatable,
    decode_object,
    parse_error,
    read_usage,
)
from catalog.dialects.shared.replies import GEMINI_FORMAT
from catalog.dialects.shared.sse import EventDecoder, EventTooLarge
from catalog.pricing import Usage
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset(Operation)
names_deployments: Final = False

Raw = TypeVar("Raw", bytes, msgspec.Raw)

_NULL: Final = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode
_INCLUDE_USAGE: Final = msgspec.Raw(b'{"include_usage":true}')
# What messages, parts and tools may have here and not in OpenAI's interface, whose servers refuse
# it; the parameter by which an endpoint says that it takes it; and how it looks in JSON.
_EXTENSIONS: Final = (
    ("cache_control", "cache_control", b'"cache_control"'),
    ("reasoning", "reasoning_details", b'"reasoning"'),
    ("reasoning_details", "reasoning_details", b'"reasoning_details"'),
)
_MEDIA: Final = re.compile(rb'"(?:image_url|video_url|input_audio|file)"')
_ATTACHED: Final = "The result is attached to the next message."
# The efforts that every model knows, by about how many tokens each lets it think.
_BUDGETS: Final = {"low": 4096, "medium": 8192, "high": 16384}


class _Signature(msgspec.Struct):
    id: str | None = None
    data: str | None = None
    format: str | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    max_tokens: int | None = None
    enabled: bool | None = None


class _Delta(msgspec.Struct):
    """The parts of a delta or message that count as output."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        calls = bytes(self.tool_calls)
        total = 0 if calls == b"null" else len(calls)
        # Servers that use both names of the reasoning say the same by them.
        for text in (self.content, self.reasoning or self.reasoning_content, self.refusal):
            if text is not None:
                total += _bytes(text)
        return total


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Embedding(msgspec.Struct):
    """One vector: numbers, or their bytes in base64; never read, for it can be long."""

    embedding: msgspec.Raw


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None


_decode_reasoning = msgspec.json.Decoder(_Reasoning | None).decode
_decode_signatures = msgspec.json.Decoder(list[_Signature] | None).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_choices = msgspec.json.Decoder(list[_Choice]).decode
_decode_embeddings = msgspec.json.Decoder(list[_Embedding]).decode
_decode_usage = msgspec.json.Decoder(_Usage | None).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
# The value of a member that holds output, where it is a text.
_OUTPUT: Final = re.compile(
    rb'"(?:content|reasoning|reasoning_content|text)": ?("(?:[^"\\]|\\.)*+")'
)
_REASONING: Final = re.compile(rb'"reasoning_content": ?("(?:[^"\\]|\\.)*+")')
# How often the parser of a stream learns where the text is: answers change from one kind of output
# to another, but those of some never have it in one place.
_LESSONS: Final = 8


def host(base_url: str | None, secret: Secret) -> str:
    return urlsplit(base_url or "").hostname or ""


def build(call: Call) -> OutboundRequest:
    return request(
        call,
        f"{call.base_url}/{call.operation.value}",
        {"Authorization": f"Bearer {call.secret.reveal()}"},
    )


def request(
    call: Call, url: str, login: Mapping[str, str], *, signs_calls: bool = False
) -> OutboundRequest:
    """Returns a call as an HTTP request to this URL, with the headers that log in there.

    An endpoint with a list of parameters gets none of the gateway's own that are not on it; one
    without gets all as they came. A server that signs the calls of tools gets its signatures back.
    Raises :class:`base.Untranslatable`.
    """
    fields = dict(call.fields)
    fields["model"] = call.model
    listed = call.supported_parameters
    if listed is not None:
        _say_effort(fields, is_known="reasoning_effort" in listed)
    if call.stream:
        fields["stream"] = True
        fields["stream_options"] = _with_usage(fields.get("stream_options"))
    body = _encode(fields)
    foreign = {
        member
        for member, parameter, mark in _EXTENSIONS
        if listed is not None and parameter not in listed and mark in body
    }
    is_signed = signs_calls and b'"reasoning_details"' in body
    if foreign or is_signed or (b'"tool_call_id"' in body and _MEDIA.search(body)):
        body = _encode(_without(fields, foreign, is_signed=is_signed))
    return OutboundRequest(
        method="POST",
        url=url,
        headers={
            **login,
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if call.stream else "application/json",
        },
        body=body,
    )


def _say_effort(fields: dict[str, Any], *, is_known: bool) -> None:
    """Says what the caller wants of reasoning by OpenAI's name for it, if by any.

    Whether the caller is shown the reasoning is up to the gateway.
    """
    reasoning = fields.pop("reasoning", None)
    fields.pop("include_reasoning", None)
    if not is_known:
        fields.pop("reasoning_effort", None)
    elif (effort := _effort(reasoning)) is not None:
        fields["reasoning_effort"] = effort


def _effort(reasoning: Any) -> str | None:
    """Returns the effort that a ``reasoning`` asks for; ``None`` leaves it to the model.

    A number of tokens becomes the effort that lets a model think about as long.
    """
    try:
        wanted = _decode_reasoning(_encode(reasoning))
    except (msgspec.DecodeError, RecursionError):
        raise Untranslatable("The reasoning of the request has an unexpected shape.") from None
    if wanted is None:
        return None
    if wanted.enabled is False:
        return "none"
    budget = wanted.max_tokens
    if wanted.effort or budget is None:
        return wanted.effort or None
    return min(_BUDGETS, key=lambda effort: abs(_BUDGETS[effort] - budget))


def _without(fields: dict[str, Any], foreign: set[str], *, is_signed: bool) -> dict[str, Any]:
    """Returns the fields without foreign members, and with media where only text may be moved."""
    fields = {name: value for name, value in fields.items() if name not in foreign}
    if "tools" in fields:
        tools = _objects(fields["tools"])
        fields["tools"] = fields["tools"] if tools is None else _stripped(tools, foreign)
    if "messages" in fields:
        messages = _objects(fields["messages"])
        if messages is not None:
            for message in messages if is_signed else ():
                _sign(message)
            fields["messages"] = _messages(_stripped(messages, foreign), foreign)
    return fields


def _sign(message: dict[str, Any]) -> None:
    """Puts signatures, which callers keep among the reasoning, back into the calls of tools."""
    calls = _objects(message.get("tool_calls"))
    if calls is None or "reasoning_details" not in message:
        return
    try:
        details = _decode_signatures(message["reasoning_details"])
    except (msgspec.DecodeError, RecursionError):
        return
    signatures = {one.id: one.data for one in details or () if one.format == GEMINI_FORMAT}
    for call in calls:
        if signature := signatures.get(_text(call, "id")):
            call.setdefault("extra_content", {"google": {"thought_signature": signature}})
    message["tool_calls"] = calls


def _messages(messages: list[dict[str, Any]], foreign: set[str]) -> list[dict[str, Any]]:
    """Returns the messages with foreign members left out of their parts.

    A tool may answer with text alone: its media follow in a message of the user's, behind the last
    answer of the same turn.
    """
    made: list[dict[str, Any]] = []
    media: list[dict[str, Any]] = []
    for message in messages:
        is_result = bytes(message.get("role", b"")) == b'"tool"'
        if media and not is_result:
            made.append({"role": "user", "content": media})
            media = []
        parts = _objects(message.get("content"))
        if parts is not None:
            message["content"] = _stripped(parts, foreign)
            if is_result and (others := [part for part in parts if "text" not in part]):
                message["content"] = _result([part for part in parts if "text" in part])
                media += others
        made.append(message)
    if media:
        made.append({"role": "user", "content": media})
    return made


def _result(parts: list[dict[str, Any]]) -> Any:
    """Returns what a tool says in text, plain where it is no more: that every server takes."""
    if not parts:
        return _ATTACHED
    is_plain = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if is_plain else parts


def _stripped(items: list[dict[str, Any]], foreign: set[str]) -> list[dict[str, Any]]:
    for item in items:
        for name in foreign & item.keys():
            del item[name]
    return items


def _objects(value: Any) -> list[dict[str, Any]] | None:
    """Reads a list of objects, their members raw; anything else is ``None``."""
    try:
        return _decode_objects(value if isinstance(value, msgspec.Raw) else _encode(value))
    except (msgspec.DecodeError, RecursionError):
        return None


def parse_reply(operation: Operation, body: bytes) -> Reply:
    fields = decode_object(body)
    if fields is None:
        raise InvalidReply("The answer is not a JSON object.")
    _raise_reported(fields)
    if operation is Operation.EMBEDDINGS:
        return _embeddings(fields)
    choices = _choices(fields)
    if not choices:
        raise InvalidReply("The answer has no choices.")
    fields["choices"] = _with_reasoning(fields["choices"])
    for choice in choices:
        if choice.text is None if operation is Operation.TEXT else choice.message is None:
            raise InvalidReply("A choice of the answer has no content.")
    return Reply(
        fields=fields,
        model=_text(fields, "model"),
        usage=_usage(fields),
        finish_reason=_finish_reason(choices),
        output_bytes=_size(choices),
        upstream_id=_text(fields, "id"),
    )


def _embeddings(fields: dict[str, msgspec.Raw]) -> Reply:
    """Reads vectors, which are whole once they are there: they end as a text that stops does."""
    try:
        vectors = _decode_embeddings(fields.get("data", _NULL))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The embeddings of the answer are malformed.") from None
    if not vectors or any(bytes(each.embedding)[:1] not in (b"[", b'"') for each in vectors):
        raise InvalidReply("The answer has no embeddings.")
    return Reply(
        fields=fields,
        model=_text(fields, "model"),
        usage=_usage(fields, completion=0),
        finish_reason="stop",
        upstream_id=_text(fields, "id"),
    )


def stream_parser(operation: Operation, choices: int = 1) -> _StreamParser:
    return _StreamParser()


class _StreamParser:
    """Reads the events of one stream; nothing after ``[DONE]`` counts.

    Most events differ from the one before in their choices alone, and most of those in one text of
    theirs: what differs is found between the same bytes, and nothing else is read again.
    """

    __slots__ = (
        "_after",
        "_before",
        "_choices",
        "_decoder",
        "_head",
        "_is_done",
        "_lessons",
        "_others",
        "_tail",
        "_text",
        "pending",
    )

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._is_done = False
        # What stands around the choices, and where they are between them.
        self._before = self._after = b""
        self._choices = slice(0)
        # What stands around the text in the choices, its quotes included, and where it is with
        # these; then the output in the choices besides that text.
        self._head = self._tail = b""
        self._text = slice(0)
        self._others = 0
        self._lessons = _LESSONS
        self.pending: list[Chunk] = []

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self.pending = chunks
        if self._is_done:
            return chunks
        try:
            events = self._decoder.feed(data)
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        alike: Chunk | None = None
        for event in events:
            if (size := self._size_of_alike(event)) is not None:
                if alike is None:
                    alike = Chunk(fields={}, has_choices=True, alike=[])
                    chunks.append(alike)
                alike.alike.append(_with_reasoning(event[self._choices]))
                alike.output_bytes += size
                continue
            alike = None
            if event[:1] != b"{" and event.strip() == b"[DONE]":
                self._is_done = True
                chunks.append(Chunk(fields={}, is_done=True))
                break
            chunks.append(self._chunk(event))
        return chunks

    def finish(self) -> list[Chunk]:
        if self._is_done:
            return []
        if not self._decoder.is_complete:
            raise InvalidStream("The stream was cut off inside an event.")
        raise InvalidStream("The stream ended without its end mark.")

    def _size_of_alike(self, event: bytes) -> int | None:
        """Reads the output in an event that is like the last one but for its choices.

        ``None`` for all others.
        """
        if self._head and event.startswith(self._head) and event.endswith(self._tail):
            try:
                return self._others + _bytes(_decode_text(event[self._text]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        before, after = self._before, self._after
        if not before or not event.startswith(before) or not event.endswith(after):
            return None
        raw = event[self._choices]
        try:
            choices = _decode_choices(raw)
            if not raw.isascii():
                # What is only relayed is not looked at, and must be UTF-8 all the same.
                raw.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not choices or _finish_reason(choices) is not None or b"\n" in raw:
            return None
        size = _size(choices)
        if self._lessons:
            self._lessons -= 1
            self._learn(raw, size)
        return size

    def _learn(self, raw: bytes, size: int) -> None:
        """Notes what stands around the text in the choices, if they have one that counts.

        What follows a key and begins with a quote is one text, whatever object it is in; another
        text in its place tells whether it counts, and by how much.
        """
        self._head = b""
        for found in _OUTPUT.finditer(raw):
            start, end = found.span(1)
            try:
                others = _size(_decode_choices(raw[:start] + b'""' + raw[end:]))
                length = _bytes(_decode_text(found[1]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if length and others + length == size:
                self._head = self._before + raw[: start + 1]
                self._tail = raw[end - 1 :] + self._after
                self._text = slice(len(self._head) - 1, 1 - len(self._tail) or None)
                self._others = others

    def _remember(self, event: bytes, fields: dict[str, msgspec.Raw], *, is_blank: bool) -> None:
        """Notes what stands around the choices of an event that carries nothing else of note."""
        self._before = self._head = b""
        if is_blank or fields.get("usage", _NULL) != _NULL:
            return
        before, _, after = event.partition(bytes(fields["choices"]))
        # A key that is there twice counts by its last place, wherever the first one stands.
        is_alone = before.count(b'"choices"') == 1 and b'"choices"' not in after
        if is_alone and before.rstrip().endswith(b'"choices":'):
            self._before, self._after = before, after
            self._choices = slice(len(before), -len(after) or None)

    def _chunk(self, event: bytes) -> Chunk:
        fields = decode_object(event)
        if fields is None:
            raise InvalidStream("An event of the stream is not a JSON object.")
        _raise_reported(fields)
        try:
            choices = _choices(fields)
        except InvalidReply as exc:
            raise InvalidStream(str(exc)) from None
        self._remember(event, fields, is_blank=not choices)
        fields["choices"] = _with_reasoning(fields["choices"])
        return Chunk(
            fields=fields,
            model=_text(fields, "model"),
            usage=_usage(fields) if "usage" in fields else None,
            finish_reason=_finish_reason(choices),
            output_bytes=_size(choices),
            has_choices=bool(choices),
            upstream_id=_text(fields, "id"),
        )


def _with_usage(options: Any) -> Any:
    """Asks for the usage chunk and keeps the other options that the caller sent."""
    if options is None:
        return _INCLUDE_USAGE
    members = decode_object(bytes(options)) or {}
    return {**members, "include_usage": True}


def _raise_reported(fields: dict[str, msgspec.Raw]) -> None:
    error = fields.get("error")
    if error is not None and error != _NULL:
        raise parse_error(b'{"error":' + bytes(error) + b"}")


def _choices(fields: dict[str, msgspec.Raw]) -> list[_Choice]:
    raw = fields.get("choices")
    if raw is None:
        raise InvalidReply("The answer has no choices.")
    try:
        return _decode_choices(raw)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The choices of the answer are malformed.") from None


def _with_reasoning(choices: Raw) -> Raw:
    """Says reasoning by the interface's name for it too, where a server has the other name only."""
    raw = bytes(choices)
    if b'"reasoning_content"' not in raw or b'"reasoning":' in raw:
        return choices
    return type(choices)(_REASONING.sub(rb'\g<0>,"reasoning":\1', raw))


def _usage(fields: dict[str, msgspec.Raw], *, completion: int | None = None) -> Usage | None:
    """Reads the usage; ``completion`` is known where the answer has no such count."""
    raw = fields.get("usage")
    if raw is None:
        return None
    try:
        usage = _decode_usage(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    if usage is None:
        return None
    counted = read_usage(
        usage.prompt_tokens,
        usage.completion_tokens if completion is None else completion,
        cached=_detail(usage.prompt_tokens_details, "cached_tokens"),
        cache_write=_detail(usage.prompt_tokens_details, "cache_write_tokens"),
        reasoning=_detail(usage.completion_tokens_details, "reasoning_tokens"),
        image_output=_detail(usage.completion_tokens_details, "image_tokens"),
    )
    if counted is not None and counted.reasoning:
        # Some count it beside the completion, of which it is a part; only the total tells.
        beside = counted.completion + counted.reasoning
        if usage.total_tokens == counted.prompt + beside:
            return replace(counted, completion=beside)
    return counted


def _detail(details: Any, name: str) -> Any:
    return details.get(name) if isinstance(details, dict) else None


def _text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _decode_text(raw)
    except msgspec.DecodeError:
        return None


def _finish_reason(choices: list[_Choice]) -> str | None:
    for choice in choices:
        if choice.finish_reason:
            return choice.finish_reason
    return None


def _size(choices: list[_Choice]) -> int:
    total = 0
    for choice in choices:
        part = choice.delta or choice.message
        if part is not None:
            total += part.size
        if choice.text is not None:
            total += _bytes(choice.text)
    return total


def _bytes(text: Any) -> int:
    """Returns the size of a text, or of what stands where a text should be."""
    if not isinstance(text, str):
        return len(_encode(text))
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
