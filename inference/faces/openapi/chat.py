"""Chat and text completions for the document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.faces.openapi.answers import (
    AnsweringModel,
    CacheControl,
    CompletionUsage,
    ErrorMember,
    FinishReason,
    GenerationId,
    ProviderName,
    RoutingMetadata,
    UnixSeconds,
)
from inference.faces.openapi.shapes import Open, any_of, nullable, refine
from inference.requests.limits import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from inference.requests.operations import chat, text

Effort = Literal["max", "xhigh", "high", "medium", "low", "minimal", "none"]
FunctionName = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[a-zA-Z0-9_-]+\Z")]


class ChatTextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A text."""

    text: str
    cache_control: CacheControl | UnsetType = UNSET


class ChatImageUrl(msgspec.Struct):
    """A URL, or the image itself as a data URL."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | UnsetType = UNSET


class ChatImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ChatImageUrl
    cache_control: CacheControl | UnsetType = UNSET


class ChatAudioData(msgspec.Struct):
    """Audio in Base64, and its format, for instance `wav`."""

    data: str
    format: str


class ChatAudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    """Audio."""

    input_audio: ChatAudioData


class ChatFileData(msgspec.Struct):
    """A URL, or the file itself as a data URL."""

    file_data: str
    filename: str | UnsetType = UNSET


class ChatFilePart(msgspec.Struct, tag_field="type", tag="file"):
    """A document."""

    file: ChatFileData
    cache_control: CacheControl | UnsetType = UNSET


class ChatVideoUrl(msgspec.Struct):
    """A URL, or the video itself as a data URL."""

    url: str


class ChatVideoPart(msgspec.Struct, tag_field="type", tag="video_url"):
    """A video."""

    video_url: ChatVideoUrl


_Part = ChatTextPart | ChatImagePart | ChatAudioPart | ChatFilePart | ChatVideoPart
_Content = str | Annotated[list[_Part], msgspec.Meta(max_length=MAX_PARTS)]


class ChatCalledFunction(msgspec.Struct):
    """The name of a function, and its arguments as JSON in a text."""

    name: str
    arguments: str


class ChatToolCall(Open):
    """A call of a function by the model."""

    id: str
    type: Literal["function"]
    function: ChatCalledFunction


class ReasoningDetail(Open):
    """A part of the model's reasoning, which is to be sent back unchanged.

    Its type is `reasoning.text`, `reasoning.summary` or `reasoning.encrypted`.
    """

    type: str
    text: str | UnsetType | None = UNSET
    summary: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    signature: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET
    format: str | UnsetType | None = UNSET
    index: int | UnsetType = UNSET


class ChatUserMessage(msgspec.Struct, tag_field="role", tag="user"):
    """A message of the user."""

    content: _Content
    name: str | UnsetType = UNSET


class ChatSystemMessage(ChatUserMessage, tag="system"):
    """Instructions for the model."""


class ChatDeveloperMessage(ChatUserMessage, tag="developer"):
    """Instructions for the model, by their newer name."""


class ChatToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    """The result of a tool's call."""

    content: _Content
    tool_call_id: str


class ChatAssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    """An earlier answer of the model."""

    content: _Content | None = None
    name: str | UnsetType = UNSET
    refusal: str | UnsetType | None = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_details: list[ReasoningDetail] | UnsetType = UNSET
    images: list[ChatImagePart] | UnsetType = UNSET


class ChatFunction(msgspec.Struct):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: FunctionName
    description: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class ChatFunctionTool(msgspec.Struct, tag_field="type", tag="function"):
    """A tool that the caller runs."""

    function: ChatFunction
    cache_control: CacheControl | UnsetType = UNSET


class ChatServerTool(Open):
    """A tool that a provider runs, for instance `web_search`."""

    type: str


class ChatFunctionChoice(msgspec.Struct):
    """The name of a function."""

    name: str


class ChatNamedToolChoice(msgspec.Struct, tag_field="type", tag="function"):
    """Demands a call of this function."""

    function: ChatFunctionChoice


class ChatServerToolChoice(msgspec.Struct):
    """Demands the use of a tool that a provider runs."""

    type: str


class ChatTextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Any text."""


class ChatJsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class ChatJsonSchema(msgspec.Struct):
    """A JSON schema, and its name."""

    name: FunctionName
    schema: dict[str, Any] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class ChatJsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: ChatJsonSchema


class ChatReasoning(msgspec.Struct):
    """How much the model thinks before it answers, and whether the answer shows it."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ChatStreamOptions(msgspec.Struct):
    """Every stream ends with its usage, so this has no effect."""

    include_usage: bool | None = None


class ChatPrediction(msgspec.Struct):
    """A text that the answer will mostly repeat."""

    type: Literal["content"]
    content: _Content


