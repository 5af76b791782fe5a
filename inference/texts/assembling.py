"""Assembles the text of an answer from what its caller was sent, in any of the formats; pure.

Media of an answer is left out: only its texts and the calls of tools are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from catalog.capabilities import NativeFormat
from inference.texts.shortening import cut_text

# What is stored of each side of a generation, in bytes of text.
MOST_BYTES: Final = 1_048_576
# Choices, parts and calls of tools in one answer.
_MOST_PLACES: Final = 256
_BETWEEN: Final = "\n\n"
_decode = msgspec.json.Decoder().decode


# The number of a choice, a part or an item; a call of a tool in a choice has two.
Place = int | tuple[int, int]


class AnswerTexts:
    """The texts of an answer so far, up to a bound, by the number of their choice or part.

    Texts are kept as UTF-8 in one buffer for each place: a list of the tokens of a stream would
    take many times their size.
    """

    def __init__(self) -> None:
        self.size = 0
        self.is_truncated = False
        self._texts: dict[Place, bytearray] = {}
        self._reasoning: dict[Place, bytearray] = {}
        self._calls: dict[Place, _Call] = {}

    def add_text(self, place: Place, text: Any) -> None:
        self._add(self._texts, place, text)

    def add_reasoning(self, place: Place, text: Any) -> None:
        self._add(self._reasoning, place, text)

    def add_call(self, place: Place, *, call_id: Any = None, name: Any = None) -> None:
        """Adds a call of a tool, or what is new of it."""
        if place not in self._calls and len(self._calls) >= _MOST_PLACES:
            self.is_truncated = True
            return
        call = self._calls.setdefault(place, _Call())
        if isinstance(call_id, str) and call_id:
            call.id = self._take(call_id).decode()
        if isinstance(name, str) and name:
            call.name = self._take(name).decode()

    def add_arguments(self, place: Place, text: Any) -> None:
        """Adds a part of the arguments of a call, which are JSON."""
        self.add_call(place)
        call = self._calls.get(place)
        if call is not None and isinstance(text, str) and text:
            call.arguments += self._take(text)

    def describe(self) -> dict[str, Any]:
        """Returns the output as it is stored."""
        output: dict[str, Any] = {
            "completion": _join(self._texts),
            "reasoning": _join(self._reasoning),
        }
        if self._calls:
            output["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments.decode()},
                }
                for call in self._calls.values()
            ]
        return output

    def _add(self, texts: dict[Place, bytearray], place: Place, text: Any) -> None:
        if not isinstance(text, str) or not text:
            return
        if place not in texts and len(texts) >= _MOST_PLACES:
            self.is_truncated = True
        elif kept := self._take(text):
            texts.setdefault(place, bytearray()).extend(kept)

    def _take(self, text: str) -> bytes:
        """Returns the beginning of a text that is within the bound, in UTF-8."""
        kept = cut_text(text, MOST_BYTES - self.size)
        self.is_truncated = self.is_truncated or kept != text
        data = kept.encode()
        self.size += len(data)
        return data


class _Call:
    """A call of a tool, as far as it has arrived."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: str | None = None
        self.arguments = bytearray()


Read = Callable[[AnswerTexts, Mapping[str, Any]], None]


