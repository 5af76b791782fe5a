"""Anthropic's Messages API, as https://platform.claude.com/docs/en/api/messages describes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from catalog.dialects.anthropic.wire import (
    Block,
    BlockDelta,
    MessageUsage,
    decode_event,
    decode_message,
)
from catalog.dialects.base import (
    Body,
    Call,
    Chunk,
    InvalidReply,
    Operation,
    Reply,
    StreamParser,
    Untranslatable,
    decode_answer,
    decode_lenient_event,
    parse_error,
)
from catalog.dialects.shared import messages, replies
from catalog.dialects.shared.constraints import ANTHROPIC
from catalog.dialects.shared.credentials import host_of_url
from catalog.dialects.shared.left_out import name_asked
from catalog.dialects.shared.messages import (
    Chat,
    Media,
    ReasoningBlock,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from catalog.dialects.shared.raw import is_null, write_arguments
from catalog.dialects.shared.replies import ANTHROPIC_FORMAT, Finish, Output
from catalog.dialects.shared.searches import NAME
from catalog.dialects.shared.sse import EventDecoder
from catalog.pricing import Usage
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = False
host = host_of_url

VERSION: Final = "2023-06-01"
# The format requires a limit. This one applies when neither the caller nor the endpoint has one; a
# reply of common length fits.
_MAX_TOKENS: Final = 4096

# The search of the web that every cloud with one has, and that runs no code beside it.
_WEB_SEARCH: Final = "web_search_20250305"
# The sources of a block are kept until it ends. Beyond this many bytes in a stream, they are not.
_MOST_CITED_BYTES: Final = 1_048_576
_MIN_BUDGET: Final = 1024
# The lowest top_p that is allowed together with thinking.
_MIN_TOP_P: Final = 0.95
# The share of the output that each effort may use for thinking, in percent.
_SHARES: Final = {"minimal": 10, "low": 20, "medium": 50, "high": 80, "xhigh": 95, "max": 95}
_EFFORTS: Final = {"minimal": "low"}
_EFFORT_FIELDS: Final = frozenset(("reasoning", "reasoning_effort"))
_SAMPLING: Final = frozenset(("temperature", "top_p", "top_k"))
# The fields that the format has, beside those of every format.
_SAID: Final = (
    "top_k", "parallel_tool_calls", "cache_control", "prompt_cache_breakpoint",
    "tools.function.strict",
)  # fmt: skip
_FINISHES: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a request; ``None`` leaves a parameter to the model."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


def build(call: Call) -> OutboundRequest:
    chat = messages.parse_chat(call, ANTHROPIC, has_search=True)
    return OutboundRequest(
        method="POST",
        url=f"{call.base_url}/messages",
        headers=build_headers(call, call.secret),
        body=_encode(build_body(call, chat)),
        left_out=name_lost(call, chat),
    )


def build_headers(call: Call, key: Secret) -> dict[str, str]:
    return {
        **key.in_header("x-api-key"),
        "anthropic-version": VERSION,
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if call.stream else "application/json",
    }


def parse_reply(operation: Operation, body: Body) -> Reply:
    reply, _ = decode_answer(decode_message, body, "The answer is not a message.")
    if reply.type == "error" or not is_null(reply.error):
        raise parse_error(body)
    if reply.type != "message":
        raise InvalidReply("The answer is not a message.")
    output = Output(
        annotations=list(_read_citations(reply.content)),
        text="".join(block.text for block in reply.content),
        reasoning="".join(block.thinking for block in reply.content),
        details=[
            detail
            for index, block in enumerate(reply.content)
            for detail in _build_details(block, index)
        ],
        tool_calls=[
            replies.build_tool_call(block.id, block.name, write_arguments(block.input) or "{}")
            for block in reply.content
            if block.type == "tool_use"
        ],
    )
    usage = None if reply.usage is None else reply.usage.add_up(MessageUsage())
    return replies.build_reply(
        [(output, name_finish(reply.stop_reason or "end_turn"))],
        usage=usage,
        model=reply.model,
        upstream_id=reply.id,
        counts_reasoning=reply.usage is not None and reply.usage.counts_reasoning,
    )


def _read_citations(content: list[Block]) -> Iterator[dict[str, Any]]:
    """Yields the sources of each text; its place is that in all the texts together."""
    start = 0
    for block in content:
        end = start + len(block.text)
        yield from _build_citations(block.citations, start, end)
        start = end


def _build_citations(given: Any, start: int, end: int) -> Iterator[dict[str, Any]]:
    """Yields the citations that name a page; chat has no form for those of a document."""
    for each in given if isinstance(given, list) else ():
        members = each if isinstance(each, dict) else {}
        for url in (members.get("url"), members.get("source")):
            if isinstance(url, str) and url.startswith(("http://", "https://")):
                quote = members.get("cited_text")
                yield replies.build_citation(url, members.get("title"), start, end, quote)
                break


def stream_parser(operation: Operation, choices: int = 1) -> StreamParser:
    reader = _Reader()
    return replies.EventParser(
        EventDecoder(), reader.read, reader.end, reader.calls.notes, reader.find_kept
    )


def output_limit(call: Call, chat: Chat) -> int:
    """Returns the maximum number of tokens of the reply, thinking included."""
    if chat.max_tokens is not None:
        return chat.max_tokens
    if call.max_completion_tokens is not None:
        return call.max_completion_tokens
    has_budget = call.capabilities.has_thinking_budget
    budget = chat.reasoning.max_tokens if has_budget else None
    return (budget or 0) + _MAX_TOKENS


def build_thinking(call: Call, chat: Chat, max_tokens: int) -> dict[str, Any] | None:
    """Returns the ``thinking`` of a request, or ``None`` when the model decides.

    A budget is part of the output and has a minimum: if the output is smaller, an older model does
    not think. A budget cannot be converted to an effort: a newer model decides by itself. When a
    tool call is forced, the model cannot be told to think first, and an older one cannot think
    within an answer that has begun without thoughts.

    Raises :class:`base.Untranslatable` for a model that cannot be forced to call a tool.
    """
    options, abilities = chat.reasoning, call.capabilities
    if abilities.thinks_between_tools and chat.is_tool_forced:
        raise Untranslatable("This model cannot be forced to call a tool.")
    if options.is_on is None:
        return None
    if not options.is_on:
        return {"type": "between_tools" if abilities.thinks_between_tools else "disabled"}
    if chat.is_tool_forced:
        return None
    if not abilities.has_thinking_budget:
        return {"type": "adaptive", "display": "omitted" if options.is_hidden else "summarized"}
    if _has_begun_without_thoughts(chat.turns):
        return None
    budget = options.max_tokens
    if budget is None:
        budget = max_tokens * _SHARES.get(options.effort or "medium", 50) // 100
    budget = max(budget, _MIN_BUDGET)
    if budget >= max_tokens:
        return None
    # These models show their thinking by default; the signature is the same with and without it.
    hidden = {"display": "omitted"} if options.is_hidden else {}
    return {"type": "enabled", "budget_tokens": budget, **hidden}


def _has_begun_without_thoughts(turns: list[Turn]) -> bool:
    """Returns whether a conversation ends within an answer that has no thoughts of Claude's.

    A loop of tools is one answer: its thoughts stand before the first call, or before any of them.
    """
    has_begun = False
    for turn in reversed(turns):
        if turn.role == "assistant":
            has_begun = True
            if any(isinstance(part, ReasoningBlock) and _build_block(part) for part in turn.parts):
                return False
        elif not isinstance(turn.parts[0], ToolResult):
            break
    return has_begun


def choose_sampling(call: Call, chat: Chat, thinking: dict[str, Any] | None) -> Sampling:
    """Returns the sampling parameters that the model accepts; with thinking, only ``top_p``.

    A model that does not accept ``temperature`` and ``top_p`` together gets the ``temperature``.
    """
    if thinking is not None and thinking["type"] != "disabled":
        top_p = chat.top_p
        is_allowed = top_p is not None and _MIN_TOP_P <= top_p <= 1
        return Sampling(top_p=top_p if is_allowed else None)
    temperature, top_p = chat.temperature, chat.top_p
    if temperature is not None:
        # OpenAI's scale ends at 2 and this one at 1; both maxima mean the most random reply.
        temperature = min(temperature, 1)
        top_p = top_p if call.capabilities.combines_sampling else None
    return Sampling(temperature, top_p, chat.top_k)


def name_lost(call: Call, chat: Chat, said: Iterable[str] = _SAID) -> frozenset[str]:
    """Returns the names of what a request asks for and :func:`build_body` does not write.

    ``said`` are the fields that the format has, beside those of every format.
    """
    thinking = build_thinking(call, chat, output_limit(call, chat))
    sampling = choose_sampling(call, chat, thinking)
    lost = {name for name in _SAMPLING & call.fields.keys() if getattr(sampling, name) is None}
    if chat.reasoning.is_on and thinking is None:
        lost |= _EFFORT_FIELDS & call.fields.keys()
    unsaid = messages.name_lost(call, chat, said) | name_asked(call.fields, lost)
    if chat.reasoning.is_on and thinking is None and not unsaid & _EFFORT_FIELDS:
        return unsaid | {"configuration_update"}
    has_budget = call.capabilities.has_thinking_budget
    if chat.reasoning.max_tokens is None or thinking is None or has_budget:
        return unsaid
    return unsaid | {"reasoning.max_tokens"}


def effort_name(call: Call, chat: Chat) -> str | None:
    """Returns the provider's name of the effort, or ``None`` for a model without efforts."""
    effort = chat.reasoning.effort
    if effort is None or call.capabilities.has_thinking_budget:
        return None
    return _EFFORTS.get(effort, effort)


