"""Chat completions: the body of a request, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec

from catalog.dialects.shared.raw import count_characters, first_byte, is_null, read_text
from catalog.tokens import UNSTATED_LIMITS, TextCounts
from inference.requests.limits import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from inference.requests.operations.completions import PARAMETERS
from inference.requests.problems import explain_decode_error, field_error
from inference.requests.rows import (
    CHARACTERS_PER_TOKEN,
    Demands,
    Fields,
    RequestRow,
    add_value,
    count_texts,
    find_media,
    name_models,
)
from inference.requests.schemas import Completion, Parts, Tokens

_CONTENTS: Final[list[dict[str, Any]]] = [
    {"type": "string"},
    {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {}},
        "maxItems": MAX_PARTS,
    },
]
# A text, or parts. It stays raw, because decoding a long text takes up to four times its size;
# ``_find_parts`` checks it.
_Content = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"anyOf": _CONTENTS})]
_OptionalContent = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"anyOf": [*_CONTENTS, {"type": "null"}], "default": None}),
]


class _UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    content: _Content


class _SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    content: _Content


class _DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    content: _Content


class _ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    content: _Content
    tool_call_id: str


class _AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    content: _OptionalContent = msgspec.field(default_factory=msgspec.Raw)
    images: msgspec.Raw = msgspec.Raw()


_Message = _UserMessage | _SystemMessage | _DeveloperMessage | _ToolMessage | _AssistantMessage


class _Function(msgspec.Struct):
    # A target that stops at 64 gets a shorter name, which its answers do not show.
    name: Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[a-zA-Z0-9_-]+\Z")]


class ChatTool(msgspec.Struct):
    type: Any = None
    function: _Function | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    exclude: bool | None = None


_Modality = Annotated[str, msgspec.Meta(min_length=1, max_length=32)]
_Metadata = dict[
    Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]
]


class ChatRequest(Completion, kw_only=True):
    """The body of ``POST /chat/completions``; other fields are sent upstream unchanged."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    metadata: Annotated[_Metadata, msgspec.Meta(max_length=16)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[ChatTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, msgspec.Raw] | None = None
    reasoning: _Reasoning | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    modalities: Annotated[list[_Modality], msgspec.Meta(max_length=16)] | None = None


_MESSAGE_TOKENS: Final = 4
_PART_TOKENS: Final = 1_024
# OpenAI's names for web search begin with ``web_search``; they all mean this tool.
_WEB_SEARCH: Final = "openrouter:web_search"


class _Format(msgspec.Struct):
    # Raw: a preset of an earlier release may have a number out of range.
    type: msgspec.Raw = msgspec.Raw()


class _SizedMessage(msgspec.Struct):
    """The members of any message that are text for a model."""

    content: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()


_NOTHING: Final = msgspec.Raw()
_NO_NAMES: Final[frozenset[str]] = frozenset()
_decode_format = msgspec.json.Decoder(_Format).decode
_decode_parts = msgspec.json.Decoder(Parts).decode
_decode_content = msgspec.json.Decoder(str | Parts).decode
_decode_messages = msgspec.json.Decoder(list[_SizedMessage]).decode


def _check(request: ChatRequest, fields: Fields) -> None:
    if "reasoning_effort" in fields:
        _check_effort(request)


def _check_effort(request: ChatRequest) -> None:
    """Raises :class:`InvalidRequest` when the two members for the effort contradict each other."""
    effort = request.reasoning and request.reasoning.effort
    if effort and request.reasoning_effort and effort != request.reasoning_effort:
        raise field_error("reasoning_effort", "Contradicts reasoning.effort.")


def _count_choices(request: ChatRequest) -> int:
    return request.n or 1