class Assembler:
    """Reads the events of a stream, or a whole reply, into an :class:`AnswerTexts`."""

    def __init__(self, native: NativeFormat | None) -> None:
        self.output = AnswerTexts()
        self._read_event, self._read_reply = READERS[native]
        # The end of what was fed last: an event of which more may come.
        self._rest = b""
        self._lines: list[bytes] = []

    @property
    def size(self) -> int:
        """The bytes of the texts, and of an event that is not complete."""
        return self.output.size + len(self._rest) + sum(map(len, self._lines))

    def feed(self, data: bytes) -> None:
        """Reads events; the last one may be incomplete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._feed_line(line.rstrip(b"\r"))

    def feed_reply(self, body: bytes) -> None:
        """Reads a whole reply."""
        self._read(body, self._read_reply)

    def _feed_line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._lines.append(line[5:])
        elif not line and self._lines:
            data, self._lines = b"\n".join(self._lines), []
            self._read(data, self._read_event)

    def _read(self, data: bytes, read: Read) -> None:
        try:
            fields = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            return  # the end mark, or an event that nobody can read
        if isinstance(fields, dict):
            read(self.output, fields)


def _read_chat_event(output: AnswerTexts, fields: Mapping[str, Any]) -> None:
    for choice in _objects(fields.get("choices")):
        _read_chat_message(output, _place(choice.get("index")), choice, "delta")


def _read_chat_reply(output: AnswerTexts, fields: Mapping[str, Any]) -> None:
    for choice in _objects(fields.get("choices")):
        _read_chat_message(output, _place(choice.get("index")), choice, "message")


def _read_chat_message(
    output: AnswerTexts, index: int, choice: Mapping[str, Any], member: str
) -> None:
    """Reads a choice of a chat or of a text completion."""
    output.add_text(index, choice.get("text"))
    message = choice.get(member)
    if not isinstance(message, dict):
        output.add_reasoning(index, choice.get("reasoning"))
        return
    output.add_reasoning(index, message.get("reasoning"))
    content = message.get("content")
    output.add_text(index, content)
    for part in _objects(content):
        output.add_text(index, part.get("text"))
    output.add_text(index, message.get("refusal"))
    for position, call in enumerate(_objects(message.get("tool_calls"))):
        place = (index, _place(call.get("index"), position))
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        output.add_call(place, call_id=call.get("id"), name=function.get("name"))
        output.add_arguments(place, function.get("arguments"))


def _read_block(output: AnswerTexts, place: int, block: Mapping[str, Any]) -> None:
    """Reads a block of a message of Anthropic's format, or the beginning of one."""
    output.add_text(place, block.get("text"))
    output.add_reasoning(place, block.get("thinking"))
    if isinstance(block.get("name"), str):
        output.add_call(place, call_id=block.get("id"), name=block.get("name"))
        if block.get("input"):
            output.add_arguments(place, msgspec.json.encode(block["input"]).decode())


def _read_message_event(output: AnswerTexts, fields: Mapping[str, Any]) -> None:
    place = _place(fields.get("index"))
    match fields.get("type"), fields.get("content_block"), fields.get("delta"):
        case "content_block_start", dict() as block, _:
            _read_block(output, place, block)
        case "content_block_delta", _, dict() as delta:
            output.add_text(place, delta.get("text"))
            output.add_reasoning(place, delta.get("thinking"))
            if "partial_json" in delta:
                output.add_arguments(place, delta["partial_json"])


def _read_message_reply(output: AnswerTexts, fields: Mapping[str, Any]) -> None:
    for place, block in enumerate(_objects(fields.get("content"))):
        _read_block(output, place, block)


def _read_response_event(output: AnswerTexts, fields: Mapping[str, Any]) -> None:
    place, delta = _place(fields.get("output_index")), fields.get("delta")
    match fields.get("type"):
        case "response.output_text.delta" | "response.refusal.delta":
            output.add_text(place, delta)
        case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
            output.add_reasoning(place, delta)
        case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
            output.add_arguments(place, delta)
        case "response.output_item.added":
            item = fields.get("item")
            if isinstance(item, dict) and isinstance(item.get("name"), str):
                output.add_call(place, call_id=item.get("call_id"), name=item["name"])


def _read_response_reply(output: AnswerTexts, fields: Mapping[str, Any]) -> None:
    for place, item in enumerate(_objects(fields.get("output"))):
        if item.get("type") == "reasoning":
            for part in (*_objects(item.get("summary")), *_objects(item.get("content"))):
                output.add_reasoning(place, part.get("text"))
            continue
        for part in _objects(item.get("content")):
            output.add_text(place, part.get("text"))
            output.add_text(place, part.get("refusal"))
        if isinstance(item.get("name"), str):
            output.add_call(place, call_id=item.get("call_id"), name=item["name"])
            output.add_arguments(place, item.get("arguments") or item.get("input"))


# How the events of a stream, and whole replies, are read in each format; ``None`` is chat.
READERS: Final[Mapping[NativeFormat | None, tuple[Read, Read]]] = {
    None: (_read_chat_event, _read_chat_reply),
    NativeFormat.ANTHROPIC: (_read_message_event, _read_message_reply),
    NativeFormat.RESPONSES: (_read_response_event, _read_response_reply),
}


def _place(value: Any, otherwise: int = 0) -> int:
    """Returns the number that an event gives, which a provider may leave out or get wrong."""
    return value if isinstance(value, int) else otherwise


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _join(texts: Mapping[Place, bytearray]) -> str | None:
    """Joins the texts of several choices or parts with an empty line; ``None`` for none."""
    return _BETWEEN.join(text.decode() for text in texts.values()) if texts else None
