"""Relays requests, replies and events of Anthropic's Messages in the caller's own words.

What the gateway must know of an answer is read from it: usage, finish reason, model and size. The
rest passes, with members that no release of this gateway has heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from catalog.dialects.anthropic.chat import build_headers, name_finish, operations
from catalog.dialects.anthropic.fitting import fit_fields
from catalog.dialects.anthropic.wire import (
    ATTRIBUTION,
    BETA,
    Block,
    BlockDelta,
    MessageUsage,
    StreamEvent,
    WireMessage,
    decode_event,
    decode_message,
    split_betas,
)
from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    NativeBody,
    Operation,
    Reply,
    StreamParser,
    decode_answer,
    decode_lenient_event,
    decode_object,
    parse_error,
)
from catalog.dialects.shared import messages, replies
from catalog.dialects.shared.raw import (
    ESCAPE,
    decode_list,
    first_byte,
    is_null,
    read_member,
    read_text,
    write_arguments,
)
from catalog.dialects.shared.sse import EventDecoder
from config.credentials import Secret
from config.egress import OutboundRequest

# The headers that choose the format. Others choose an account of the owner of the credential.
_FORMAT_HEADERS: Final = frozenset(("anthropic-version", BETA))
# The member of an event that has a piece of a call's arguments.
_PIECES: Final = "partial_json"
NO_START: Final = "The stream does not begin with its message; it got an empty one."
NO_BLOCK: Final = "The stream has pieces of a content block that has not begun; it was begun."
# The beginning of a stream without one, and the blocks that pieces of them begin.
_BEGUN: Final = StreamEvent(type="message_start", message=WireMessage())
_EMPTY: Final[Mapping[str, Any]] = {
    "type": "message", "role": "assistant", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0},
}  # fmt: skip
_PARTS: Final = frozenset(("content_block_start", "content_block_delta"))
_BLOCKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "text_delta": {"type": "text", "text": ""},
    "thinking_delta": {"type": "thinking", "thinking": "", "signature": ""},
}
# The end of a stream without a reason.
_ENDED: Final = StreamEvent(type="message_delta", delta=BlockDelta(stop_reason="end_turn"))
# Blocks that end no cached prefix.
_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking"))
_NO_MARKS: Final = (None, msgspec.Raw(b"null"))
_CACHED_FIELDS: Final = ("system", "messages", "tools", "cache_control")
_encode = msgspec.json.Encoder().encode
_decode_count = msgspec.json.Decoder(int).decode


@dataclass(frozen=True, slots=True)
class NativeMessages:
    """The dialect of an upstream to which requests of Messages pass, and from which answers do."""

    host: Callable[[str | None, Secret], str]
    build: Callable[[Call], OutboundRequest]
    read_frames: Callable[[], replies.Decoder[bytes]] = EventDecoder
    names_deployments: bool = False

    @property
    def operations(self) -> frozenset[Operation]:
        return operations

    def parse_reply(self, operation: Operation, body: Body) -> Reply:
        return parse_native_reply(body)

    def stream_parser(self, operation: Operation, choices: int = 1) -> StreamParser:
        reader = NativeReader()
        return replies.EventParser(self.read_frames(), reader.read, reader.end, reader.notes)


def build_native_request(call: Call) -> OutboundRequest:
    assert call.native is not None
    return OutboundRequest(
        method="POST",
        url=f"{call.base_url}/messages",
        headers=build_native_headers(call, call.secret),
        body=_encode(build_native_body(call, call.native)),
    )


def build_native_headers(call: Call, key: Secret) -> dict[str, str]:
    """Returns the headers of a call with those of the caller that belong to the format.

    The operator's credential asks for the betas alone that cost their tokens and nothing else.
    """
    native = call.native
    assert native is not None
    own = build_headers(call, key)
    if call.is_byok:
        return own | dict(native.headers)
    given = {name: value for name, value in native.headers if name in _FORMAT_HEADERS}
    if native.foreign and BETA in given:
        kept = [beta for beta in split_betas(given.pop(BETA)) if beta not in native.foreign]
        given |= {BETA: ",".join(kept)} if kept else {}
    return own | given


def build_native_body(call: Call, native: NativeBody) -> dict[str, Any]:
    """Returns the caller's body with our model, our pseudonym of the user and our bound."""
    body = {**fit_fields(native.fields), "model": call.model}
    user = call.fields.get("user")
    if user is not None:
        body["metadata"] = {"user_id": user}
    else:
        body.pop("metadata", None)
    bound = _read_bound(call.fields)
    if bound is not None and bound < _decode_count(body.get("max_tokens", b"100000000")):
        body["max_tokens"] = bound
    if not call.keeps_lifetimes:
        return _unmark(body, "ttl")
    return body