def build_body(call: Call, chat: Chat) -> dict[str, Any]:
    """Returns the body of a request."""
    max_tokens = output_limit(call, chat)
    thinking = build_thinking(call, chat, max_tokens)
    sampling = choose_sampling(call, chat, thinking)
    output = messages.omit_none(
        effort=effort_name(call, chat),
        format=None if chat.schema is None else {"type": "json_schema", "schema": chat.schema},
    )
    return messages.omit_none(
        model=call.model,
        max_tokens=max_tokens,
        system=[_build_block(part) for part in chat.instructions] or None,
        messages=[
            {"role": turn.role, "content": content}
            for turn in chat.turns
            if (content := [block for part in turn.parts if (block := _build_block(part))])
        ],
        tools=_build_tools(call, chat) or None,
        tool_choice=_build_tool_choice(chat),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop_sequences=chat.stop or None,
        thinking=thinking,
        output_config=output or None,
        cache_control=chat.cache,
        metadata=None if chat.user is None else {"user_id": chat.user},
        stream=True if call.stream else None,
    )


def _build_tools(call: Call, chat: Chat) -> list[dict[str, Any]]:
    """Returns the functions of the caller, then the search of the web that Anthropic runs."""
    tools = [
        messages.omit_none(
            name=tool.name,
            description=tool.description,
            input_schema=tool.schema,
            strict=tool.strict,
            cache_control=tool.cache,
        )
        for tool in chat.tools
    ]
    if (search := chat.search) is not None:
        place = {"type": "approximate", **dict(search.location)} if search.location else None
        tools.append(
            messages.omit_none(
                type=_WEB_SEARCH,
                name=NAME,
                # The hold covers this number of searches.
                max_uses=call.most_searches,
                allowed_domains=search.allowed_domains or None,
                blocked_domains=search.excluded_domains or None,
                user_location=place,
            )
        )
    return tools


