"""Anthropic's Messages API, as https://platform.claude.com/docs/en/api/messages describes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from catalog.dialects.base import (
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    Reply,
    StreamParser,
    Untranslatable,
    parse_error,
)
from catalog.dialects.shared import messages
from catalog.dialects.shared import replies as answers
from catalog.dialects.shared.messages import Chat, Media, Text, Thought, ToolCall, ToolResult
from catalog.dialects.shared.replies import ANTHROPIC_FORMAT, Finish, Said
from catalog.dialects.shared.sse import EventDecoder
from catalog.pricing import Usage
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = False

_VERSION: Final = "2023-06-01"
# The format requires a limit; where neither the caller nor the endpoint names one, an answer of
# common length fits.
_MAX_TOKENS: Final = 4096

# The generations before 4.6 take a budget of tokens to think, the later ones an effort alone.
_TAKES_BUDGET: Final = re.compile(
    r"claude-(?:3|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?![0-9]|-[0-9](?![0-9])))"
)
_MIN_BUDGET: Final = 1024
# The model that thinks between calls of tools at least, and cannot be made to call one.
_THINKS_BETWEEN: Final = re.compile(r"claude-sonnet-5-5(?![0-9])")
# The generation that takes a temperature and a top_p together.
_TAKES_BOTH: Final = re.compile(r"claude-3")
# The lowest top_p that goes together with thinking.
_MIN_TOP_P: Final = 0.95
# The share of the output that an effort may think with, in percent.
_SHARES: Final = {"minimal": 10, "low": 20, "medium": 50, "high": 80, "xhigh": 95, "max": 95}
_EFFORTS: Final = {"minimal": "low"}
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


class _OutputDetails(msgspec.Struct):
    thinking_tokens: Any = 0


class _Usage(msgspec.Struct):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    output_tokens_details: _OutputDetails | None = None

    @property
    def of_prompt(self) -> Usage | None:
        """Counts the prompt alone: what a stream has written is not known when it begins.

        Some begin with zeros and count at the end: a prompt of nothing is not counted yet.
        """
        counted = msgspec.structs.replace(self, output_tokens=0).counted(_Usage())
        return counted if counted is not None and counted.prompt else None

    def counted(self, earlier: _Usage) -> Usage | None:
        """Adds the prompt up; what an event leaves out is what an earlier one said."""

        def latest(name: str) -> Any:
            value = getattr(self, name)
            return getattr(earlier, name) if value is None else value

        read, written = latest("cache_read_input_tokens"), latest("cache_creation_input_tokens")
        if self.output_tokens is None or latest("input_tokens") is None:
            return None
        details = self.output_tokens_details or _OutputDetails()
        return answers.count_usage(
            (latest("input_tokens"), read, written),
            (self.output_tokens,),
            cached=read,
            cache_write=written,
            reasoning=details.thinking_tokens,
        )


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, msgspec.Raw] = {}


class _Answer(msgspec.Struct):
    type: str
    content: list[_Block] = []
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Answer | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn; ``None`` leaves it to the model."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def host(base_url: str | None, secret: Secret) -> str:
    return urlsplit(base_url or "").hostname or ""


def build(call: Call) -> OutboundRequest:
    return OutboundRequest(
        method="POST",
        url=f"{call.base_url}/messages",
        headers=headers(call, call.secret),
        body=_encode(message(call, messages.read(call))),
    )


def headers(call: Call, key: Secret) -> dict[str, str]:
    return {
        "x-api-key": key.reveal(),
        "anthropic-version": _VERSION,
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if call.stream else "application/json",
    }


def parse_reply(operation: Operation, body: bytes) -> Reply:
    try:
        answer = _decode_answer(body.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidReply("The answer is not a message.") from None
    if answer.type == "error":
        raise parse_error(body)
    if answer.type != "message":
        raise InvalidReply("The answer is not a message.")
    said = Said(
        text="".join(block.text for block in answer.content),
        reasoning="".join(block.thinking for block in answer.content),
        details=[
            detail
            for index, block in enumerate(answer.content)
            for detail in _details(block, index)
        ],
        tool_calls=[
            answers.tool_call(block.id, block.name, _encode(block.input).decode())
            for block in answer.content
            if block.type == "tool_use"
        ],
    )
    usage = None if answer.usage is None else answer.usage.counted(_Usage())
    return answers.reply(
        [(said, _finish(answer.stop_reason or "end_turn"))],
        usage=usage,
        model=answer.model,
        upstream_id=answer.id,
    )


def stream_parser(operation: Operation, choices: int = 1) -> StreamParser:
    return answers.Parser(EventDecoder(), _Reader().read)


def takes_budget(model: str) -> bool:
    """Tells the models that think by a budget of tokens from those that think by an effort."""
    return _TAKES_BUDGET.search(model) is not None


def output_limit(call: Call, chat: Chat) -> int:
    """Returns the most tokens that the answer may have, thoughts included."""
    if chat.max_tokens is not None:
        return chat.max_tokens
    if call.max_completion_tokens is not None:
        return call.max_completion_tokens
    budget = chat.reasoning.max_tokens if takes_budget(call.model) else None
    return (budget or 0) + _MAX_TOKENS


def thinking(model: str, chat: Chat, max_tokens: int) -> dict[str, Any] | None:
    """Returns the ``thinking`` of a request, or ``None`` where the model shall decide.

    A budget is part of the output and has a minimum: where the output is smaller, an older model
    does not think. There is no turning a budget into an effort: a newer model decides by itself.
    A model that must call a tool cannot be told to think before.

    Raises :class:`base.Untranslatable` for a model that cannot be made to call a tool.
    """
    wanted, is_between = chat.reasoning, _THINKS_BETWEEN.search(model) is not None
    if is_between and chat.is_tool_forced:
        raise Untranslatable("This model cannot be made to call a tool.")
    if wanted.is_on is None:
        return None
    if not wanted.is_on:
        return {"type": "between_tools" if is_between else "disabled"}
    if chat.is_tool_forced:
        return None
    if not takes_budget(model):
        return {"type": "adaptive", "display": "omitted" if wanted.is_hidden else "summarized"}
    budget = wanted.max_tokens
    if budget is None:
        budget = max_tokens * _SHARES.get(wanted.effort or "medium", 50) // 100
    budget = max(budget, _MIN_BUDGET)
    if budget >= max_tokens:
        return None
    # These models show what they think unless told otherwise; a signature is the same either way.
    hidden = {"display": "omitted"} if wanted.is_hidden else {}
    return {"type": "enabled", "budget_tokens": budget, **hidden}


def sampling(model: str, chat: Chat, thinking: dict[str, Any] | None) -> Sampling:
    """Returns how the answer is drawn; of that, a model that thinks takes next to nothing.

    Of ``temperature`` and ``top_p``, models since the fourth generation take one: the first.
    """
    if thinking is not None and thinking["type"] != "disabled":
        top_p = chat.top_p
        is_allowed = top_p is not None and _MIN_TOP_P <= top_p <= 1
        return Sampling(top_p=top_p if is_allowed else None)
    temperature, top_p = chat.temperature, chat.top_p
    if temperature is not None:
        # OpenAI's scale goes on to 2, this one ends at 1: both ends mean the most random answer.
        temperature = min(temperature, 1)
        top_p = top_p if _TAKES_BOTH.search(model) else None
    return Sampling(temperature, top_p, chat.top_k)


def effort(model: str, chat: Chat) -> str | None:
    """Returns the effort in the provider's words, for the models that know one."""
    wanted = chat.reasoning.effort
    if wanted is None or takes_budget(model):
        return None
    return _EFFORTS.get(wanted, wanted)