def _read_bound(fields: Mapping[str, Any]) -> int | None:
    for name in ("max_tokens", "max_completion_tokens"):
        value = fields.get(name)
        if isinstance(value, msgspec.Raw):
            value = msgspec.json.decode(value)
        if isinstance(value, int):
            return value
    return None


def drop_attribution(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a body without Claude Code's line for Anthropic, which others read as a prompt."""
    raw = body.get("system")
    if not isinstance(raw, msgspec.Raw) or ATTRIBUTION.encode() not in bytes(raw)[:256]:
        return body
    system = msgspec.json.decode(raw)
    if isinstance(system, list) and system and is_attribution(system[0]):
        return {**body, "system": system[1:]}
    return body


def is_attribution(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(ATTRIBUTION)


def mark_last_block(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a body whose own mark ends a cached prefix at its last block that can have one.

    Bedrock and Vertex cache marked blocks alone.
    """
    mark = body.get("cache_control")
    marked = {name: value for name, value in body.items() if name != "cache_control"}
    turns = [] if mark in _NO_MARKS else decode_list(body["messages"]) or []
    for turn in reversed(turns):
        content = turn.get("content")
        is_text = first_byte(content) == b'"'
        blocks = [{"type": "text", "text": content}] if is_text else decode_list(content) or []
        for block in reversed(blocks):
            if read_member(block, "type") not in _THOUGHTS:
                block.setdefault("cache_control", mark)
                turn["content"] = blocks
                return {**marked, "messages": turns}
    return marked


def drop_scopes(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a body whose cached prefixes name no scope: it belongs to a beta of Anthropic's."""
    return _unmark(body, "scope")


def _unmark(body: dict[str, Any], member: str) -> dict[str, Any]:
    """Returns a body whose marks of cached prefixes lack a member."""
    written = f'"{member}"'.encode()
    changed = {
        name: _without_member(msgspec.json.decode(raw), member)
        for name in _CACHED_FIELDS
        if isinstance(raw := body.get(name), msgspec.Raw)
        and (written in bytes(raw) or ESCAPE in bytes(raw))
    }
    return {**body, **changed} if changed else body


def _without_member(value: Any, member: str) -> Any:
    if isinstance(value, list):
        return [_without_member(item, member) for item in value]
    if not isinstance(value, dict):
        return value
    is_mark = value.get("type") == "ephemeral"
    return {
        name: _without_member(item, member)
        for name, item in value.items()
        if not (is_mark and name == member)
    }


def parse_native_reply(body: Body) -> Reply:
    """Parses a whole message; its fields stay raw and pass to the caller."""
    message, mended = decode_answer(decode_message, body, "The answer is not a message.")
    fields = decode_object(mended or body)
    if fields is None:
        raise InvalidReply("The answer is not a message.")
    if message.type == "error" or not is_null(message.error):
        raise parse_error(body)
    if message.type != "message":
        raise InvalidReply("The answer is not a message.")
    calls = [block for block in message.content if block.type == "tool_use"]
    notes = set()
    if len({block.id for block in calls if block.has_object}) < len(calls) or not all(
        block.id for block in calls
    ):
        fields["content"] = _mend_calls(fields["content"])
        has_objects = all(block.has_object for block in calls)
        notes.add(replies.CALLS_NAMED if has_objects else replies.CALLS_WRITTEN)
    stop = message.stop_reason or "end_turn"
    if stop == "end_turn" and calls:
        stop = "tool_use"
    if stop != message.stop_reason:
        fields["stop_reason"] = msgspec.Raw(_encode(stop))
    return Reply(
        fields=fields,
        model=message.model,
        usage=None if message.usage is None else message.usage.add_up(MessageUsage()),
        finish_reason=name_finish(stop).reason,
        native_finish_reason=stop,
        output_bytes=_measure_blocks(message.content),
        upstream_id=message.id,
        notes=frozenset(notes),
    )


def _mend_calls(raw: msgspec.Raw) -> msgspec.Raw:
    """Returns content in which each call has an id of its own, and an object as its input."""
    taken: set[str] = set()
    content = msgspec.json.decode(raw)
    for block in content:
        if block.get("type") == "tool_use":
            _mend_call(block, taken)
    return msgspec.Raw(_encode(content))


def _mend_call(block: dict[str, Any], taken: set[str]) -> None:
    block["id"] = replies.choose_call_id(block.get("id"), taken)
    given = block.get("input")
    if not isinstance(given, dict):
        text = given if isinstance(given, str) else _encode(given).decode()
        block["input"] = messages.read_arguments(text)


def join_message(chunks: Iterable[Chunk]) -> Reply:
    """Returns the message that the events of a stream add up to; raises :class:`InvalidReply`."""
    message: dict[str, Any] = {}
    blocks: list[dict[str, Any]] = []
    usage: dict[str, Any] = {}
    for chunk in chunks:
        data = _encode(chunk.fields) if chunk.fields else chunk.data.partition(b"data: ")[2]
        event = msgspec.json.decode(data) if data else {}
        match event.get("type"):
            case "message_start":
                message = event["message"]
                usage |= message.get("usage") or {}
            case "content_block_start":
                blocks.append(event.get("content_block") or {})
            case "content_block_delta":
                _extend_block(blocks[event.get("index", 0)], event.get("delta") or {})
            case "message_delta":
                message |= event.get("delta") or {}
                latest = event.get("usage") or {}
                # Some servers repeat the counts of the beginning as zero.
                usage |= {
                    name: count for name, count in latest.items() if count or not usage.get(name)
                }
    for block in blocks:
        if (pieces := block.pop(_PIECES, None)) is not None:
            block["input"] = decode_object(pieces.encode()) or {}
    return parse_native_reply(_encode({**message, "content": blocks, "usage": usage or None}))


def _extend_block(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("text", "thinking", "signature"):
        if isinstance(delta.get(name), str):
            block[name] = (block.get(name) or "") + delta[name]
    if isinstance(delta.get(_PIECES), str):
        block[_PIECES] = block.get(_PIECES, "") + delta[_PIECES]
    if (citation := delta.get("citation")) is not None:
        block["citations"] = [*(block.get("citations") or ()), citation]


def split_message(reply: Reply) -> list[Chunk]:
    """Returns the events of a whole message."""
    message = msgspec.json.decode(_encode(reply.fields))
    content, usage = message.get("content") or [], message.get("usage")
    ends = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(content):
        member = {"text": "text", "thinking": "thinking", "tool_use": "input"}.get(block["type"])
        begun, kind = dict(block), {"input": "input_json"}.get(member or "", member)
        deltas = []
        if member is not None:
            # Some servers leave out what is empty, such as a thought that is not shown.
            empty: Any = {} if member == "input" else ""
            value, begun[member] = begun.get(member, empty), empty
            name = _PIECES if member == "input" else member
            text = _encode(value).decode() if member == "input" else value
            deltas.append({"type": f"{kind}_delta", name: text})
        if signature := begun.pop("signature", None):
            deltas.append({"type": "signature_delta", "signature": signature})
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        for delta in deltas:
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": ends, "usage": usage or {}})
    reader = NativeReader()
    return [chunk for event in events for chunk in reader.read(_encode(event))]


def _measure_block(block: Block) -> int:
    summary = read_text(block.content) if block.type == "compaction" else None
    texts = (block.text, block.thinking, write_arguments(block.input), summary or "")
    return sum(len(text.encode()) for text in texts)


def _measure_blocks(blocks: Iterable[Block]) -> int:
    return sum(map(_measure_block, blocks))


def _measure_delta(delta: BlockDelta) -> int:
    summary = read_text(delta.content) or ""
    texts = (delta.text, delta.thinking, delta.partial_json, summary)
    return sum(len(text.encode()) for text in texts)


class NativeReader:
    """Reads the events of one stream, and passes them.

    The events that begin and end a message have ``fields``, because the gateway changes them; the
    others are ``data``.
    """

    __slots__ = (
        "_blocks", "_calls", "_has_begun", "_id", "_is_whole", "_model", "_numbers", "_searches",
        "_usage", "notes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._has_begun = False
        self.notes: set[str] = set()
        # The ids of the calls of the caller's tools that have begun.
        self._calls: set[str] = set()
        # The number of each content block that has begun, by the index that the server gave it.
        self._numbers: dict[int, int] = {}
        # The reason of the end has come, so that only the end mark is left.
        self._is_whole = False
        self._id: str | None = None
        self._model: str | None = None
        self._usage = MessageUsage()
        # The content blocks that have begun, and the searches among them that succeeded.
        self._blocks = self._searches = 0

    def read(self, data: bytes) -> Iterator[Chunk]:
        event, mended = decode_lenient_event(decode_event, data)
        data = mended or data
        if event.is_error:
            raise parse_error(data)
        if event.type in _PARTS:
            yield from self._begin_missing(event)
        match event.type:
            case "":
                return
            case "message_start":
                yield self._begin(event, data)
            case _ if not self._has_begun:
                if event.type != "ping":
                    raise InvalidStream("The stream does not begin with a message.")
            case "content_block_start" if event.content_block is not None:
                data = self._begin_block(event, event.content_block, data)
                chunk = self._pass(event, data, _measure_block(event.content_block))
                if event.content_block.is_search_result:
                    self._searches += 1
                    chunk.usage = self._usage.count_searches(self._searches)
                yield chunk
            case "content_block_delta" | "content_block_stop":
                if event.index not in self._numbers:
                    raise InvalidStream("An event names a content block that has not begun.")
                size = 0 if event.delta is None else _measure_delta(event.delta)
                yield self._pass(event, self._number(event, data), size)
            case "message_delta":
                yield self._end(event, decode_object(data) or {})
            case "message_stop":
                if not self._is_whole:
                    yield self._end(_ENDED, {"type": "message_delta"})
                yield replies.build_end_mark()
            case _:
                yield self._pass(event, data, 0)

    def end(self) -> list[Chunk]:
        """Returns what stands for a missing end mark, or nothing when the stream is cut off."""
        return [replies.build_end_mark(is_unmarked=True)] if self._is_whole else []

    def _begin_missing(self, event: StreamEvent) -> Iterator[Chunk]:
        """Yields what an event of a block needs before it, and its server has left out."""
        if not self._has_begun:
            self.notes.add(NO_START)
            yield self._begin(_BEGUN, _encode({"type": "message_start", "message": _EMPTY}))
        kind = "" if event.delta is None else event.delta.type
        if event.index not in self._numbers and (block := _BLOCKS.get(kind)) is not None:
            self.notes.add(NO_BLOCK)
            begun = {"type": "content_block_start", "index": event.index, "content_block": block}
            yield from self.read(_encode(begun))

    def _begin_block(self, event: StreamEvent, block: Block, data: bytes) -> bytes:
        """Returns the event that begins a content block, whose call has an id of its own."""
        self._numbers[event.index] = self._blocks
        self._blocks += 1
        if block.type == "tool_use":
            if not block.id or block.id in self._calls or not block.has_object:
                members = msgspec.json.decode(data)
                _mend_call(members["content_block"], self._calls)
                self.notes.add(replies.CALLS_NAMED if block.has_object else replies.CALLS_WRITTEN)
                data = _encode(members)
            self._calls.add(block.id)
        return self._number(event, data)

    def _number(self, event: StreamEvent, data: bytes) -> bytes:
        """Returns an event of a content block with the number by which the SDKs find it."""
        number = self._numbers[event.index]
        if number == event.index:
            return data
        return _encode({**msgspec.json.decode(data), "index": number})

    def _begin(self, event: StreamEvent, data: bytes) -> Chunk:
        if event.message is None or self._has_begun:
            raise InvalidStream("The stream does not begin with one message.")
        self._has_begun = True
        self._id, self._model = event.message.id, event.message.model
        self._usage = event.message.usage or self._usage
        return self._chunk(
            fields=decode_object(data) or {},
            usage=self._usage.prompt_usage,
            output_bytes=_measure_blocks(event.message.content),
        )

    def _end(self, event: StreamEvent, fields: dict[str, Any]) -> Chunk:
        given = stop = None if event.delta is None else event.delta.stop_reason
        if self._calls and stop == "end_turn":
            stop = "tool_use"
        if stop != given or "delta" not in fields:
            delta: dict[str, Any] = decode_object(bytes(fields.get("delta", b"{}"))) or {}
            fields["delta"] = msgspec.Raw(
                _encode({"stop_sequence": None, **delta, "stop_reason": stop})
            )
        usage = None if event.usage is None else event.usage.add_up(self._usage)
        self._is_whole = self._is_whole or stop is not None
        return self._chunk(
            fields=fields,
            usage=usage,
            finish_reason=None if stop is None else name_finish(stop).reason,
            native_finish_reason=stop,
        )

    def _pass(self, event: StreamEvent, data: bytes, size: int) -> Chunk:
        passed = replies.encode_named_event(event.type, data)
        return self._chunk(fields={}, output_bytes=size, data=passed)

    def _chunk(self, **members: Any) -> Chunk:
        return Chunk(has_choices=True, model=self._model, upstream_id=self._id, **members)
