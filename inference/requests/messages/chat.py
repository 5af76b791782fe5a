"""The members of chat replies and chunks from which a message is rendered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from inference.requests.messages.reasoning import ReasoningDetail

_encode = msgspec.json.Encoder().encode


class Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: Any = None

    @property
    def signature(self) -> str | None:
        """The signature that Google's OpenAI-compatible servers expect back with the call."""
        found = self.extra_content
        for name in ("google", "thought_signature"):
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str) and found else None

    @property
    def arguments(self) -> str:
        """The arguments as text; some servers send the object itself."""
        given = None if self.function is None else self.function.arguments
        if given is None or isinstance(given, str):
            return given or ""
        return _encode(given).decode()


class ChatMessage(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    tool_calls: list[ToolCall] | None = None

    @property
    def texts(self) -> list[str]:
        content = self.content
        if isinstance(content, list):
            content = "".join(_find_texts(content, "text"))
        return [text for text in (content, self.refusal) if isinstance(text, str) and text]

    @property
    def details(self) -> list[ReasoningDetail]:
        """The reasoning in parts; a server's single text becomes one part."""
        given = self.reasoning_details
        details = list(_read_details(given)) if isinstance(given, list) else []
        if any(detail.text or detail.summary for detail in details):
            return details
        thinking = "".join(_find_texts(self.content, "thinking"))
        for text in (self.reasoning, self.reasoning_content, thinking):
            if isinstance(text, str) and text:
                return [ReasoningDetail(type="reasoning.text", text=text), *details]
        return details


def _find_texts(content: Any, kind: str) -> Iterator[str]:
    """Yields the texts of one kind among content parts; a thinking part may hold parts itself."""
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == kind:
            inner = part.get(kind)
            if isinstance(inner, str):
                yield inner
            else:
                yield from _find_texts(inner, "text")


def _read_details(given: list[Any]) -> Iterator[ReasoningDetail]:
    """Yields the parts of the common shape; callers could not send back any other."""
    for item in given:
        with contextlib.suppress(msgspec.ValidationError):
            yield msgspec.convert(item, ReasoningDetail)


class Choice(msgspec.Struct):
    index: int = 0
    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None
    native_finish_reason: Any = None
    stop_reason: Any = None


class PromptDetails(msgspec.Struct):
    cached_tokens: Any = 0
    cache_write_tokens: Any = 0


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: Any = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    cost: msgspec.Raw = msgspec.Raw()
    is_byok: msgspec.Raw = msgspec.Raw()
    cost_details: msgspec.Raw = msgspec.Raw()


class ChatError(msgspec.Struct):
    code: int
    message: str
    metadata: dict[str, Any] = {}


class ChatReply(msgspec.Struct):
    id: str = ""
    model: str = ""
    provider: msgspec.Raw = msgspec.Raw()
    choices: list[Choice] = []
    usage: ChatUsage | None = None
    error: ChatError | None = None
    openrouter_metadata: msgspec.Raw = msgspec.Raw()


decode_chat = msgspec.json.Decoder(ChatReply).decode