def _find_parts(request: ChatRequest) -> Iterable[dict[str, msgspec.Raw]]:
    """Returns the parts of the messages that are not text.

    Raises :class:`InvalidRequest` for a content that is neither a text nor a list of parts.
    """
    contents = []
    for index, message in enumerate(request.messages):
        content = message.content
        kind = first_byte(content)
        if kind == b'"' or (isinstance(message, _AssistantMessage) and is_null(content)):
            continue
        try:
            contents.append((_decode_parts if kind == b"[" else _decode_content)(content))
        except msgspec.ValidationError as exc:
            place = f"messages[{index}].content"
            raise explain_decode_error(str(exc), within=place) from None
    return find_media(contents) if contents else ()


def _find_drawn(request: ChatRequest) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the pictures of earlier answers; what is malformed is none."""
    for message in request.messages:
        if isinstance(message, _AssistantMessage) and first_byte(message.images) == b"[":
            with suppress(msgspec.ValidationError):
                yield from _decode_parts(message.images)


def _read_demands(request: ChatRequest) -> Demands:
    reasoning = request.reasoning
    return Demands(
        # A provider may apply either limit.
        max(request.max_tokens or 0, request.max_completion_tokens or 0) or None,
        # A text explains the tools to the model.
        added_tokens=0 if request.tools is None else UNSTATED_LIMITS.tools,
        outputs=_NO_NAMES if request.modalities is None else frozenset(request.modalities),
        tools=_name_tools(request.tools) if request.tools else _NO_NAMES,
        # ``include_reasoning`` is the older name.
        is_reasoning_hidden=request.include_reasoning is False
        or (reasoning is not None and reasoning.exclude is True),
    )


def _name_tools(tools: list[ChatTool]) -> frozenset[str]:
    # A type that is not text names no tool; the upstream refuses it.
    names = {tool.type for tool in tools if isinstance(tool.type, str)}
    if any(name.startswith("web_search") for name in names):
        names.add(_WEB_SEARCH)
    return frozenset(names - {"function"})


def _imply_parameters(fields: Fields) -> Iterable[str]:
    """Yields ``structured_outputs`` for a JSON schema."""
    raw = fields.get("response_format", _NOTHING)
    if first_byte(raw) == b"{" and read_text(_decode_format(raw).type) == "json_schema":
        yield "structured_outputs"


def _count_text(fields: Fields) -> TextCounts:
    """Counts the text of the prompt; tools, tool calls and a schema are text too.

    The role and the marks of a message are four tokens, and a part that is not text has 1,024, as
    an image of common size has, however large its encoding is.
    """
    messages = _decode_messages(fields["messages"])
    has_schema = any(_imply_parameters(fields))
    counts = count_texts(fields.get("tools", b""), fields["response_format"] if has_schema else b"")
    for message in messages:
        counts.tokens += _MESSAGE_TOKENS
        add_value(counts, message.tool_calls)
        if first_byte(message.content) != b"[":
            add_value(counts, message.content)
            continue
        for part in _decode_parts(message.content):
            if "text" in part:
                add_value(counts, part["text"])
            else:
                counts.tokens += _PART_TOKENS
    return counts


def _count_least_tokens(fields: Fields) -> int:
    count = sum(map(_count_message, _decode_messages(fields["messages"])))
    return (count + count_characters(fields.get("tools", b""))) // CHARACTERS_PER_TOKEN


def _count_message(message: _SizedMessage) -> int:
    count = count_characters(message.tool_calls)
    if first_byte(message.content) != b"[":
        return count + count_characters(message.content)
    return count + sum(
        count_characters(part.get("text", b"")) for part in _decode_parts(message.content)
    )


ROW: Final = RequestRow(
    shape=ChatRequest,
    models=name_models,
    check=_check,
    answers=_count_choices,
    demands=_read_demands,
    bound_names=("max_tokens", "max_completion_tokens"),
    parts=_find_parts,
    drawn=_find_drawn,
    count_text=_count_text,
    least_tokens=_count_least_tokens,
    parameters=PARAMETERS,
    implied_parameters=_imply_parameters,
)