def _build_tool_choice(chat: Chat) -> dict[str, Any] | None:
    if not chat.tools and chat.search is None:
        return None
    choice = chat.tool_choice
    if choice is not None and choice.mode == "none":
        return {"type": "none"}
    members: dict[str, Any] | None = None
    if choice is not None and choice.name is not None:
        members = {"type": "tool", "name": choice.name}
    elif choice is not None:
        members = {"type": "any" if choice.mode == "required" else "auto"}
    if chat.parallel_tool_calls is False:
        members = {**(members or {"type": "auto"}), "disable_parallel_tool_use": True}
    return members


def _build_block(part: messages.Part) -> dict[str, Any] | None:
    """Returns the content block of a part, or ``None`` for another provider's reasoning."""
    match part:
        case Text():
            return messages.omit_none(type="text", text=part.text, cache_control=part.cache)
        case Media():
            return _build_media(part)
        case ToolCall():
            return {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": part.arguments,
            }
        case ToolResult():
            return messages.omit_none(
                type="tool_result",
                tool_use_id=part.id,
                content=[_build_block(inner) for inner in part.parts] or None,
                cache_control=part.cache,
            )
        case ReasoningBlock():
            if part.format != ANTHROPIC_FORMAT:
                return None
            if part.data is not None:
                return {"type": "redacted_thinking", "data": part.data}
            if part.signature is None:
                return None
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _build_media(part: Media) -> dict[str, Any]:
    kind = {"image": "image", "file": "document"}.get(part.kind)
    if part.url is not None:
        source = {"type": "url", "url": part.url}
    else:
        source = {"type": "base64", "media_type": part.media_type or "", "data": part.data or ""}
        if kind == "document" and part.media_type != "application/pdf":
            kind = None
    if kind is None:
        raise messages.unsupported_part(part, "Anthropic")
    return messages.omit_none(type=kind, source=source, title=part.name, cache_control=part.cache)


