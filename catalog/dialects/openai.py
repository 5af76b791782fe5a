"""OpenAI's chat completions, text completions and embeddings, and servers of the same format.

https://platform.openai.com/docs/api-reference describes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    Reply,
    Untranslatable,
    check_answer,
    decode_object,
    parse_error,
    read_usage,
)
from catalog.dialects.shared.openai_fields import adapt_fields
from catalog.dialects.shared.raw import (
    LONG_BYTES,
    encode_pieces,
    first_byte,
    is_empty,
    is_null,
    measure_value,
)
from catalog.dialects.shared.repeats import end_of_second_event, find_repeats
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
# Members of messages, parts and tools that OpenAI's interface lacks and its servers refuse; each
# with the parameter by which an endpoint declares support, and with its quoted name.
_EXTENSIONS: Final = (
    ("cache_control", "cache_control", b'"cache_control"'),
    ("reasoning", "reasoning_details", b'"reasoning"'),
    ("reasoning_details", "reasoning_details", b'"reasoning_details"'),
)
_MEDIA: Final = (b'"image_url"', b'"video_url"', b'"input_audio"', b'"file"')
# The efforts that every model accepts, with about the number of thinking tokens of each.
_BUDGETS: Final = {"low": 4096, "medium": 8192, "high": 16384}


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    max_tokens: int | None = None
    enabled: bool | None = None


class _Delta(msgspec.Struct):
    """The parts of a delta or message that count as output."""

    content: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    refusal: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        total = 0 if self.tool_calls == _NULL else len(self.tool_calls)
        # Servers that send both names of the reasoning repeat the same text.
        reasoning = self.reasoning_content if is_empty(self.reasoning) else self.reasoning
        for text in (self.content, reasoning, self.refusal):
            if text:
                total += measure_value(text)
        return total


class _Choice(msgspec.Struct):
    index: Any = None
    delta: _Delta | None = None
    message: _Delta | None = None
    text: msgspec.Raw = msgspec.Raw()
    finish_reason: str | None = None


class _Embedding(msgspec.Struct):
    """One vector: numbers, or their bytes in Base64. It stays raw, because it can be long."""

    embedding: msgspec.Raw


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None


_decode_reasoning = msgspec.json.Decoder(_Reasoning | None).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_choices = msgspec.json.Decoder(list[_Choice]).decode
_decode_embeddings = msgspec.json.Decoder(list[_Embedding]).decode
_decode_usage = msgspec.json.Decoder(_Usage | None).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
# Finds the text of a member that holds output.
_OUTPUT: Final = re.compile(
    rb'"(?:content|reasoning|reasoning_content|text)": ?("(?:[^"\\]|\\.)*+")'
)
_REASONING: Final = re.compile(rb'"reasoning_content": ?("(?:[^"\\]|\\.)*+")')
# The number of times that the parser of a stream searches for the position of the text. More than
# one, because a stream may change from one kind of output to another; limited, because in some
# streams the position always changes.
_MAX_SEARCHES: Final = 8
# A larger event is scanned before it is decoded.
_LARGE_EVENT_BYTES: Final = 16 * 1024


def host(base_url: str | None, secret: Secret) -> str:
    return urlsplit(base_url or "").hostname or ""


def build(call: Call) -> OutboundRequest:
    return build_request(
        call,
        f"{call.base_url}/{call.operation.value}",
        {"Authorization": f"Bearer {call.secret.reveal()}"},
    )


def build_request(
    call: Call, url: str, login: Mapping[str, str], *, has_signatures: bool = False
) -> OutboundRequest:
    """Returns the HTTP request of a call to this URL; the headers of ``login`` authenticate it.

    An endpoint that lists its parameters gets only the extensions on its list; an endpoint without
    a list gets all of them. ``has_signatures`` is true when the server signs tool calls and
    requires the signatures in later requests. Raises :class:`base.Untranslatable`.
    """
    fields = dict(call.fields)
    fields["model"] = call.model
    listed = call.supported_parameters
    if listed is not None:
        _set_effort(fields, accepts_effort="reasoning_effort" in listed)
    if call.stream:
        fields["stream"] = True
        fields["stream_options"] = _add_include_usage(fields.get("stream_options"))
    body = _write_body(fields)
    unsupported = {
        member
        for member, parameter, mark in _EXTENSIONS
        if listed is not None and parameter not in listed and mark in body
    }
    restores_signatures = has_signatures and b'"reasoning_details"' in body
    if unsupported or restores_signatures or (b'"tool_call_id"' in body and _has_media(body)):
        body = _write_body(
            adapt_fields(fields, unsupported, restores_signatures=restores_signatures)
        )
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


def _has_media(body: bytes) -> bool:
    return any(mark in body for mark in _MEDIA)


def _write_body(fields: dict[str, Any]) -> bytes:
    """Encodes a body; long raw members are copied once, where an encoder copies them repeatedly."""
    raws = (value for value in fields.values() if isinstance(value, msgspec.Raw))
    if any(len(raw) > LONG_BYTES for raw in raws):
        return b"".join(encode_pieces(fields))
    return _encode(fields)


def _set_effort(fields: dict[str, Any], *, accepts_effort: bool) -> None:
    """Replaces the reasoning options with ``reasoning_effort`` if the endpoint accepts it.

    Drops them for other endpoints. The gateway itself hides the reasoning from callers that exclude
    it.
    """
    reasoning = fields.pop("reasoning", None)
    fields.pop("include_reasoning", None)
    if not accepts_effort:
        fields.pop("reasoning_effort", None)
    elif (effort := _choose_effort(reasoning)) is not None:
        fields["reasoning_effort"] = effort


def _choose_effort(reasoning: Any) -> str | None:
    """Returns the effort that a ``reasoning`` asks for; ``None`` leaves it to the model.

    A number of tokens becomes the effort with the closest number of thinking tokens.
    """
    try:
        options = _decode_reasoning(_encode(reasoning))
    except (msgspec.DecodeError, RecursionError):
        raise Untranslatable("The reasoning of the request has an unexpected shape.") from None
    if options is None:
        return None
    if options.enabled is False:
        return "none"
    budget = options.max_tokens
    if options.effort or budget is None:
        return options.effort or None
    return min(_BUDGETS, key=lambda effort: abs(_BUDGETS[effort] - budget))


def parse_reply(operation: Operation, body: Body) -> Reply:
    fields = decode_object(body)
    if fields is None:
        raise InvalidReply("The answer is not a JSON object.")
    _raise_for_error(fields)
    if operation is Operation.EMBEDDINGS:
        return _parse_embeddings(fields)
    choices = _parse_choices(fields)
    if not choices:
        raise InvalidReply("The answer has no choices.")
    add = _add_long_reasoning if len(fields["choices"]) > LONG_BYTES else _add_reasoning
    members = {**fields, "choices": add(fields["choices"])}
    for choice in choices:
        if is_null(choice.text) if operation is Operation.TEXT else choice.message is None:
            raise InvalidReply("A choice of the answer has no content.")
    return Reply(
        fields=members,
        model=_read_text(fields, "model"),
        usage=_parse_usage(fields),
        finish_reason=_finish_reason(choices),
        output_bytes=_size(choices),
        upstream_id=_read_text(fields, "id"),
        choices=len(choices),
    )


def _parse_embeddings(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply of vectors, which always has the finish reason ``stop``."""
    try:
        vectors = _decode_embeddings(fields.get("data", _NULL))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The embeddings of the answer are malformed.") from None
    if not vectors or any(bytes(each.embedding)[:1] not in (b"[", b'"') for each in vectors):
        raise InvalidReply("The answer has no embeddings.")
    return Reply(
        fields=fields,
        model=_read_text(fields, "model"),
        usage=_parse_usage(fields, completion=0),
        finish_reason="stop",
        upstream_id=_read_text(fields, "id"),
        choices=len(vectors),
    )


