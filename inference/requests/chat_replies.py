"""The members of chat replies and chunks from which the other faces render theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from catalog.dialects.base import InvalidReply, InvalidStream
from catalog.dialects.shared.raw import is_empty
from catalog.dialects.shared.replies import GEMINI_FORMAT, UNSIGNED_FORMAT, build_citation
from catalog.dialects.shared.sse import EventDecoder, EventTooLarge
from config.api.errors import UpstreamError


class ReplyReasoning(msgspec.Struct, omit_defaults=True):
    """An item of chat's ``reasoning_details``: text with a signature, or encrypted ``data``."""

    type: str = ""
    text: str | None = None
    summary: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None
    index: int | None = None


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ReplyToolCall(msgspec.Struct):
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
        """The arguments as text."""
        return (self.function.arguments if self.function is not None else None) or ""


class ChatMessage(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: list[ReplyToolCall] | None = None
    annotations: Any = None
    images: Any = None

    @property
    def text(self) -> str:
        """The text without a refusal."""
        return self.content if isinstance(self.content, str) else ""

    @property
    def texts(self) -> list[str]:
        """The text and the refusal, if they are not empty."""
        return [text for text in (self.text, self.refusal) if isinstance(text, str) and text]

    @property
    def citations(self) -> list[dict[str, Any]]:
        """The sources of the text, with the members of chat's ``url_citation``."""
        found = []
        for each in self.annotations if isinstance(self.annotations, list) else ():
            source = each.get("url_citation") if isinstance(each, dict) else None
            if isinstance(source, dict) and isinstance(source.get("url"), str):
                found.append(source)
        return found

    @property
    def details(self) -> list[ReplyReasoning]:
        """The reasoning in parts; a server's single text becomes one part."""
        given = self.reasoning_details
        details = list(_read_details(given)) if isinstance(given, list) else []
        if any(detail.text or detail.summary for detail in details):
            return details
        if isinstance(self.reasoning, str) and self.reasoning:
            text = ReplyReasoning(type="reasoning.text", text=self.reasoning)
            text.format, text.index = UNSIGNED_FORMAT, 0
            return [text, *details]
        return details


def _read_details(given: list[Any]) -> Iterator[ReplyReasoning]:
    """Yields the parts of the common shape; callers could not send back any other."""
    for item in given:
        with contextlib.suppress(msgspec.ValidationError):
            yield msgspec.convert(item, ReplyReasoning)


class ReplyChoice(msgspec.Struct):
    index: Any = 0
    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None
    native_finish_reason: Any = None
    stop_reason: Any = None
    matched_stop: Any = None
    logprobs: Any = None


class PromptDetails(msgspec.Struct):
    cached_tokens: Any = 0
    cache_write_tokens: Any = 0


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: Any = None


class _ToolUse(msgspec.Struct):
    web_search_requests: Any = 0


_decode_tool_use = msgspec.json.Decoder(_ToolUse).decode


class ChatUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    cost: msgspec.Raw = msgspec.Raw()
    is_byok: msgspec.Raw = msgspec.Raw()
    cost_details: msgspec.Raw = msgspec.Raw()
    server_tool_use_details: msgspec.Raw = msgspec.Raw()

    @property
    def searches(self) -> int:
        """The searches of the web that the provider ran."""
        try:
            return read_count(_decode_tool_use(self.server_tool_use_details).web_search_requests)
        except msgspec.DecodeError:
            return 0


class ChatError(msgspec.Struct):
    code: int
    message: str
    metadata: dict[str, Any] = {}


class ChatReply(msgspec.Struct):
    """A whole reply, or an event of a stream.

    ``citations`` and ``search_results`` are the sources that Perplexity and xAI name beside the
    choices.
    """

    id: str = ""
    created: int = 0
    model: str = ""
    provider: msgspec.Raw = msgspec.Raw()
    choices: list[ReplyChoice] = []
    usage: ChatUsage | None = None
    error: ChatError | None = None
    service_tier: Any = None
    openrouter_metadata: msgspec.Raw = msgspec.Raw()
    citations: msgspec.Raw = msgspec.Raw()
    search_results: msgspec.Raw = msgspec.Raw()

    @property
    def has_sources(self) -> bool:
        """Whether sources stand beside the choices."""
        return not (is_empty(self.citations) and is_empty(self.search_results))


_decode_chat = msgspec.json.Decoder(ChatReply).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode
# The gateway renders the events of chat itself; no dialect accepts events of nearly this size.
_EVENT_BYTES: Final = 67_108_864
# Answers have few sources; more would cost the event loop too much.
_MOST_SOURCES: Final = 1_000


def read_reply(body: bytes) -> tuple[ChatReply, ReplyChoice]:
    """Returns a whole reply and its first choice.

    Raises :class:`InvalidReply`, and :class:`UpstreamError` for a reply that ended in an error.
    """
    try:
        reply = _decode_chat(body)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("A choice of the answer is malformed.") from None
    choice = next((each for each in reply.choices if each.index == 0), ReplyChoice())
    if choice.finish_reason == "error":
        raise describe_failure(choice)
    message = choice.message
    if message is not None and reply.has_sources and not message.citations:
        message.annotations = _read_sources(reply)
    return reply, choice


def _read_sources(reply: ChatReply) -> list[dict[str, Any]]:
    """Returns the sources beside the choices as annotations of chat; they name no place."""
    pages = [each for each in _read_list(reply.search_results) if isinstance(each, dict)]
    titles = {url: page.get("title") for page in pages if isinstance(url := page.get("url"), str)}
    cited = [url for url in _read_list(reply.citations) if isinstance(url, str)] or [*titles]
    return [build_citation(url, titles.get(url), 0, 0, None) for url in cited[:_MOST_SOURCES]]


def _read_list(raw: msgspec.Raw) -> list[Any]:
    """Decodes a list; anything else is an empty one."""
    try:
        found = msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


class ReplyEvents:
    """Decodes the events of one stream of chat.

    The event with the usage gets the sources that stand beside the choices, unless the reader has
    set ``is_annotated``, because a choice names some.
    """

    __slots__ = ("_decoder", "_sourced", "is_annotated")

    def __init__(self) -> None:
        self._decoder = EventDecoder(limit=_EVENT_BYTES)
        self.is_annotated = False
        # The last event with sources beside its choices.
        self._sourced: ChatReply | None = None

    def feed(self, data: bytes, read: Callable[[ChatReply | None], None]) -> None:
        """Calls ``read`` with each event that these bytes complete, with ``None`` for the end mark.

        The bytes may end in the middle of an event. Raises :class:`InvalidStream`.
        """
        try:
            for event in self._decoder.feed(data):
                if event == b"[DONE]":
                    read(None)
                    continue
                reply = _decode_chat(event)
                if (reply.citations or reply.search_results) and reply.has_sources:
                    self._sourced = reply
                if self._sourced and reply.usage and not self.is_annotated:
                    told = ChatMessage(annotations=_read_sources(self._sourced))
                    reply.choices.append(ReplyChoice(delta=told))
                read(reply)
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        except (msgspec.DecodeError, RecursionError):
            raise InvalidStream("A choice of the stream is malformed.") from None


def encode_named_event(fields: dict[str, Any]) -> bytes:
    """Encodes an event whose name is its ``type``.

    Line ends between raw values become spaces, because they would end it.
    """
    data = _encode(fields)
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"event: %b\ndata: %b\n\n" % (type_of(fields).encode(), data)


def type_of(fields: dict[str, Any]) -> str:
    """Returns the type of an event, which may be raw."""
    kind: Any = fields.get("type")
    return _decode_text(kind) if isinstance(kind, msgspec.Raw) else kind


def describe_failure(choice: ReplyChoice) -> UpstreamError:
    """Returns the error for a choice that ended in one; no other face can express such an end."""
    native = choice.native_finish_reason
    return UpstreamError(
        "The upstream provider ended the answer with an error.",
        metadata={"provider_code": native[:64]} if isinstance(native, str) else {},
    )


def signature_detail(signature: str, call_id: str) -> ReplyReasoning:
    """Returns the signature of a call as encrypted reasoning, which Gemini's dialect reads back."""
    return ReplyReasoning(
        type="reasoning.encrypted", data=signature, id=call_id, format=GEMINI_FORMAT
    )


def drop_empty(**members: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Returns the members that a reply has."""
    return {name: raw for name, raw in members.items() if bytes(raw)}


def read_count(value: Any) -> int:
    """Returns a count of tokens; what is not a count is zero."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