def _build_details(block: Block, index: int) -> list[dict[str, Any]]:
    if block.type == "thinking":
        return [_build_detail(index, text=block.thinking, signature=block.signature)]
    return [_build_detail(index, data=block.data)] if block.type == "redacted_thinking" else []


def _build_detail(index: int, **members: str | None) -> dict[str, Any]:
    return replies.build_reasoning_detail(ANTHROPIC_FORMAT, index, **members)


def name_finish(stop_reason: str) -> Finish:
    return Finish(_FINISHES.get(stop_reason, "stop"), stop_reason)


class _Reader:
    """Reads the events of one stream; it ignores events of an unknown type."""

    __slots__ = (
        "_citations", "_cited_bytes", "_counts_reasoning", "_id", "_is_started", "_is_whole",
        "_kept", "_length", "_model", "_searches", "_start", "_usage", "calls",
    )  # fmt: skip

    def __init__(self) -> None:
        self._is_started = False
        # The reason of the end has come, so that only the end mark is left.
        self._is_whole = False
        self._id: str | None = None
        self._model: str | None = None
        self._usage = MessageUsage()
        self._searches = 0
        self.calls = replies.ToolCallBlocks()
        # The characters of text so far, those before the present block, and its sources.
        self._length = self._start = 0
        self._citations: list[Any] = []
        self._cited_bytes = self._kept = 0
        self._counts_reasoning = False

    def read(self, data: bytes) -> Iterator[Chunk]:
        event, _ = decode_lenient_event(decode_event, data)
        if event.is_error:
            raise parse_error(data)
        match event.type:
            case "message_start" if event.message is not None:
                self._id, self._model = event.message.id, event.message.model
                self._usage = event.message.usage or self._usage
                yield self._chunk(Output(), usage=self._usage.prompt_usage)
            case "content_block_start" if event.content_block is not None:
                yield from self._chunks(self._begin_block(event.index, event.content_block))
                if event.content_block.is_search_result:
                    yield from self._count_search()
            case "content_block_delta" if event.delta is not None:
                yield from self._chunks(self._continue_block(event.index, event.delta))
            case "content_block_stop":
                yield from self._chunks(self.calls.end(event.index))
                yield from self._chunks(self._cite())
            case "message_delta":
                usage = None if event.usage is None else event.usage.add_up(self._usage)
                reason = None if event.delta is None else event.delta.stop_reason
                self._counts_reasoning = event.usage is not None and event.usage.counts_reasoning
                self._is_whole = self._is_whole or reason is not None
                if reason is not None:
                    yield self._finish(reason, usage)
                elif usage is not None:
                    yield self._chunk(None, usage=usage)
            case "message_stop":
                if not self._is_whole:
                    yield self._finish("end_turn", None)
                yield replies.build_end_mark()

    def end(self) -> list[Chunk]:
        """Returns what stands for a missing end mark, or nothing when the stream is cut off."""
        return [replies.build_end_mark(is_unmarked=True)] if self._is_whole else []

    def find_kept(self) -> int:
        """Returns the size of the sources that wait for the end of their block."""
        return self._kept

    def _finish(self, reason: str, usage: Usage | None) -> Chunk:
        finish = name_finish(reason).follow(has_calls=self.calls.has_calls)
        return self._chunk(self.calls.close(), finish, usage)

    def _keep_citation(self, citation: Any) -> None:
        """Keeps a source until its block ends; the answer has those of its first megabyte."""
        size = len(_encode(citation))
        self._cited_bytes += size
        if self._cited_bytes <= _MOST_CITED_BYTES:
            self._citations.append(citation)
            self._kept += size

    def _cite(self) -> Output:
        """Returns the sources of the block that ends, whose place is known now."""
        found = _build_citations(self._citations, self._start, self._length)
        output = Output(annotations=list(found))
        self._citations, self._start, self._kept = [], self._length, 0
        return output

    def _count_search(self) -> Iterator[Chunk]:
        """Yields the usage of the prompt with the searches so far."""
        self._searches += 1
        if (usage := self._usage.count_searches(self._searches)) is not None:
            yield self._chunk(None, usage=usage)

    def _begin_block(self, index: int, block: Block) -> Output:
        self._start = self._length
        self._length += len(block.text)
        for each in block.citations if isinstance(block.citations, list) else ():
            self._keep_citation(each)
        if block.type == "tool_use":
            arguments = write_arguments(block.input)
            return self.calls.begin(index, block.id, block.name, arguments)
        if not (block.text or block.thinking or block.data):
            return Output()
        return Output(block.text, block.thinking, _build_details(block, index))

    def _continue_block(self, index: int, delta: BlockDelta) -> Output:
        match delta.type:
            case "text_delta":
                self._length += len(delta.text)
                return Output(delta.text)
            case "citations_delta":
                self._keep_citation(delta.citation)
            case "thinking_delta" if delta.thinking:
                detail = _build_detail(index, text=delta.thinking)
                return Output(reasoning=delta.thinking, details=[detail])
            case "signature_delta" if delta.signature:
                return Output(details=[_build_detail(index, signature=delta.signature)])
            case "input_json_delta":
                return self.calls.extend(index, delta.partial_json)
        return Output()

    def _chunks(self, output: Output) -> Iterator[Chunk]:
        if output:
            yield from replies.split_calls(self._chunk(output))

    def _chunk(
        self, output: Output | None, finish: Finish | None = None, usage: Usage | None = None
    ) -> Chunk:
        is_first, self._is_started = not self._is_started, True
        return replies.build_chunk(
            output,
            is_first=is_first,
            finish=finish,
            usage=usage,
            model=self._model,
            upstream_id=self._id,
            counts_reasoning=self._counts_reasoning,
        )
