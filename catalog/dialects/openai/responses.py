"""Relays requests, replies and events of OpenAI's Responses in the caller's own words.

https://platform.openai.com/docs/api-reference/responses describes them. What the gateway must know
of an answer is read from it: usage, status, model and size. The rest passes.
"""

from __future__ import annotations

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
    decode_answer,
    decode_lenient_event,
    decode_object,
    parse_error,
    post_json,
    read_usage,
)
from catalog.dialects.openai.items import drop_extensions, fit_fields
from catalog.dialects.openai.members import decode_usage, find_detail
from catalog.dialects.shared import replies
from catalog.dialects.shared.constraints import name_media_types
from catalog.dialects.shared.left_out import name_asked
from catalog.dialects.shared.raw import is_null
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
_WHOLE: Final = {"object": "response", "status": "completed"}
# The bytes of items that are kept for an end that does not repeat them.
_MOST_KEPT: Final = 8_388_608
_CALLS: Final = frozenset(("function_call", "custom_tool_call"))
ARGUMENTS_TYPED: Final = "The arguments of the tool calls are no texts; they became some."
TEXTS_TYPED: Final = "The answer has texts of a type that the format lacks; they got its own."
NO_START: Final = "The stream does not begin with its response; it got an empty one."
# The beginning of a stream without one.
_BEGUN: Final = (
    b'{"type":"response.created","sequence_number":0,"response":{"object":"response",'
    b'"status":"in_progress","output":[],"usage":null}}'
)
# Members that an endpoint may be unable to take; the fields of the call have those that it takes.
_OPTIONAL: Final = frozenset(
    (
        "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "stop", "seed",
        "min_p", "top_a", "repetition_penalty", "logit_bias", "service_tier",
    )
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


class _Part(msgspec.Struct):
    type: Any = None
    text: Any = None
    refusal: Any = None


class _Item(msgspec.Struct):
    type: str = ""
    call_id: Any = None
    content: list[_Part] | str | None = None
    summary: list[_Part] | None = None
    arguments: Any = None
    input: Any = None
    # What a call of the shell, or of a patch, has instead of arguments.
    action: msgspec.Raw = msgspec.Raw()
    operation: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        """The size of the output in bytes, from which tokens are estimated without a usage."""
        content = [_Part(text=self.content)] if isinstance(self.content, str) else self.content
        arguments = self.arguments
        if isinstance(arguments, dict):
            arguments = _encode(arguments).decode()
        texts = [arguments, self.input]
        texts += [part.text or part.refusal for part in (*(content or ()), *(self.summary or ()))]
        size = sum(len(text.encode()) for text in texts if isinstance(text, str))
        return size + sum(len(raw) for raw in (self.action, self.operation) if not is_null(raw))

    @property
    def is_sound(self) -> bool:
        """Whether the SDKs can read the item."""
        if self.type == "message":
            if isinstance(self.content, str):
                return False
            return all(part.type != "text" for part in self.content or ())
        if self.type not in _CALLS:
            return True
        is_text = self.type != "function_call" or isinstance(self.arguments, str)
        return is_text and isinstance(self.call_id, str) and self.call_id != ""


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
        if (usage := decode_usage(self.usage)) is None:
            return None
        inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
        counted = read_usage(
            usage.prompt_tokens if usage.input_tokens is None else usage.input_tokens,
            usage.completion_tokens if usage.output_tokens is None else usage.output_tokens,
            cached=find_detail(inputs, "cached_tokens"),
            cache_write=find_detail(inputs, "cache_write_tokens"),
            reasoning=find_detail(outputs, "reasoning_tokens"),
        )
        if counted is not None and usage.input_tokens is None:
            # Some servers count in the words of chat.
            counts = {
                "input_tokens": counted.prompt,
                "output_tokens": counted.completion,
                "total_tokens": counted.prompt + counted.completion,
            }
            self.usage = msgspec.Raw(
                _encode({**(decode_object(bytes(self.usage)) or {}), **counts})
            )
        return counted

    def fail(self) -> ProviderFailure:
        return parse_error(b'{"error":' + bytes(self.error) + b"}")


class _Event(msgspec.Struct):
    type: str = ""
    response: _Response | None = None
    output_index: int = 0
    delta: Any = None
    item: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decode_response = msgspec.json.Decoder(_Response).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_items = msgspec.json.Decoder(list[_Item]).decode
_decode_text = msgspec.json.Decoder(str).decode


def _read_item(raw: msgspec.Raw) -> _Item | None:
    """Returns an item; ``None`` where there is none, and for one of a shape that is not known."""
    try:
        return _decode_item(raw) if raw else None
    except (msgspec.DecodeError, RecursionError):
        return None


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
        return replies.EventParser(
            EventDecoder(), reader.read, notes=reader.notes, kept=reader.find_kept
        )


def build_response(call: Call, url: str, login: dict[str, str]) -> OutboundRequest:
    """Returns the HTTP request of a call to this URL; the headers of ``login`` authenticate it."""
    body, lost = _build_body(call)
    request = post_json(call, url, login, name_media_types(_encode(body)))
    request.left_out = lost
    return request


def _build_body(call: Call) -> tuple[dict[str, Any], frozenset[str]]:
    """Returns the caller's body with our model, our pseudonym of the user and our bound.

    The names of what it lacks come with it. Raises :class:`base.Untranslatable`.
    """
    assert call.native is not None
    given = call.native.fields
    dropped = {name for name in _OPTIONAL & given.keys() if name not in call.fields}
    body = {name: value for name, value in given.items() if name not in dropped}
    lost = name_asked(given, dropped) | drop_extensions(body, call)
    fit_fields(body)
    body["model"] = call.model
    # The account is the operator's: what it stores, all tenants of the operator share.
    body["store"] = False
    body["stream"] = call.stream
    if "service_tier" in body:
        body["service_tier"] = call.fields["service_tier"]
    user = _read(call.fields.get("user"))
    if user is not None:
        body["safety_identifier"] = user
    for name in ("max_tokens", "max_completion_tokens"):
        if (bound := call.fields.get(name)) is not None:
            body["max_output_tokens"] = bound
    return body, lost


def _read(value: Any) -> Any:
    return _decode_text(value) if isinstance(value, msgspec.Raw) else value


def parse_response(body: Body) -> Reply:
    """Parses a whole response; its fields stay raw and pass to the caller."""
    response, mended = decode_answer(_decode_response, body, "The answer is not a response.")
    fields: dict[str, Any] | None = decode_object(mended or body)
    if fields is None:
        raise InvalidReply("The answer is not a response.")
    if bytes(response.error) != b"null" or response.status == "failed":
        raise response.fail()
    known = {"object": response.object, "status": response.status}
    given = {name: text for name, text in known.items() if text is not None}
    if not given or {**_WHOLE, **given} not in (_WHOLE, {**_WHOLE, "status": "incomplete"}):
        raise InvalidReply("The answer is not a finished response.")
    fields |= {name: text for name, text in _WHOLE.items() if known[name] is None}
    notes: set[str] = set()
    named = [item.call_id for item in response.output if item.type in _CALLS]
    if len({*map(str, named)}) < len(named) or not all(item.is_sound for item in response.output):
        fields["output"] = _mend_items(fields["output"], [], notes)
    finish, native = response.finish
    usage = response.count()
    return Reply(
        fields={**fields, "usage": response.usage},
        model=response.model,
        usage=usage,
        finish_reason=finish,
        native_finish_reason=native,
        output_bytes=sum(item.size for item in response.output),
        upstream_id=response.id,
        notes=frozenset(notes),
    )


def _mend_items(raw: msgspec.Raw, known: Iterable[str], notes: set[str]) -> msgspec.Raw:
    """Returns the output as the SDKs read it; ``known`` are ids that its calls have got."""
    given, taken = iter(known), set[str]()
    items = msgspec.json.decode(raw)
    for item in items:
        if item.get("type") in _CALLS and (call_id := next(given, None)) is not None:
            item["call_id"] = call_id
        _mend_item(item, taken, notes)
    return msgspec.Raw(_encode(items))


def _mend_item(item: dict[str, Any], taken: set[str], notes: set[str]) -> str | None:
    """Repairs an item, and returns the id of its call, which no other call has."""
    kind = item.get("type")
    if kind == "message":
        content = item.get("content")
        if isinstance(content, str):
            item["content"] = content = [{"type": "text", "text": content}]
        for part in content or ():
            if part.get("type") == "text":
                part |= {"type": "output_text", "annotations": part.get("annotations") or []}
                notes.add(TEXTS_TYPED)
    if kind not in _CALLS:
        return None
    given_id = item.get("call_id")
    call_id = replies.choose_call_id(given_id if isinstance(given_id, str) else None, taken)
    if call_id != item.get("call_id"):
        item["call_id"] = call_id
        notes.add(replies.CALLS_NAMED)
    if kind == "function_call" and not isinstance(given := item.get("arguments"), str):
        item["arguments"] = "{}" if given is None else _encode(given).decode()
        notes.add(ARGUMENTS_TYPED)
    return call_id


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
        events += [
            {"type": f"response.{kind}", "output_index": index, **members}
            for kind, members in _split_item(item)
        ]
    events.append({"type": f"response.{response['status']}", "response": response})
    reader = ResponseReader()
    chunks = []
    for number, event in enumerate(events):
        data = _encode({**event, "sequence_number": number})
        chunks += [chunk for chunk in reader.read(data) if not chunk.is_done]
    return chunks


def _split_item(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the events of an item: some callers read the pieces of texts and arguments alone."""
    begun, place = {**item, "status": "in_progress"}, {"item_id": item.get("id")}
    parts: list[tuple[str, dict[str, Any]]] = []
    if item.get("type") == "message" and isinstance(item.get("content"), list):
        begun["content"] = []
        for number, part in enumerate(item["content"]):
            here = {**place, "content_index": number}
            text = part.get("text") if part.get("type") == "output_text" else None
            empty = part if text is None else {**part, "text": ""}
            parts.append(("content_part.added", {**here, "part": empty}))
            if text is not None:
                parts.append(("output_text.delta", {**here, "delta": text, "logprobs": []}))
                parts.append(("output_text.done", {**here, "text": text, "logprobs": []}))
            parts.append(("content_part.done", {**here, "part": part}))
    elif item.get("type") == "function_call" and isinstance(text := item.get("arguments"), str):
        begun["arguments"] = ""
        parts = [
            ("function_call_arguments.delta", {**place, "delta": text}),
            ("function_call_arguments.done",
             {**place, "name": item.get("name"), "arguments": text}),
        ]  # fmt: skip
    yield "output_item.added", {"item": begun}
    yield from parts
    yield "output_item.done", {"item": item}


class ResponseReader:
    """Reads the events of one stream, and passes them.

    The events that begin and end a response have ``fields``, because the gateway changes them; the
    others are ``data``. Those that begin it are held back until the next one: it may be an error,
    after which another provider can answer.
    """

    __slots__ = (
        "_calls", "_done", "_has_begun", "_id", "_items", "_kept", "_model", "_numbers",
        "_opening", "_sizes", "_taken", "notes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._has_begun = False
        self.notes: set[str] = set()
        # The ids of the calls, by the number of their item.
        self._calls: dict[int, str] = {}
        self._taken: set[str] = set()
        self._opening: list[Chunk] = []
        self._id: str | None = None
        self._model: str | None = None
        # The items of the output that have begun, and the number of the latest one by the index
        # that the server gave it.
        self._items = 0
        self._numbers: dict[int, int] = {}
        # The size of the pieces of each item, and what of its output has counted, by its number.
        self._sizes: dict[int, tuple[int, int]] = {}
        # The items that are done: some servers do not repeat them at the end.
        self._done: list[msgspec.Raw] = []
        self._kept = 0

    def read(self, data: bytes) -> Iterator[Chunk]:
        if data == b"[DONE]":
            raise InvalidStream("The stream ended without its end mark.")
        event, mended = decode_lenient_event(_decode_event, data)
        data = mended or data
        if event.type == "error" or not (event.type or is_null(event.error)):
            raise parse_error(data)
        match event.type:
            case "response.failed" if event.response is not None:
                raise event.response.fail()
            case kind if kind in _SILENT:
                return
            case kind if kind in _OPENING:
                self._open(event, data)
                return
            case kind if not self._has_begun:
                if not kind.startswith("response."):
                    raise InvalidStream("The stream does not begin with a response.")
                self.notes.add(NO_START)
                self._open(_Event("response.created", event.response or _Response()), _BEGUN)
                yield from self.read(data)
                return
            case "response.output_item.added":
                self._numbers[event.output_index] = self._items
                self._items += 1
                data = self._number(event, self._mend(event, data))
            case kind if kind.startswith("response.") and kind not in _ENDS:
                if event.output_index in self._numbers:
                    data = self._number(event, self._mend(event, data))
                elif event.output_index or self._items:
                    raise InvalidStream("An event names an item that has not begun.")
                self._kept += len(event.item)
                if kind == "response.output_item.done" and event.item and self._kept <= _MOST_KEPT:
                    # The event around it is freed.
                    self._done.append(event.item.copy())
        yield from self._opening
        self._opening.clear()
        if event.type not in _ENDS:
            yield self._pass(event, data, self._measure(event))
            return
        yield self._end(event, data)
        yield replies.build_end_mark()

    def _measure(self, event: _Event) -> int:
        """Returns what an event adds to the size of its item, which repeats its pieces when whole.

        Some servers send whole items and no pieces.
        """
        number, item = self._numbers.get(event.output_index, 0), _read_item(event.item)
        pieces, before = self._sizes.get(number, (0, 0))
        if isinstance(event.delta, str):
            pieces += len(event.delta.encode())
        size = max(pieces, before, 0 if item is None else item.size)
        self._sizes[number] = pieces, size
        return size - before

    def find_kept(self) -> int:
        """Returns the bytes of the items that are kept for the end."""
        return min(self._kept, _MOST_KEPT)

    def _number(self, event: _Event, data: bytes) -> bytes:
        """Returns an event of an item with the number by which the SDKs find it."""
        number = self._numbers[event.output_index]
        if number == event.output_index and b'"output_index"' in data:
            return data
        return _encode({**(decode_object(data) or {}), "output_index": number})

    def _mend(self, event: _Event, data: bytes) -> bytes:
        """Returns an event whose item the SDKs can read; a call has one id in all its events."""
        if (item := _read_item(event.item)) is None:
            event.item = msgspec.Raw()
            return data
        number, is_call = self._numbers[event.output_index], item.type in _CALLS
        known = self._calls.get(number) if is_call else None
        is_named = item.call_id == known if known else str(item.call_id) not in self._taken
        if item.is_sound and (is_named or not is_call):
            if is_call:
                self._calls[number] = item.call_id
                self._taken.add(item.call_id)
            return data
        members = msgspec.json.decode(data)
        found = members["item"]
        if event.type == "response.output_item.added" and not isinstance(item.arguments, str):
            found["arguments"] = ""  # the pieces follow
        if known is not None:
            found["call_id"] = known
        taken = self._taken if known is None else set()
        if (call_id := _mend_item(found, taken, self.notes)) is not None:
            self._calls[number] = call_id
        event.item = msgspec.Raw(_encode(found))
        return _encode(members)

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
        fields = decode_object(data) or {}
        if not response.output and self._done:
            whole = decode_object(bytes(fields["response"])) or {}
            fields["response"] = msgspec.Raw(_encode({**whole, "output": self._done}))
            response.output = _decode_items(_encode(self._done))
        named = [item.call_id for item in response.output if item.type in _CALLS]
        known = [*self._calls.values()]
        if named != known or not all(item.is_sound for item in response.output):
            whole = decode_object(bytes(fields["response"])) or {}
            if "output" in whole:
                whole["output"] = _mend_items(whole["output"], known, self.notes)
                fields["response"] = msgspec.Raw(_encode(whole))
        finish, native = response.finish
        usage = response.count()
        self._id, self._model = response.id or self._id, response.model or self._model
        size = sum(item.size for item in response.output)
        told = sum(counted for _, counted in self._sizes.values())
        return self._chunk(
            fields={**fields, "usage": response.usage},
            usage=usage,
            output_bytes=max(size - told, 0),
            finish_reason=finish,
            native_finish_reason=native,
        )

    def _pass(self, event: _Event, data: bytes, size: int) -> Chunk:
        return self._chunk(
            fields={}, output_bytes=size, data=replies.encode_named_event(event.type, data)
        )

    def _chunk(self, **members: Any) -> Chunk:
        return Chunk(has_choices=True, model=self._model, upstream_id=self._id, **members)