_Choice = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        extra_json_schema=nullable(
            any_of(
                {"type": "string", "enum": ["none", "auto", "required"]},
                ChatNamedToolChoice,
                ChatServerToolChoice,
            )
        )
    ),
]
_Tool = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema=any_of(ChatFunctionTool, ChatServerTool))
]
_Message = (
    ChatUserMessage
    | ChatSystemMessage
    | ChatDeveloperMessage
    | ChatToolMessage
    | ChatAssistantMessage
)
ChatRequest: Final = refine(
    chat.ChatRequest,
    required={
        "messages": Annotated[list[_Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)],
    },
    optional={
        "tools": Annotated[list[_Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None,
        "tool_choice": _Choice,
        "response_format": ChatTextFormat | ChatJsonObjectFormat | ChatJsonSchemaFormat | None,
        "reasoning": ChatReasoning | None,
        "reasoning_effort": Effort | None,
        "stream_options": ChatStreamOptions | None,
        "prediction": ChatPrediction | None,
        "logit_bias": dict[str, float] | None,
        "top_a": float | None,
        "verbosity": Literal["low", "medium", "high", "max"] | None,
        "prompt_cache_key": str | None,
        "cache_control": CacheControl | None,
        "image_config": dict[str, Any] | None,
    },
)
TextRequest: Final = refine(
    text.TextRequest, optional={"logit_bias": dict[str, float] | None, "top_k": int | None}
)


class ChatUrlCitation(Open):
    """A source, and the part of the answer that it supports."""

    url: str
    title: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    start_index: int | UnsetType = UNSET
    end_index: int | UnsetType = UNSET


class ChatAnnotation(Open):
    """A remark on the answer; one of the type `url_citation` names a source."""

    type: str
    url_citation: ChatUrlCitation | UnsetType = UNSET


class ChatPicture(Open):
    """An image that the model made, as a data URL."""

    image_url: ChatImageUrl
    type: str | UnsetType = UNSET


class ChatAnswer(Open):
    """The model's answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | list[dict[str, Any]] | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_details: list[ReasoningDetail] | UnsetType | None = UNSET
    tool_calls: list[ChatToolCall] | UnsetType | None = UNSET
    annotations: list[ChatAnnotation] | UnsetType | None = UNSET
    images: list[ChatPicture] | UnsetType | None = UNSET
    audio: dict[str, Any] | UnsetType | None = UNSET


class TopLogprob(Open):
    """A token that was possible here, and its logarithmic probability."""

    token: str
    logprob: float
    bytes: list[int] | UnsetType | None = UNSET


class TokenLogprob(Open):
    """A token of the answer, and its logarithmic probability."""

    token: str
    logprob: float
    bytes: list[int] | UnsetType | None = UNSET
    top_logprobs: list[TopLogprob] | UnsetType = UNSET


class ChatLogprobs(Open):
    """The logarithmic probabilities of the answer's tokens."""

    content: list[TokenLogprob] | UnsetType | None = UNSET
    refusal: list[TokenLogprob] | UnsetType | None = UNSET


class ChatChoice(Open):
    """One of the answers to the request."""

    index: int
    message: ChatAnswer
    finish_reason: FinishReason
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    native_finish_reason: str | UnsetType | None = UNSET


class ChatResult(Open):
    """A whole answer."""

    id: GenerationId
    object: Literal["chat.completion"]
    created: UnixSeconds
    model: AnsweringModel
    choices: list[ChatChoice]
    system_fingerprint: str | None
    usage: CompletionUsage
    provider: ProviderName | UnsetType = UNSET
    service_tier: str | UnsetType | None = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


class ChatFunctionDelta(Open):
    """A piece of a function's name and arguments."""

    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET


class ChatToolCallDelta(Open):
    """A piece of a call; those with the same index belong together."""

    index: int
    id: str | UnsetType | None = UNSET
    type: str | UnsetType | None = UNSET
    function: ChatFunctionDelta | UnsetType = UNSET


class ChatDelta(Open):
    """A piece of the model's answer."""

    role: str | UnsetType | None = UNSET
    content: str | list[dict[str, Any]] | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_details: list[ReasoningDetail] | UnsetType | None = UNSET
    tool_calls: list[ChatToolCallDelta] | UnsetType | None = UNSET
    annotations: list[ChatAnnotation] | UnsetType | None = UNSET
    images: list[ChatPicture] | UnsetType | None = UNSET
    audio: dict[str, Any] | UnsetType | None = UNSET


class ChatStreamChoice(Open):
    """A piece of one of the answers to the request."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | UnsetType = UNSET
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    native_finish_reason: str | UnsetType | None = UNSET


class ChatStreamChunk(Open):
    """An event of a stream; the last one has the usage, or the error that ended the stream."""

    id: GenerationId
    object: Literal["chat.completion.chunk"]
    created: UnixSeconds
    model: AnsweringModel
    choices: list[ChatStreamChoice]
    provider: ProviderName | UnsetType = UNSET
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: str | UnsetType | None = UNSET
    error: ErrorMember | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


class CompletionChoice(Open):
    """One of the texts."""

    text: str
    index: int
    finish_reason: FinishReason | UnsetType = UNSET
    logprobs: dict[str, Any] | UnsetType | None = UNSET


class CompletionResponse(Open):
    """A whole answer, or an event of a stream."""

    id: GenerationId
    object: Literal["text_completion"]
    created: UnixSeconds
    model: AnsweringModel
    choices: list[CompletionChoice]
    provider: ProviderName | UnsetType = UNSET
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    error: ErrorMember | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


# Those that no other type names, only a union.
CHAT_SHAPES: Final = (
    ChatFunctionTool, ChatServerTool, ChatNamedToolChoice, ChatServerToolChoice, ChatResult,
    ChatStreamChunk, CompletionResponse,
)  # fmt: skip
