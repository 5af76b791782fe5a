"""Parses the members of answers: errors, usage and texts, and the choices of completions."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import InvalidReply, parse_error, read_usage
from catalog.dialects.shared.raw import first_byte, is_empty, is_null, measure_value
from catalog.pricing import Usage

Raw = TypeVar("Raw", bytes, msgspec.Raw)

NULL: Final = msgspec.Raw(b"null")


# The members of the details of a usage that count, and our names for them.
_PROMPT_DETAILS: Final = {
    "cached_tokens": "cached", "cache_write_tokens": "cache_write", "audio_tokens": "audio",
}  # fmt: skip
_COMPLETION_DETAILS: Final = {
    "reasoning_tokens": "reasoning", "image_tokens": "image_output",
    "audio_tokens": "audio_output",
}  # fmt: skip


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


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    # The searches of the web, as OpenRouter, Perplexity and xAI report them.
    server_tool_use: Any = None
    server_tool_use_details: Any = None
    num_search_queries: Any = None
    num_sources_used: Any = None
    # What Perplexity's research counts beside prompt and completion.
    citation_tokens: Any = None
    reasoning_tokens: Any = None

    @property
    def searches(self) -> Any:
        """The count of searches that the provider reports; ``None`` without one."""
        for tools in (self.server_tool_use_details, self.server_tool_use):
            if isinstance(tools, dict):
                count = tools.get("web_search_requests")
                if count is not None:
                    return count
        if self.num_search_queries is not None:
            return self.num_search_queries
        return self.num_sources_used


_decode_usage = msgspec.json.Decoder(_Usage | None).decode
decode_text: Final = msgspec.json.Decoder(str).decode


def raise_for_error(fields: dict[str, msgspec.Raw]) -> None:
    error = fields.get("error")
    if error is not None and error != NULL:
        raise parse_error(b'{"error":' + bytes(error) + b"}")


def parse_usage(fields: dict[str, msgspec.Raw], *, completion: int | None = None) -> Usage | None:
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
    parts: dict[str, Any] = {}
    for details, names in (
        (usage.prompt_tokens_details, _PROMPT_DETAILS),
        (usage.completion_tokens_details, _COMPLETION_DETAILS),
    ):
        if isinstance(details, dict):
            parts |= {names[name]: details[name] for name in names.keys() & details.keys()}
    if (searches := usage.searches) is not None:
        parts["searches"] = searches
    if usage.citation_tokens is not None:
        parts["citations"] = usage.citation_tokens
        parts["research"] = usage.reasoning_tokens
    counted = read_usage(
        usage.prompt_tokens,
        usage.completion_tokens if completion is None else completion,
        **parts,
    )
    if counted is not None and counted.reasoning:
        # Some servers do not count reasoning as part of the completion; only the total shows it.
        beside = counted.completion + counted.reasoning
        if usage.total_tokens == counted.prompt + beside:
            return replace(counted, completion=beside)
    return counted


def read_text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decode_text(raw)
    except msgspec.DecodeError:
        return None
