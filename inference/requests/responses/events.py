"""Converts streams of chat to the events of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping
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
    encode_named_event,
    signature_detail,
)
from inference.requests.responses.envelope import (
    DONE,
    Envelope,
    find_ending,
    render_failure,
    render_usage,
)
from inference.requests.responses.output import (
    Names,
    Thoughts,
    call_item,
    call_prefix,
    find_tool,
    is_streamed,
    message_item,
    picture_item,
    read_annotations,
    read_input,
    read_logprobs,
    read_picture,
    reasoning_item,
    refusal_part,
    summary_part,
    text_part,
)
from inference.requests.responses.tools import CallerTool

# The last events repeat the whole output, so it is kept: far above the output of any model.
_HELD_BYTES: Final = 33_554_432
_NO_INDEX: Final = -1
_encode = msgspec.json.Encoder().encode


def _measure(members: dict[str, Any]) -> int:
    """Returns about the size of an object in bytes."""
    return len(_encode(members))


class EventLog:
    """Numbers the events of a stream, and encodes them."""

    __slots__ = ("_number", "_out", "items")

    def __init__(self) -> None:
        self._number = 0
        self._out: list[bytes] = []
        # The items that ended or were broken off, by their index; ``None`` while one is open.
        self.items: list[dict[str, Any] | None] = []

    def write(self, kind: str, **members: Any) -> None:
        event = {"type": kind, **members, "sequence_number": self._number}
        self._number += 1
        self._out.append(encode_named_event(event))

    def begin(self, item: dict[str, Any]) -> int:
        """Writes the beginning of an item; returns its index."""
        index = len(self.items)
        self.items.append(None)
        self.write("response.output_item.added", output_index=index, item=item)
        return index

    def end(self, index: int, item: dict[str, Any]) -> None:
        self.items[index] = item
        self.write("response.output_item.done", output_index=index, item=item)

    def finish(self) -> None:
        """Writes the end mark."""
        self._out.append(DONE)

    def take(self) -> bytes:
        """Returns the bytes since the last time."""
        data = b"".join(self._out)
        self._out.clear()
        return data


class GrowingReasoning:
    """Reasoning, whose texts are the parts of its summary."""

    __slots__ = ("_id", "_index", "_log", "_part", "_pieces", "_thoughts")

    def __init__(self, log: EventLog, item_id: str) -> None:
        self._log = log
        self._id = item_id
        self._thoughts = Thoughts()
        self._pieces: list[str] = []
        self._part = -1
        self._index = log.begin(reasoning_item(item_id, (), None))

    def add(self, detail: ReplyReasoning) -> None:
        is_continued = self._thoughts.add(detail)
        text = detail.text or detail.summary
        if not text:
            return
        if not is_continued or not self._pieces:
            self._close_part()
            self._part += 1
            self._write("response.reasoning_summary_part.added", part=summary_part(""))
        self._pieces.append(text)
        self._write("response.reasoning_summary_text.delta", delta=text)

    def close(self, status: str) -> None:
        self._close_part()
        item = reasoning_item(self._id, self._thoughts.texts, self._thoughts.seal())
        self._log.end(self._index, item)

    def _close_part(self) -> None:
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._write("response.reasoning_summary_text.done", text=text)
            self._write("response.reasoning_summary_part.done", part=summary_part(text))

    def _write(self, kind: str, **members: Any) -> None:
        self._log.write(
            kind, item_id=self._id, output_index=self._index, summary_index=self._part, **members
        )


class GrowingMessage:
    """A message, whose parts are texts and refusals."""

    __slots__ = (
        "_annotations", "_content", "_id", "_index", "_is_refusal", "_log", "_logprobs", "_pieces",
    )  # fmt: skip

    def __init__(self, log: EventLog, item_id: str) -> None:
        self._log = log
        self._id = item_id
        self._content: list[dict[str, Any]] = []
        self._pieces: list[str] | None = None
        self._annotations: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._is_refusal = False
        self._index = log.begin(message_item(item_id, [], "in_progress"))

    def add_text(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._open_part(is_refusal=False).append(text)
        self._logprobs += logprobs
        self._write("response.output_text.delta", delta=text, logprobs=logprobs)

    def add_refusal(self, text: str) -> None:
        self._open_part(is_refusal=True).append(text)
        self._write("response.refusal.delta", delta=text)

    def annotate(self, annotation: dict[str, Any]) -> None:
        self._open_part(is_refusal=False)
        self._write(
            "response.output_text.annotation.added",
            annotation_index=len(self._annotations),
            annotation=annotation,
        )
        self._annotations.append(annotation)

    def close(self, status: str) -> None:
        self._close_part()
        self._log.end(self._index, message_item(self._id, self._content, status))

    def _open_part(self, *, is_refusal: bool) -> list[str]:
        if self._pieces is not None and self._is_refusal is is_refusal:
            return self._pieces
        self._close_part()
        self._is_refusal = is_refusal
        pieces: list[str] = []
        self._pieces = pieces
        part = refusal_part("") if is_refusal else text_part("")
        self._write("response.content_part.added", part=part)
        return pieces

    def _close_part(self) -> None:
        if self._pieces is None:
            return
        text = "".join(self._pieces)
        if self._is_refusal:
            part = refusal_part(text)
            self._write("response.refusal.done", refusal=text)
        else:
            part = text_part(text, self._annotations, self._logprobs)
            self._write("response.output_text.done", text=text, logprobs=part["logprobs"])
        self._write("response.content_part.done", part=part)
        self._content.append(part)
        self._pieces = None
        self._annotations, self._logprobs = [], []

    def _write(self, kind: str, **members: Any) -> None:
        self._log.write(
            kind,
            item_id=self._id,
            output_index=self._index,
            content_index=len(self._content),
            **members,
        )


class GrowingCall:
    """A call of a tool; the item of some tools begins only when its arguments are complete."""

    __slots__ = ("_call_id", "_id", "_index", "_log", "_pieces", "is_closed", "tool")

    def __init__(self, log: EventLog, tool: CallerTool, item_id: str, call_id: str) -> None:
        self._log = log
        self.tool = tool
        self._call_id = call_id
        self.is_closed = False
        self._id = item_id
        self._pieces: list[str] = []
        self._index = _NO_INDEX
        if is_streamed(tool):
            self._index = log.begin(call_item(tool, item_id, call_id, "", "in_progress"))

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def add(self, arguments: str) -> None:
        self._pieces.append(arguments)
        if self.tool.kind == "function":
            self._write("response.function_call_arguments.delta", delta=arguments)

    def close(self, status: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if not any(self._pieces):
            self.add("{}")
        arguments = self.arguments
        item = call_item(self.tool, self._id, self._call_id, arguments, status)
        if self._index == _NO_INDEX:
            begun = {**item, "status": "in_progress"}
            self._index = self._log.begin(begun)
        elif self.tool.kind == "custom":
            text = read_input(arguments)
            if text:
                self._write("response.custom_tool_call_input.delta", delta=text)
            self._write("response.custom_tool_call_input.done", input=text)
        else:
            self._write(
                "response.function_call_arguments.done", name=self.tool.name, arguments=arguments
            )
        self._pieces.clear()
        self._log.end(self._index, item)

    def break_off(self) -> None:
        """Leaves an open call without its end: many callers run what has one.

        Its item in the response has the arguments that came. A call that has no item yet gets none.
        """
        if not self.is_closed and self._index != _NO_INDEX:
            self.is_closed = True
            self._log.items[self._index] = call_item(
                self.tool, self._id, self._call_id, self.arguments, "incomplete"
            )

    def _write(self, kind: str, **members: Any) -> None:
        self._log.write(kind, item_id=self._id, output_index=self._index, **members)


class ResponseEvents:
    """Converts the events of one chat stream to those of a response."""

    __slots__ = (
        "_calls", "_choice", "_decoder", "_early", "_echo", "_envelope", "_has_ended",
        "_incomplete", "_last_call", "_log", "_names", "_open", "_tools", "held",
    )  # fmt: skip

    def __init__(self, echo: Mapping[str, Any], tools: Mapping[str, CallerTool]) -> None:
        self._echo = echo
        self._tools = tools
        self._decoder = ReplyEvents()
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
        # The probabilities of tokens that begin an answer without a text, if one follows directly.
        self._early: list[dict[str, Any]] = []
        # The size of the output so far, which is kept.
        self.held = 0
        self._has_ended = False

    def feed(self, data: bytes) -> bytes:
        """Returns the events that these bytes complete; raises :class:`InvalidStream`.

        The bytes may end in the middle of an event.
        """
        self._decoder.feed(data, self._read)
        return self._log.take()

    def _read(self, reply: ChatReply | None) -> None:
        """Converts one event of the chat stream, or its end mark."""
        if reply is None:
            self._log.finish()
            return
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
        if delta.text or choice.logprobs is not None:
            self._add_text(delta, read_logprobs(choice.logprobs))
        if isinstance(delta.refusal, str) and delta.refusal:
            self._hold(len(delta.refusal))
            self._open_message().add_refusal(delta.refusal)
        for annotation in read_annotations(delta.annotations):
            self._decoder.is_annotated = True
            self._hold(_measure(annotation))
            self._open_message().annotate(annotation)
        for image in delta.images if isinstance(delta.images, list) else ():
            self._add_picture(image)
        for call in delta.tool_calls or ():
            self._add_call(call, call.index or 0)
        if choice.finish_reason:
            self._choice = choice

    def _add_text(self, delta: ChatMessage, logprobs: list[dict[str, Any]]) -> None:
        """Adds a text; that of a token which is a part of a character is empty."""
        if not delta.text and (delta.tool_calls or not isinstance(delta.content, str)):
            return
        self._hold(len(delta.text) + sum(map(_measure, logprobs)))
        if delta.text or (logprobs and isinstance(self._open, GrowingMessage)):
            logprobs = [*self._early, *logprobs]
            self._open_message().add_text(delta.text, logprobs)
            self._early = []
        elif self._open is None and not self._calls:
            self._early += logprobs

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
        self._hold(256 + len(call_id) + len(tool.name))
        item_id = self._names.item(call_prefix(tool))
        growing = GrowingCall(self._log, tool, item_id, call_id)
        self._calls[number] = self._last_call = growing
        return growing

    def _close_open(self, status: str = "completed") -> None:
        self._early = []
        if self._open is not None:
            self._open.close(status)
            self._open = None

    def _open_calls(self) -> list[GrowingCall]:
        return [*self._incomplete, *([self._last_call] if self._last_call else [])]

    def _hold(self, size: int) -> None:
        """Counts output that is kept; raises :class:`InvalidStream` when it is too much."""
        self.held += size
        if self.held > _HELD_BYTES:
            raise InvalidStream("The answer is too large for this interface.")

    def _end(self, reply: ChatReply, usage: ChatUsage) -> None:
        """Ends the response with its usage, which comes once and after all output."""
        if self._choice.finish_reason == "error":
            failure = describe_failure(self._choice).body()
            self._fail(reply, msgspec.convert(failure["error"], ChatError), usage)
            return
        status, reason = find_ending(self._choice)
        self._close_open(status)
        for call in self._open_calls():
            call.close(status)
        self._finish(status, reply, usage=render_usage(usage), incomplete=reason)

    def _fail(self, reply: ChatReply, error: ChatError, usage: ChatUsage | None = None) -> None:
        """Ends the response with an error, even inside an item."""
        self._close_open("incomplete")
        for call in self._open_calls():
            call.break_off()
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