def stream_parser(operation: Operation, choices: int = 1) -> _StreamParser:
    return _StreamParser(choices)


class _StreamParser:
    """Parses the events of one stream; it ignores everything after ``[DONE]``.

    Most events differ from the previous one only in their choices, and most choices only in one
    text. Such an event is recognized by the equal bytes around the difference, and only the
    difference is parsed.
    """

    __slots__ = (
        "_after",
        "_allowed",
        "_before",
        "_choices",
        "_decoder",
        "_head",
        "_is_done",
        "_others",
        "_searches_left",
        "_tail",
        "_text",
        "pending",
    )

    def __init__(self, allowed: int) -> None:
        self._decoder = EventDecoder()
        # The number of choices that were asked for.
        self._allowed = allowed
        self._is_done = False
        # The bytes before and after the choices, and the slice of the choices.
        self._before = self._after = b""
        self._choices = slice(0)
        # The bytes before and after the text in the choices, quotes included; the slice of the text
        # with its quotes; and the size of the other output in the choices.
        self._head = self._tail = b""
        self._text = slice(0)
        self._others = 0
        self._searches_left = _MAX_SEARCHES
        self.pending: list[Chunk] = []

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self.pending = chunks
        # The first two events show what the others repeat.
        first = 0 if self._head else end_of_second_event(data)
        for piece in (data[:first], data[first:]):
            if rest := piece[self._feed_repeats(piece) :]:
                self._feed_events(rest)
        return chunks

    def _feed_repeats(self, data: bytes) -> int:
        """Adds one chunk for the plain repeats at the start of some bytes; returns their end."""
        if (
            not self._head
            or self._is_done
            or len(data) > _LARGE_EVENT_BYTES
            or not self._decoder.is_between_events
            or b'"reasoning_content"' in data
            or (found := find_repeats(data, self._head, self._tail)) is None
        ):
            return 0
        before, after = b"data: " + self._before, self._after + b"\n\n"
        repeats = data[len(before) : found.end - len(after)].split(after + before)
        size = found.text_bytes + found.events * self._others
        self.pending.append(Chunk(fields={}, has_choices=True, repeats=repeats, output_bytes=size))
        return found.end

    def _feed_events(self, data: bytes) -> None:
        """Adds the chunks of the events that some bytes complete."""
        if self._is_done:
            return
        try:
            events = self._decoder.feed(data)
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        repeats: Chunk | None = None
        for event in events:
            if len(event) > _LARGE_EVENT_BYTES:
                self._check_large(event)
            if (size := self._read_repeat(event)) is not None:
                if repeats is None:
                    repeats = Chunk(fields={}, has_choices=True, repeats=[])
                    self.pending.append(repeats)
                repeats.repeats.append(_add_reasoning(event[self._choices]))
                repeats.output_bytes += size
                continue
            repeats = None
            if event[:1] != b"{" and event.strip() == b"[DONE]":
                self._is_done = True
                self.pending.append(Chunk(fields={}, is_done=True))
                break
            self.pending.append(self._chunk(event))

    def finish(self) -> list[Chunk]:
        if self._is_done:
            return []
        if not self._decoder.is_complete:
            raise InvalidStream("The stream was cut off inside an event.")
        raise InvalidStream("The stream ended without its end mark.")

    def _read_repeat(self, event: bytes) -> int | None:
        """Returns the output size of an event that repeats the last one except for its choices.

        Returns ``None`` for every other event.
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
            self._check_choices(choices := _decode_choices(raw))
            if not raw.isascii():
                # The choices are relayed without decoding, and must be UTF-8 nevertheless.
                raw.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not choices or _finish_reason(choices) is not None or b"\n" in raw:
            return None
        size = _size(choices)
        if self._searches_left:
            self._searches_left -= 1
            self._note_text(raw, size)
        return size

    def _note_text(self, raw: bytes, size: int) -> None:
        """Stores the bytes around the text in the choices, if one text makes up the output.

        A value that begins with a quote is a text, in any object. The sizes with and without the
        text show whether the text counts as output.
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

    def _note_frame(self, event: bytes, fields: dict[str, msgspec.Raw], *, is_blank: bool) -> None:
        """Stores the bytes around the choices of an event without a usage."""
        self._before = self._head = b""
        if is_blank or fields.get("usage", _NULL) != _NULL:
            return
        before, _, after = event.partition(bytes(fields["choices"]))
        # JSON parsers use the last of several equal keys, so the key must occur only once.
        is_unique = before.count(b'"choices"') == 1 and b'"choices"' not in after
        if is_unique and before.rstrip().endswith(b'"choices":'):
            self._before, self._after = before, after
            self._choices = slice(len(before), -len(after) or None)

    def _check_large(self, event: bytes) -> None:
        """Raises :class:`InvalidStream` for an event that would cost too much to decode."""
        try:
            check_answer(event, self._allowed)
        except InvalidReply as exc:
            raise InvalidStream(str(exc)) from None

    def _check_choices(self, choices: list[_Choice]) -> None:
        """Raises :class:`InvalidStream` for more choices than were asked for."""
        if len(choices) > self._allowed or any(
            isinstance(each.index, int) and each.index >= self._allowed for each in choices
        ):
            raise InvalidStream(f"It has more than {self._allowed} choices.")

    def _chunk(self, event: bytes) -> Chunk:
        fields = decode_object(event)
        if fields is None:
            raise InvalidStream("An event of the stream is not a JSON object.")
        _raise_for_error(fields)
        try:
            choices = _parse_choices(fields)
        except InvalidReply as exc:
            raise InvalidStream(str(exc)) from None
        self._check_choices(choices)
        self._note_frame(event, fields, is_blank=not choices)
        fields["choices"] = _add_reasoning(fields["choices"])
        return Chunk(
            fields=fields,
            model=_read_text(fields, "model"),
            usage=_parse_usage(fields) if "usage" in fields else None,
            finish_reason=_finish_reason(choices),
            output_bytes=_size(choices),
            has_choices=bool(choices),
            upstream_id=_read_text(fields, "id"),
        )


