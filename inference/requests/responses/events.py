"""Converts streams of chat to the events of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from catalog.dialects.base import InvalidStream, decode_object
from catalog.dialects.shared.sse import EventDecoder, EventTooLarge
from inference.requests.chat_replies import (
    ChatError,
    ChatMessage,
    ChatReply,
    ChatUsage,
    ReplyChoice,
    ReplyReasoning,
    ReplyToolCall,
    decode_chat,
    describe_failure,
    signature_detail,
)
from inference.requests.responses.envelope import (
    DONE,
    Envelope,
    find_ending,
    render_failure,
    render_usage,
)
from inference.requests.responses.growing import (
    EventLog,
    GrowingCall,
    GrowingMessage,
    GrowingReasoning,
)
from inference.requests.responses.output import (
    Names,
    call_prefix,
    find_tool,
    picture_item,
    read_annotations,
    read_logprobs,
    read_picture,
)
from inference.requests.responses.tools import CallerTool

# The gateway renders these events itself; no dialect accepts events of nearly this size.
_EVENT_BYTES: Final = 67_108_864
# The last events repeat the whole output, so it is kept: far above the output of any model.
_HELD_BYTES: Final = 33_554_432
_encode = msgspec.json.Encoder().encode


def _measure(members: dict[str, Any]) -> int:
    """Returns about the size of an object in bytes."""
    return len(_encode(members))


class ResponseEvents:
    """Converts the events of one chat stream to those of a response."""

    __slots__ = (
        "_calls", "_choice", "_decoder", "_echo", "_envelope", "_has_ended", "_held", "_incomplete",
        "_last_call", "_log", "_names", "_open", "_tools",
    )  # fmt: skip

    def __init__(self, echo: Mapping[str, Any], tools: Mapping[str, CallerTool]) -> None:
        self._echo = echo
        self._tools = tools
        self._decoder = EventDecoder(limit=_EVENT_BYTES)
        self._log = EventLog()
        self._envelope: Envelope | None = None
        self._names = Names("")
        # The text or reasoning that grows; the calls by their number in chat, the last one of them,
        # and those that were incomplete when the next one began.
        self._open: GrowingMessage | GrowingReasoning | None = None
        self._calls: dict[int, GrowingCall] = {}
        self._last_call: GrowingCall | None = None
        self._incomplete: list[GrowingCall] = []
        self._choice = ReplyChoice()
        self._held = 0
        self._has_ended = False

    def feed(self, data: bytes) -> bytes:
        """Returns the events that these bytes complete; raises :class:`InvalidStream`.

        The bytes may end in the middle of an event.
        """
        done = b""
        try:
            for event in self._decoder.feed(data):
                if event == b"[DONE]":
                    done = DONE
                else:
                    self._read(decode_chat(event))
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        except (msgspec.DecodeError, RecursionError):
            raise InvalidStream("A choice of the stream is malformed.") from None
        return self._log.take() + done

    def _read(self, reply: ChatReply) -> None:
        """Converts one event of the chat stream."""
        if self._has_ended:
            return
        if self._envelope is None:
            self._begin(reply)
        if reply.error is not None:
            self._fail(reply, reply.error)
            return
        for choice in reply.choices:
            if choice.index == 0:
                self._add_choice(choice)
        if reply.usage is not None:
            self._end(reply, reply.usage)

    def _begin(self, reply: ChatReply) -> None:
        self._envelope = Envelope.of(reply, self._echo)
        self._names = Names(reply.id)
        response = self._envelope.render("in_progress", [])
        self._log.write("response.created", response=response)
        self._log.write("response.in_progress", response=response)

    def _add_choice(self, choice: ReplyChoice) -> None:
        delta = choice.delta or ChatMessage()
        for detail in delta.details:
            self._add_reasoning(detail)
        if delta.text:
            logprobs = read_logprobs(choice.logprobs)
            self._hold(len(delta.text) + sum(map(_measure, logprobs)))
            self._open_message().add_text(delta.text, logprobs)
        if isinstance(delta.refusal, str) and delta.refusal:
            self._hold(len(delta.refusal))
            self._open_message().add_refusal(delta.refusal)
        for annotation in read_annotations(delta.annotations):
            self._hold(_measure(annotation))
            self._open_message().annotate(annotation)
        for image in delta.images if isinstance(delta.images, list) else ():
            self._add_picture(image)
        for call in delta.tool_calls or ():
            self._add_call(call, call.index or 0)
        if choice.finish_reason is not None:
            self._choice = choice

    def _add_reasoning(self, detail: ReplyReasoning) -> None:
        texts = (detail.text, detail.summary, detail.data, detail.signature)
        self._hold(sum(map(len, filter(None, texts))))
        if not isinstance(self._open, GrowingReasoning):
            self._close_open()
            self._open = GrowingReasoning(self._log, self._names.item("rs"))
        self._open.add(detail)

    def _open_message(self) -> GrowingMessage:
        if not isinstance(self._open, GrowingMessage):
            self._close_open()
            self._open = GrowingMessage(self._log, self._names.item("msg"))
        return self._open

    def _add_picture(self, image: Any) -> None:
        if (data := read_picture(image)) is None:
            return
        self._hold(len(data))
        self._close_open()
        item_id = self._names.item("ig")
        index = self._log.begin(picture_item(item_id, None, "in_progress"))
        self._log.end(index, picture_item(item_id, data, "completed"))

    def _add_call(self, call: ReplyToolCall, number: int) -> None:
        """Adds a part of a tool call; chat may alternate between calls."""
        growing = self._calls.get(number)
        if growing is None:
            growing = self._begin_call(call, number)
        if (arguments := call.arguments) and not growing.is_closed:
            self._hold(len(arguments))
            growing.add(arguments)

    def _begin_call(self, call: ReplyToolCall, number: int) -> GrowingCall:
        self._hold(256)
        self._close_open()
        if (last := self._last_call) is not None:
            # Its caller can run it while the model writes the next one. The arguments are decoded
            # only once, because decoding them with every piece takes quadratic time.
            if decode_object(last.arguments.encode()) is not None:
                last.close("completed")
            else:
                self._incomplete.append(last)
        call_id = call.id or ""
        if call.signature is not None:
            self._add_reasoning(signature_detail(call.signature, call_id))
            self._close_open()
        tool = find_tool(call, self._tools)
        item_id = self._names.item(call_prefix(tool))
        growing = GrowingCall(self._log, tool, item_id, call_id)
        self._calls[number] = self._last_call = growing
        return growing

    def _close_open(self, status: str = "completed") -> None:
        if self._open is not None:
            self._open.close(status)
            self._open = None

    def _close_all(self, status: str) -> None:
        self._close_open(status)
        for call in (*self._incomplete, *((self._last_call,) if self._last_call else ())):
            call.close(status)

    def _hold(self, size: int) -> None:
        """Counts output that is kept; raises :class:`InvalidStream` when it is too much."""
        self._held += size
        if self._held > _HELD_BYTES:
            raise InvalidStream("The answer is too large for this interface.")

    def _end(self, reply: ChatReply, usage: ChatUsage) -> None:
        """Ends the response with its usage, which comes once and after all output."""
        if self._choice.finish_reason == "error":
            failure = describe_failure(self._choice).body()
            self._fail(reply, msgspec.convert(failure["error"], ChatError), usage)
            return
        status, reason = find_ending(self._choice)
        self._close_all(status)
        self._finish(status, reply, usage=render_usage(usage), incomplete=reason)

    def _fail(self, reply: ChatReply, error: ChatError, usage: ChatUsage | None = None) -> None:
        """Ends the response with an error, even inside an item."""
        self._close_all("incomplete")
        self._finish(
            "failed",
            reply,
            error=render_failure(error),
            usage=None if usage is None else render_usage(usage),
        )

    def _finish(self, status: str, reply: ChatReply, **members: Any) -> None:
        assert self._envelope is not None
        self._has_ended = True
        response = self._envelope.render(
            status,
            [*self._log.items],
            service_tier=reply.service_tier,
            metadata=reply.openrouter_metadata,
            **members,
        )
        self._log.write(f"response.{status}", response=response)
