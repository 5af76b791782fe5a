"""Parses the choices of completions: their messages, deltas, texts and sizes."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from catalog.dialects.base import InvalidReply
from catalog.dialects.openai.members import NULL
from catalog.dialects.shared.raw import first_byte, is_empty, is_null, measure_value

Raw = TypeVar("Raw", bytes, msgspec.Raw)


class Delta(msgspec.Struct):
    """The parts of a delta or message that count as output."""

    content: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    refusal: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        total = 0 if self.tool_calls == NULL else len(self.tool_calls)
        # Servers that send both names of the reasoning repeat the same text.
        reasoning = self.reasoning_content if is_empty(self.reasoning) else self.reasoning
        for text in (self.content, reasoning, self.refusal):
            if text:
                total += measure_value(text)
        return total


class Choice(msgspec.Struct):
    index: Any = None
    delta: Delta | None = None
    message: Delta | None = None
    text: msgspec.Raw = msgspec.Raw()
    finish_reason: str | None = None


_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
decode_choices = msgspec.json.Decoder(list[Choice]).decode
_REASONING: Final = re.compile(rb'"reasoning_content": ?("(?:[^"\\]|\\.)*+")')


def parse_choices(fields: dict[str, msgspec.Raw]) -> list[Choice]:
    raw = fields.get("choices")
    if raw is None:
        raise InvalidReply("The answer has no choices.")
    try:
        choices = decode_choices(raw)
        if all(is_null(each.text) or memoryview(each.text)[0] == 0x22 for each in choices):
            return choices
        raise InvalidReply("A text of the answer is malformed.")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The choices of the answer are malformed.") from None


def add_reasoning(choices: Raw) -> Raw:
    """Copies ``reasoning_content`` to ``reasoning`` where a server sends only the former."""
    raw = bytes(choices)
    if b'"reasoning_content"' not in raw or b'"reasoning":' in raw:
        return choices
    return type(choices)(_REASONING.sub(rb'\g<0>,"reasoning":\1', raw))


def add_long_reasoning(choices: msgspec.Raw) -> list[dict[str, Any]]:
    """Does the same for the whole choices of a long answer, which a substitution would copy."""
    given: list[dict[str, Any]] = [*_decode_objects(choices)]
    for choice in given:
        if first_byte(choice.get("message")) == b"{":
            message = choice["message"] = _decode_members(choice["message"])
            if "reasoning_content" in message:
                message.setdefault("reasoning", message["reasoning_content"])
    return given


def find_finish_reason(choices: list[Choice]) -> str | None:
    for choice in choices:
        if choice.finish_reason:
            return choice.finish_reason
    return None


def find_finished(choices: list[Choice]) -> frozenset[int]:
    """Returns the numbers of the choices that have a finish reason; the first is 0."""
    return frozenset(
        each.index if isinstance(each.index, int) else 0 for each in choices if each.finish_reason
    )


def measure_choices(choices: list[Choice]) -> int:
    total = 0
    for choice in choices:
        part = choice.delta or choice.message
        if part is not None:
            total += part.size
        if choice.text:
            total += measure_value(choice.text)
    return total


def count_bytes(text: Any) -> int:
    """Returns the size of a text in bytes, or of the JSON of any other value."""
    if not isinstance(text, str):
        return len(_encode(text))
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
