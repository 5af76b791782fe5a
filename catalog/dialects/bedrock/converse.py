"""Amazon Bedrock's Converse interface, with signed requests or a Bedrock API key.

It serves every model of Bedrock in one format, as
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from botocore.eventstream import EventStreamMessage

from catalog.dialects import anthropic
from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    Operation,
    Reply,
    StreamParser,
    Untranslatable,
    decode_answer,
    decode_lenient_event,
)
from catalog.dialects.bedrock.wire import Frames, parse_failure, post
from catalog.dialects.shared import credentials, messages, replies
from catalog.dialects.shared.constraints import BEDROCK
from catalog.dialects.shared.messages import Chat, Media, ReasoningBlock, Text, ToolCall, ToolResult
from catalog.dialects.shared.raw import write_arguments
from catalog.dialects.shared.replies import ANTHROPIC_FORMAT, Finish, Output
from catalog.pricing import Usage
from config.clocks.clock import clock as database_clock
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = True

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9()\[\]-]+")
_IMAGES: Final = frozenset(("png", "jpeg", "gif", "webp"))
_DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
# Its names of formats of videos that others name otherwise.
_FORMATS: Final = {
    "quicktime": "mov", "3gpp": "three_gp", "x-matroska": "mkv", "x-ms-wmv": "wmv", "x-flv": "flv",
}  # fmt: skip
_FINISHES: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}
# The fields that the format has, beside those of every format, and those that Claude has here.
_MARKS: Final = frozenset(("cache_control", "prompt_cache_breakpoint", "tools.function.strict"))
_SAID: Final = _MARKS | {"top_k"}
# Some models refuse a result without content.
_NO_RESULT: Final = {"text": "The result is empty."}


class _Struct(msgspec.Struct, rename="camel"):
    """A struct whose fields have camel-case names in JSON."""


class _CacheDetail(_Struct):
    """The tokens written to the cache that stay for one time."""

    ttl: Any = None
    input_tokens: Any = None


class _Usage(_Struct):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_write_input_tokens: Any = None
    # Amazon's own models name them so.
    cache_read_input_token_count: Any = None
    cache_write_input_token_count: Any = None
    cache_details: list[_CacheDetail] = []

    @property
    def total(self) -> Usage | None:
        """Returns the usage; the provider counts cached tokens beside the input tokens."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        read = self.cache_read_input_tokens or self.cache_read_input_token_count
        written = self.cache_write_input_tokens or self.cache_write_input_token_count
        counted = replies.count_usage(
            (self.input_tokens, read, written),
            (self.output_tokens,),
            cached=read,
            cache_write=written,
            cache_write_1h=replies.sum_counts(
                each.input_tokens for each in self.cache_details if each.ttl == "1h"
            ),
        )
        return replies.split_writes(counted)


class _ReasoningText(_Struct):
    text: str = ""
    signature: str | None = None


class _Reasoning(_Struct):
    """Reasoning: a whole reply has ``reasoning_text``, a stream ``text`` and ``signature``."""

    reasoning_text: _ReasoningText | None = None
    redacted_content: str | None = None
    text: str = ""
    signature: str | None = None

    def to_output(self, index: int) -> Output:
        whole = self.reasoning_text or _ReasoningText(self.text, self.signature)
        if self.redacted_content is None and not whole.text and whole.signature is None:
            return Output()
        detail = replies.build_reasoning_detail(
            ANTHROPIC_FORMAT,
            index,
            text=whole.text or None,
            signature=whole.signature,
            data=self.redacted_content,
        )
        return Output(reasoning=whole.text, details=[detail])


class _ToolUse(_Struct):
    tool_use_id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw()


class _Block(_Struct):
    text: str = ""
    tool_use: _ToolUse | None = None
    reasoning_content: _Reasoning | None = None


class _Message(_Struct):
    content: list[_Block] = []


class _Output(_Struct):
    message: _Message


class _Reply(_Struct):
    output: _Output
    stop_reason: str = "end_turn"
    usage: _Usage | None = None


class _ToolUseDelta(_Struct):
    input: msgspec.Raw = msgspec.Raw()


class _Delta(_Struct):
    text: str = ""
    tool_use: _ToolUseDelta | None = None
    reasoning_content: _Reasoning | None = None


class _Start(_Struct):
    tool_use: _ToolUse | None = None


class _Event(_Struct):
    """The members of every kind of event."""

    content_block_index: int = 0
    start: _Start | None = None
    delta: _Delta | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def host(base_url: str | None, secret: Secret) -> str:
    return credentials.parse_bedrock(secret).host


def build(call: Call, *, clock: Callable[[], float] = database_clock.time) -> OutboundRequest:
    method = "converse-stream" if call.stream else "converse"
    chat = messages.parse_chat(call, BEDROCK)
    if call.capabilities.is_anthropic:
        chat = messages.mark_last(chat)
    request = post(call, method, _build_body(call, chat), clock)
    request.left_out = _name_lost(call, chat)
    return request


