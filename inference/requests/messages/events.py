"""Converts streams of chat to the events of Anthropic's Messages."""

from __future__ import annotations

from typing import Final

import msgspec

from catalog.dialects.base import InvalidStream
from catalog.dialects.shared.sse import EventDecoder, EventTooLarge
from inference.requests.chat_replies import (
    ChatError,
    ChatMessage,
    ChatReply,
    ChatUsage,
    ReplyChoice,
    decode_chat,
    describe_failure,
    drop_empty,
)
from inference.requests.messages.blocks import Blocks, encode_message_event
from inference.requests.messages.reply import (
    find_stop_reason,
    render_chat_error,
    render_citation,
    render_message,
    render_usage,
)

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'

# The gateway renders these events itself; no dialect accepts events of nearly this size.
_EVENT_BYTES: Final = 67_108_864
_NO_USAGE: Final = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


class MessageEvents:
    """Converts the events of one chat stream to those of a message."""

    __slots__ = (
        "_blocks", "_choice", "_decoder", "_has_failed", "_has_started", "_out",
        "_request_id",
    )  # fmt: skip

    def __init__(self, request_id: str) -> None:
        self._decoder = EventDecoder(limit=_EVENT_BYTES)
        self._out: list[bytes] = []
        self._blocks = Blocks(self._out)
        self._choice = ReplyChoice()
        self._has_failed = False
        self._has_started = False
        self._request_id = request_id

    def feed(self, data: bytes) -> bytes:
        """Returns the events that these bytes complete; raises :class:`InvalidStream`.

        The bytes may end in the middle of an event.
        """
        try:
            for event in self._decoder.feed(data):
                self._read(event)
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        except (msgspec.DecodeError, RecursionError):
            raise InvalidStream("A choice of the stream is malformed.") from None
        events = b"".join(self._out)
        self._out.clear()
        return events

    def _read(self, event: bytes) -> None:
        """Converts one event of the chat stream."""
        if event == b"[DONE]":
            if not self._has_failed:
                self._out.append(encode_message_event({"type": "message_stop"}))
            return
        reply = decode_chat(event)
        if reply.error is not None:
            self._fail(reply, reply.error)
            return
        if not self._has_started:
            self._has_started = True
            message = render_message(reply, [], (None, None), _NO_USAGE)
            self._out.append(encode_message_event({"type": "message_start", "message": message}))
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
            self._blocks.add_citation(render_citation(source))
        for call in delta.tool_calls or ():
            self._blocks.add_call(call, call.index or 0)
        if choice.finish_reason is not None:
            self._choice = choice

    def _end(self, reply: ChatReply, usage: ChatUsage) -> None:
        """Ends the message with its usage, which comes once and after all output."""
        if self._choice.finish_reason == "error":
            failure = describe_failure(self._choice).body()
            self._fail(reply, msgspec.convert(failure["error"], ChatError))
            return
        self._blocks.close_all()
        reason, sequence = find_stop_reason(self._choice)
        self._out.append(
            encode_message_event(
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
            encode_message_event(
                {**body, **drop_empty(openrouter_metadata=reply.openrouter_metadata)}
            )
        )