def message(call: Call, chat: Chat) -> dict[str, Any]:
    """Returns the body of a request."""
    max_tokens = output_limit(call, chat)
    thoughts = thinking(call.model, chat, max_tokens)
    drawn = sampling(call.model, chat, thoughts)
    output = messages.without_nones(
        effort=effort(call.model, chat),
        format=None if chat.schema is None else {"type": "json_schema", "schema": chat.schema},
    )
    return messages.without_nones(
        model=call.model,
        max_tokens=max_tokens,
        system=[_part(part) for part in chat.instructions] or None,
        messages=[
            {"role": turn.role, "content": content}
            for turn in chat.turns
            if (content := [made for part in turn.parts if (made := _part(part))])
        ],
        tools=[
            messages.without_nones(
                name=tool.name,
                description=tool.description,
                input_schema=tool.schema,
                strict=tool.strict,
                cache_control=tool.cache,
            )
            for tool in chat.tools
        ]
        or None,
        tool_choice=_tool_choice(chat),
        temperature=drawn.temperature,
        top_p=drawn.top_p,
        top_k=drawn.top_k,
        stop_sequences=chat.stop or None,
        thinking=thoughts,
        output_config=output or None,
        cache_control=chat.cache,
        metadata=None if chat.user is None else {"user_id": chat.user},
        stream=True if call.stream else None,
    )


def _tool_choice(chat: Chat) -> dict[str, Any] | None:
    if not chat.tools:
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