def _name_lost(call: Call, chat: Chat) -> frozenset[str]:
    if call.capabilities.is_anthropic:
        return anthropic.name_lost(call, chat, _SAID)
    lost = messages.name_lost(call, chat, _MARKS)
    return lost if chat.cache is None else lost | {"cache_control"}


def parse_reply(operation: Operation, body: Body) -> Reply:
    reply, _ = decode_answer(_decode_reply, body, "The answer is not a message.")
    content = reply.output.message.content
    thinking = [
        block.reasoning_content.to_output(index)
        for index, block in enumerate(content)
        if block.reasoning_content is not None
    ]
    output = Output(
        text="".join(block.text for block in content),
        reasoning="".join(thought.reasoning for thought in thinking),
        details=[detail for thought in thinking for detail in thought.details],
        tool_calls=[
            replies.build_tool_call(use.tool_use_id, use.name, write_arguments(use.input) or "{}")
            for block in content
            if (use := block.tool_use) is not None
        ],
    )
    return replies.build_reply(
        [(output, _finish(reply.stop_reason))],
        usage=None if reply.usage is None else reply.usage.total,
    )


def stream_parser(operation: Operation, choices: int = 1) -> StreamParser:
    reader = _Reader()
    return replies.EventParser(Frames(), reader.read, reader.end, reader.calls.notes)


def _build_body(call: Call, chat: Chat) -> dict[str, Any]:
    max_tokens = chat.max_tokens
    names = _name_documents(chat)
    thinking, sampling = None, anthropic.Sampling(chat.temperature, chat.top_p)
    if call.capabilities.is_anthropic:
        limit = anthropic.output_limit(call, chat)
        thinking = anthropic.build_thinking(call, chat, limit)
        sampling = anthropic.choose_sampling(call, chat, thinking)
        if thinking is not None and "budget_tokens" in thinking:
            # The budget is a share of this limit, not of the default of the format.
            max_tokens = limit
    return messages.omit_none(
        messages=[
            {"role": turn.role, "content": content}
            for turn in chat.turns
            if (content := _build_content(turn.parts, names))
        ],
        system=[block for part in chat.instructions for block in _build_blocks(part, names)]
        or None,
        inferenceConfig=messages.omit_none(
            maxTokens=max_tokens,
            temperature=sampling.temperature,
            topP=sampling.top_p,
            stopSequences=chat.stop or None,
        )
        or None,
        toolConfig=_build_tool_config(chat),
        outputConfig=messages.omit_none(
            textFormat=_build_text_format(chat), effort=anthropic.effort_name(call, chat)
        )
        or None,
        # The parameters of Claude that the common format lacks; other models use other names.
        additionalModelRequestFields=messages.omit_none(top_k=sampling.top_k, thinking=thinking)
        or None,
    )


def _build_text_format(chat: Chat) -> dict[str, Any] | None:
    if chat.schema is None:
        return None
    # The format requires the schema as a string of JSON.
    definition = messages.omit_none(schema=bytes(chat.schema).decode(), name=chat.schema_name)
    return {"type": "json_schema", "structure": {"jsonSchema": definition}}


def _build_tool_config(chat: Chat) -> dict[str, Any] | None:
    """Returns the tools and the tool choice; for a choice of ``none``, sends no tools."""
    choice = chat.tool_choice
    if not chat.tools:
        return None
    if not chat.has_own_tools:
        choice = None
    elif choice is not None and choice.mode == "none":
        if any(isinstance(part, ToolCall) for turn in chat.turns for part in turn.parts):
            raise Untranslatable("Bedrock cannot forbid tools that the conversation has used.")
        return None
    tools: list[dict[str, Any]] = []
    for tool in chat.tools:
        spec = messages.omit_none(
            name=tool.name,
            description=tool.description,
            inputSchema={"json": tool.schema},
            strict=tool.strict,
        )
        tools += [{"toolSpec": spec}, *_build_cache_point(tool.cache)]
    tool_choice: dict[str, Any] | None = None
    if choice is not None and choice.name is not None:
        tool_choice = {"tool": {"name": choice.name}}
    elif choice is not None:
        tool_choice = {"any" if choice.mode == "required" else "auto": {}}
    return messages.omit_none(tools=tools, toolChoice=tool_choice)


def _name_documents(chat: Chat) -> dict[int, str]:
    """Returns the name of each document by its identity.

    The format requires a name, allows few characters in it, and no name twice in a request.
    """
    names: dict[int, str] = {}
    # The last number that each name got as a base; the first has none.
    numbers: dict[str, int] = {}
    for part in chat.media:
        name = base = _NOT_IN_NAMES.sub(" ", part.name or "").strip()[:190] or "document"
        number = numbers.get(base, 1)
        while name in numbers:
            number += 1
            name = f"{base} {number}"
        if part.kind == "file":
            numbers[base] = number
            numbers.setdefault(name, 1)
        names[id(part)] = name
    return names


