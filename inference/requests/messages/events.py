"""Converts streams of chat to the events of Anthropic's Messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from catalog.dialects.base import InvalidStream, decode_object
from inference.requests.chat_replies import (
    ChatError,
    ChatMessage,
    ChatReply,
    ChatUsage,
    ReplyChoice,
    ReplyEvents,
    ReplyReasoning,
    ReplyToolCall,
    describe_failure,
    drop_empty,
    encode_named_event,
    signature_detail,
)
from inference.requests.messages.reasoning import encode_opaque
from inference.requests.messages.reply import (
    find_stop_reason,
    render_chat_error,
    render_citation,
    render_message,
    render_redacted,
    render_usage,
    start_tool_use,
)

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'

# The waiting deltas of a stream may have this size: far above the output of any model.
_HELD_BYTES: Final = 33_554_432
_BLOCK_BYTES: Final = 1_024
_DELTA_BYTES: Final = 256
_NO_USAGE: Final = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}
_encode = msgspec.json.Encoder().encode


def _measure(members: dict[str, Any]) -> int:
    """Returns about the size of an object in bytes."""
    return len(_encode(members))


class _Block:
    """A content block of a stream, and the deltas that wait until it may begin."""

    __slots__ = (
        "_is_checked", "arguments", "index", "is_ended", "key", "start", "unsigned", "waiting",
    )  # fmt: skip

    def __init__(self, index: int, key: tuple[str, Any], start: dict[str, Any]) -> None:
        self.index = index
        self.key = key
        self.start = start
        self.waiting: list[dict[str, Any]] = []
        # All pieces of a tool call's arguments, because only the whole shows if it is complete.
        self.arguments: list[str] = []
        self.is_ended = False
        # The last piece of reasoning, while no signature has come.
        self.unsigned: ReplyReasoning | None = None
        self._is_checked = False

    def is_complete(self) -> bool:
        """Returns whether the block is complete, now that another block waits behind it.

        The arguments of a call are decoded only once, because decoding them with every piece takes
        quadratic time. A call that is incomplete then stays open until the end of the stream.
        """
        if self.start["type"] != "tool_use":
            return True
        if self._is_checked:
            return False
        self._is_checked = True
        return decode_object("".join(self.arguments).encode()) is not None


class Blocks:
    """Puts text, reasoning and tool calls into blocks; only one block is open at a time.

    Chat may alternate between tool calls, so the deltas of later blocks wait until the earlier
    blocks have ended.
    """

    __slots__ = ("_calls", "_count", "_out", "_queue", "held")

    def __init__(self, out: list[bytes]) -> None:
        self._out = out
        self._queue: deque[_Block] = deque()
        self._calls: dict[int, _Block] = {}
        self._count = 0
        # The size of what has waited so far, and of the arguments of all calls.
        self.held = 0

    def add_reasoning(self, detail: ReplyReasoning) -> None:
        """Adds a part of the reasoning; a signature ends its block."""
        if detail.data is not None:
            self._begin(("data", None), render_redacted(detail))
            return
        text = detail.text or detail.summary
        key = ("thinking", detail.index)
        block = self._open_block(key) if text else self._open_thinking_block()
        if block is None:
            block = self._begin(key, {"type": "thinking", "thinking": "", "signature": ""})
        if text:
            self._add(block, {"type": "thinking_delta", "thinking": text})
        if detail.text is not None:
            block.unsigned = detail
        if detail.signature is not None:
            delta = {"type": "signature_delta", "signature": encode_opaque(detail)}
            self._add(block, delta)
            block.is_ended = True

    def add_text(self, text: str) -> None:
        key = ("text", None)
        block = self._open_block(key) or self._begin(key, {"type": "text", "text": ""})
        self._add(block, {"type": "text_delta", "text": text})

    def add_citation(self, citation: dict[str, Any]) -> None:
        key = ("text", None)
        block = self._open_block(key) or self._begin(key, {"type": "text", "text": ""})
        self._add(block, {"type": "citations_delta", "citation": citation})

    def add_call(self, call: ReplyToolCall, number: int) -> None:
        """Adds a part of a tool call; the first part of each call begins a block."""
        block = self._calls.get(number)
        if block is None:
            start = {**start_tool_use(call), "input": {}}
            self._hold(_BLOCK_BYTES + _measure(start))
            if call.signature is not None:
                self.add_reasoning(signature_detail(call.signature, start["id"]))
            block = self._begin(("call", number), start)
            self._calls[number] = block
        arguments = call.arguments
        if arguments and not block.is_ended:
            self._hold(len(arguments))
            block.arguments.append(arguments)
            self._add(block, {"type": "input_json_delta", "partial_json": arguments})

    def close_all(self) -> None:
        while self._queue:
            self._close()

    def _open_block(self, key: tuple[str, Any]) -> _Block | None:
        """Returns the last block if it has this key and has not ended."""
        block = self._queue[-1] if self._queue else None
        return None if block is None or block.key != key or block.is_ended else block

    def _open_thinking_block(self) -> _Block | None:
        """Returns the block to which a signature without text belongs."""
        block = self._queue[-1] if self._queue else None
        is_open = block is not None and block.key[0] == "thinking" and not block.is_ended
        return block if is_open else None

    def _begin(self, key: tuple[str, Any], start: dict[str, Any]) -> _Block:
        block = _Block(self._count, key, start)
        self._count += 1
        self._queue.append(block)
        if block is self._queue[0]:
            self._start(block)
        self._advance()
        if block is not self._queue[0]:
            self._hold(_BLOCK_BYTES + len(start.get("data", "")))
        return block

    def _add(self, block: _Block, delta: dict[str, Any]) -> None:
        block.waiting.append(delta)
        if block is self._queue[0]:
            self._flush(block)
        else:
            self._hold(_DELTA_BYTES + _measure(delta))

    def _hold(self, size: int) -> None:
        """Counts deltas that wait; raises :class:`InvalidStream` when they are too many."""
        self.held += size
        if self.held > _HELD_BYTES:
            raise InvalidStream("The tool calls of the stream are too large.")

    def _advance(self) -> None:
        while len(self._queue) > 1 and self._queue[0].is_complete():
            self._close()

    def _close(self) -> None:
        block = self._queue.popleft()
        if block.unsigned is not None and not block.is_ended:
            # Clients leave out a block that has no signature.
            delta = {"type": "signature_delta", "signature": encode_opaque(block.unsigned)}
            self._add_event(block, delta)
        block.is_ended = True
        block.arguments.clear()
        self._out.append(encode_named_event({"type": "content_block_stop", "index": block.index}))
        if self._queue:
            self._start(self._queue[0])

    def _start(self, block: _Block) -> None:
        started = {"type": "content_block_start", "index": block.index}
        self._out.append(encode_named_event({**started, "content_block": block.start}))
        self._flush(block)

    def _flush(self, block: _Block) -> None:
        for delta in block.waiting:
            self._add_event(block, delta)
        block.waiting.clear()

    def _add_event(self, block: _Block, delta: dict[str, Any]) -> None:
        event = {"type": "content_block_delta", "index": block.index, "delta": delta}
        self._out.append(encode_named_event(event))


class MessageEvents:
    """Converts the events of one chat stream to those of a message.

    ``stops`` are the stop sequences of the request.
    """

    __slots__ = (
        "_blocks", "_choice", "_decoder", "_has_failed", "_has_started", "_out",
        "_request_id", "stops",
    )  # fmt: skip

    def __init__(self, request_id: str, stops: Sequence[str] = ()) -> None:
        self._decoder = ReplyEvents()
        self._out: list[bytes] = []
        self._blocks = Blocks(self._out)
        self._choice = ReplyChoice()
        self._has_failed = False
        self._has_started = False
        self._request_id = request_id
        self.stops = stops

    @property
    def held(self) -> int:
        """Returns about how many bytes of the stream were kept so far."""
        return self._blocks.held

    def feed(self, data: bytes) -> bytes:
        """Returns the events that these bytes complete; raises :class:`InvalidStream`.

        The bytes may end in the middle of an event.
        """
        self._decoder.feed(data, self._read)
        events = b"".join(self._out)
        self._out.clear()
        return events

    def _read(self, reply: ChatReply | None) -> None:
        """Converts one event of the chat stream, or its end mark."""
        if reply is None:
            if not self._has_failed:
                self._out.append(encode_named_event({"type": "message_stop"}))
            return
        if reply.error is not None:
            self._fail(reply, reply.error)
            return
        if not self._has_started:
            self._has_started = True
            message = render_message(reply, [], (None, None), _NO_USAGE)
            self._out.append(encode_named_event({"type": "message_start", "message": message}))
        for choice in reply.choices:
            if choice.index == 0:
                self._add_choice(choice)
        if reply.usage is not None:
            self._end(reply, reply.usage)

    def _add_choice(self, choice: ReplyChoice) -> None:
        delta = choice.delta or ChatMessage()
        for detail in delta.details:
            self._blocks.add_reasoning(detail)
        for text in delta.texts:
            self._blocks.add_text(text)
        for source in delta.citations:
            self._decoder.is_annotated = True
            self._blocks.add_citation(render_citation(source))
        for call in delta.tool_calls or ():
            self._blocks.add_call(call, call.index or 0)
        if choice.finish_reason:
            self._choice = choice

    def _end(self, reply: ChatReply, usage: ChatUsage) -> None:
        """Ends the message with its usage, which comes once and after all output."""
        if self._choice.finish_reason == "error":
            failure = describe_failure(self._choice).body()
            self._fail(reply, msgspec.convert(failure["error"], ChatError))
            return
        self._blocks.close_all()
        reason, sequence = find_stop_reason(self._choice, self.stops)
        self._out.append(
            encode_named_event(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": sequence},
                    "usage": render_usage(usage),
                    **drop_empty(openrouter_metadata=reply.openrouter_metadata),
                }
            )
        )

    def _fail(self, reply: ChatReply, error: ChatError) -> None:
        """Ends the stream with an error, even inside a block."""
        self._has_failed = True
        body = render_chat_error(error, self._request_id)
        self._out.append(
            encode_named_event(
                {**body, **drop_empty(openrouter_metadata=reply.openrouter_metadata)}
            )
        )