def _part(part: messages.Part) -> dict[str, Any] | None:
    """Returns a content block, or ``None`` for the reasoning of another provider."""
    match part:
        case Text():
            return messages.without_nones(type="text", text=part.text, cache_control=part.cache)
        case Media():
            return _media(part)
        case ToolCall():
            return {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": part.arguments,
            }
        case ToolResult():
            return messages.without_nones(
                type="tool_result",
                tool_use_id=part.id,
                content=[_part(inner) for inner in part.parts] or None,
                cache_control=part.cache,
            )
        case Thought():
            if part.format != ANTHROPIC_FORMAT:
                return None
            if part.data is not None:
                return {"type": "redacted_thinking", "data": part.data}
            if part.signature is None:
                return None
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _media(part: Media) -> dict[str, Any]:
    kind = {"image": "image", "file": "document"}.get(part.kind)
    if part.url is not None:
        source = {"type": "url", "url": part.url}
    else:
        source = {"type": "base64", "media_type": part.media_type or "", "data": part.data or ""}
        if kind == "document" and part.media_type != "application/pdf":
            kind = None
    if kind is None:
        raise messages.refusal(part, "Anthropic")
    return messages.without_nones(
        type=kind, source=source, title=part.name, cache_control=part.cache
    )


def _details(block: _Block, index: int) -> list[dict[str, Any]]:
    if block.type == "thinking":
        return [
            answers.thought(ANTHROPIC_FORMAT, index, text=block.thinking, signature=block.signature)
        ]
    if block.type == "redacted_thinking":
        return [answers.thought(ANTHROPIC_FORMAT, index, data=block.data)]
    return []


def _finish(stop_reason: str) -> Finish:
    return Finish(_FINISHES.get(stop_reason, "stop"), stop_reason)


class _Reader:
    """Reads the events of one stream; those of a kind that is not known here say nothing."""

    __slots__ = ("_calls", "_id", "_is_started", "_model", "_usage")

    def __init__(self) -> None:
        self._is_started = False
        self._id: str | None = None
        self._model: str | None = None
        self._usage = _Usage()
        self._calls = answers.CallsOfBlocks()

    def read(self, data: bytes) -> Iterator[Chunk]:
        try:
            event = _decode_event(data.decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidStream("An event of the stream is malformed.") from None
        match event.type:
            case "error":
                raise parse_error(data)
            case "message_start" if event.message is not None:
                self._id, self._model = event.message.id, event.message.model
                self._usage = event.message.usage or self._usage
                yield self._chunk(Said(), usage=self._usage.of_prompt)
            case "content_block_start" if event.content_block is not None:
                yield from self._chunks(self._begun(event.index, event.content_block))
            case "content_block_delta" if event.delta is not None:
                yield from self._chunks(self._continued(event.index, event.delta))
            case "content_block_stop":
                yield from self._chunks(self._calls.ended(event.index))
            case "message_delta" if event.delta is not None:
                usage = None if event.usage is None else event.usage.counted(self._usage)
                reason = event.delta.stop_reason
                if reason is not None or usage is not None:
                    yield self._chunk(None, None if reason is None else _finish(reason), usage)
            case "message_stop":
                yield answers.done()

    def _begun(self, index: int, block: _Block) -> Said:
        if block.type == "tool_use":
            arguments = _encode(block.input).decode() if block.input else ""
            return self._calls.begun(index, block.id, block.name, arguments)
        if not (block.text or block.thinking or block.data):
            return Said()
        return Said(block.text, block.thinking, _details(block, index))

    def _continued(self, index: int, delta: _Delta) -> Said:
        match delta.type:
            case "text_delta":
                return Said(delta.text)
            case "thinking_delta" if delta.thinking:
                details = [answers.thought(ANTHROPIC_FORMAT, index, text=delta.thinking)]
                return Said(reasoning=delta.thinking, details=details)
            case "signature_delta" if delta.signature:
                details = [answers.thought(ANTHROPIC_FORMAT, index, signature=delta.signature)]
                return Said(details=details)
            case "input_json_delta":
                return self._calls.continued(index, delta.partial_json)
        return Said()

    def _chunks(self, said: Said) -> Iterator[Chunk]:
        if said:
            yield self._chunk(said)

    def _chunk(
        self, said: Said | None, finish: Finish | None = None, usage: Usage | None = None
    ) -> Chunk:
        is_first, self._is_started = not self._is_started, True
        return answers.chunk(
            said,
            is_first=is_first,
            finish=finish,
            usage=usage,
            model=self._model,
            upstream_id=self._id,
        )