def _build_content(parts: list[messages.Part], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Returns the content of a turn, in which a document needs a text beside it."""
    content = [block for part in parts for block in _build_blocks(part, names)]
    files = [block["document"]["name"] for block in content if "document" in block]
    if files and not any("text" in block for block in content):
        content.append({"text": ", ".join(files)})
    return content


def _build_blocks(part: messages.Part, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Returns the content blocks of a part; none for another provider's reasoning."""
    match part:
        case Text():
            return [{"text": part.text}, *_build_cache_point(part.cache)]
        case Media():
            return [_build_media(part, names[id(part)]), *_build_cache_point(part.cache)]
        case ToolCall():
            use = {"toolUseId": part.id, "name": part.name, "input": part.arguments}
            return [{"toolUse": use}]
        case ToolResult():
            content = [block for inner in part.parts for block in _build_blocks(inner, names)]
            result = {"toolUseId": part.id, "content": content or [_NO_RESULT]}
            return [{"toolResult": result}, *_build_cache_point(part.cache)]
        case ReasoningBlock():
            if part.format != ANTHROPIC_FORMAT:
                return []
            if part.data is not None:
                return [{"reasoningContent": {"redactedContent": part.data}}]
            if part.signature is None:
                return []
            text = {"text": part.text, "signature": part.signature}
            return [{"reasoningContent": {"reasoningText": text}}]


def _build_cache_point(cache: dict[str, Any] | None) -> list[dict[str, Any]]:
    if cache is None:
        return []
    return [{"cachePoint": messages.omit_none(type="default", ttl=cache.get("ttl"))}]


def _build_media(part: Media, name: str) -> dict[str, Any]:
    main, _, subtype = (part.media_type or "").partition("/")
    if part.data is not None:
        source = {"bytes": part.data}
        if part.kind == "file" and part.media_type in _DOCUMENTS:
            document = {"format": _DOCUMENTS[part.media_type], "name": name, "source": source}
            return {"document": document}
        if part.kind == "image" and main == "image" and subtype in _IMAGES:
            return {"image": {"format": subtype, "source": source}}
        if part.kind in ("audio", "video") and main == part.kind:
            return {part.kind: {"format": _FORMATS.get(subtype, subtype), "source": source}}
    raise messages.unsupported_part(part, "Bedrock")


def _finish(stop_reason: str) -> Finish:
    return Finish(_FINISHES.get(stop_reason, "stop"), stop_reason)


class _Reader:
    """Reads the events of one stream; it ignores events of an unknown type.

    The event with the usage comes last, so it is the end mark.
    """

    __slots__ = ("_is_started", "_is_whole", "calls")

    def __init__(self) -> None:
        self._is_started = False
        # The reason of the end has come, so that only the usage is left.
        self._is_whole = False
        self.calls = replies.ToolCallBlocks()

    def read(self, message: EventStreamMessage) -> Iterator[Chunk]:
        headers, kind = message.headers, message.headers.get(":event-type")
        if headers.get(":message-type") != "event":
            raise parse_failure(message)
        event, _ = decode_lenient_event(_decode_event, message.payload)
        index = event.content_block_index
        match kind:
            case "messageStart":
                yield self._chunk(Output())
            case "contentBlockStart" if event.start is not None and event.start.tool_use:
                use = event.start.tool_use
                yield from self._chunks(self.calls.begin(index, use.tool_use_id, use.name))
            case "contentBlockDelta" if event.delta is not None:
                yield from self._chunks(self._continue_block(index, event.delta))
            case "contentBlockStop":
                yield from self._chunks(self.calls.end(index))
            case "messageStop":
                yield self._finish(event.stop_reason)
            case "metadata":
                if not self._is_whole:
                    yield self._finish(None)
                usage = None if event.usage is None else event.usage.total
                if usage is not None:
                    yield replies.build_chunk(usage=usage)
                yield replies.build_end_mark()

    def end(self) -> list[Chunk]:
        """Returns what stands for a missing end mark, or nothing when the stream is cut off."""
        return [replies.build_end_mark(is_unmarked=True)] if self._is_whole else []

    def _finish(self, stop_reason: str | None) -> Chunk:
        self._is_whole = True
        finish = _finish(stop_reason or "end_turn")
        return self._chunk(self.calls.close(), finish.follow(has_calls=self.calls.has_calls))

    def _continue_block(self, index: int, delta: _Delta) -> Output:
        if delta.reasoning_content is not None:
            return delta.reasoning_content.to_output(index)
        if delta.tool_use is not None:
            return self.calls.extend(index, write_arguments(delta.tool_use.input))
        return Output(delta.text)

    def _chunks(self, output: Output) -> Iterator[Chunk]:
        if output:
            yield from replies.split_calls(self._chunk(output))

    def _chunk(self, output: Output | None, finish: Finish | None = None) -> Chunk:
        is_first, self._is_started = not self._is_started, True
        return replies.build_chunk(output, is_first=is_first, finish=finish)