def _add_include_usage(options: Any) -> Any:
    """Returns the stream options with ``include_usage``; the caller's other options stay."""
    if options is None:
        return _INCLUDE_USAGE
    members = decode_object(bytes(options)) or {}
    return {**members, "include_usage": True}


def _raise_for_error(fields: dict[str, msgspec.Raw]) -> None:
    error = fields.get("error")
    if error is not None and error != _NULL:
        raise parse_error(b'{"error":' + bytes(error) + b"}")


def _parse_choices(fields: dict[str, msgspec.Raw]) -> list[_Choice]:
    raw = fields.get("choices")
    if raw is None:
        raise InvalidReply("The answer has no choices.")
    try:
        choices = _decode_choices(raw)
        if all(is_null(each.text) or memoryview(each.text)[0] == 0x22 for each in choices):
            return choices
        raise InvalidReply("A text of the answer is malformed.")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The choices of the answer are malformed.") from None


def _add_reasoning(choices: Raw) -> Raw:
    """Copies ``reasoning_content`` to ``reasoning`` where a server sends only the former."""
    raw = bytes(choices)
    if b'"reasoning_content"' not in raw or b'"reasoning":' in raw:
        return choices
    return type(choices)(_REASONING.sub(rb'\g<0>,"reasoning":\1', raw))


def _add_long_reasoning(choices: msgspec.Raw) -> list[dict[str, Any]]:
    """Does the same for the whole choices of a long answer, which a substitution would copy."""
    given: list[dict[str, Any]] = [*_decode_objects(choices)]
    for choice in given:
        if first_byte(choice.get("message")) == b"{":
            message = choice["message"] = _decode_members(choice["message"])
            if "reasoning_content" in message:
                message.setdefault("reasoning", message["reasoning_content"])
    return given


def _parse_usage(fields: dict[str, msgspec.Raw], *, completion: int | None = None) -> Usage | None:
    """Returns the usage; ``completion`` replaces the count that embeddings do not have."""
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
        # Some servers do not count reasoning as part of the completion; only the total shows it.
        beside = counted.completion + counted.reasoning
        if usage.total_tokens == counted.prompt + beside:
            return replace(counted, completion=beside)
    return counted


def _detail(details: Any, name: str) -> Any:
    return details.get(name) if isinstance(details, dict) else None


def _read_text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
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
        if choice.text:
            total += measure_value(choice.text)
    return total


def _bytes(text: Any) -> int:
    """Returns the size of a text in bytes, or of the JSON of any other value."""
    if not isinstance(text, str):
        return len(_encode(text))
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
