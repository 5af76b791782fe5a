"""The items of a streamed answer while they grow, and the events that tell of it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inference.requests.chat_replies import ReplyReasoning
from inference.requests.responses.output import (
    Thoughts,
    call_item,
    is_streamed,
    message_item,
    read_input,
    reasoning_item,
    refusal_part,
    summary_part,
    text_part,
)
from inference.requests.responses.tools import CallerTool

_encode = msgspec.json.Encoder().encode


class EventLog:
    """Numbers the events of a stream, and encodes them."""

    __slots__ = ("_number", "_out", "items")

    def __init__(self) -> None:
        self._number = 0
        self._out: list[bytes] = []
        # The items that ended, by their index; ``None`` while one is open.
        self.items: list[dict[str, Any] | None] = []

    def write(self, kind: str, **members: Any) -> None:
        body = _encode({"type": kind, **members, "sequence_number": self._number})
        self._number += 1
        self._out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), body))

    def begin(self, item: dict[str, Any]) -> int:
        """Writes the beginning of an item; returns its index."""
        index = len(self.items)
        self.items.append(None)
        self.write("response.output_item.added", output_index=index, item=item)
        return index

    def end(self, index: int, item: dict[str, Any]) -> None:
        self.items[index] = item
        self.write("response.output_item.done", output_index=index, item=item)

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


_NO_INDEX: Final = -1


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

    def _write(self, kind: str, **members: Any) -> None:
        self._log.write(kind, item_id=self._id, output_index=self._index, **members)
