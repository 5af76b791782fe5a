"""The bodies of inference requests, as msgspec checks them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from catalog.dialects.base import Operation
from inference.requests.limits import (
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TOOLS,
)

SESSION_LENGTH: Final = 256
_Number = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Slugs = Annotated[list[_Slug], msgspec.Meta(max_length=32)]


Parts = Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(max_length=MAX_PARTS)]
_CONTENTS: Final[list[dict[str, Any]]] = [
    {"type": "string"},
    {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {}},
        "maxItems": MAX_PARTS,
    },
]
# A text, or parts. It stays raw, because decoding a long text takes up to four times its size;
# ``sizes.read_contents`` checks it.
Content = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"anyOf": _CONTENTS})]
_OptionalContent = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"anyOf": [*_CONTENTS, {"type": "null"}], "default": None}),
]


class _UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    content: Content


class _SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    content: Content


class _DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    content: Content


class _ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    content: _OptionalContent = msgspec.field(default_factory=msgspec.Raw)


_Message = _UserMessage | _SystemMessage | _DeveloperMessage | _ToolMessage | AssistantMessage


_Amount = (
    Annotated[float, msgspec.Meta(ge=0)]
    | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?\Z")]
)


Order = Literal["price", "throughput", "latency", "exacto"]
Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32",
    "unknown",
]  # fmt: skip
_Measure = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class MaxPrice(msgspec.Struct):
    """The highest acceptable prices: USD per million tokens, and per request, image or second.

    The catalogue has no prices for audio, so no endpoint exceeds a limit on audio.
    """

    prompt: _Amount | None = None
    completion: _Amount | None = None
    request: _Amount | None = None
    image: _Amount | None = None
    audio: _Amount | None = None


class Percentiles(msgspec.Struct):
    """Thresholds for percentiles of an endpoint's recent requests."""

    p50: _Measure | None = None
    p75: _Measure | None = None
    p90: _Measure | None = None
    p99: _Measure | None = None


class Sorting(msgspec.Struct):
    """The measure that sorts endpoints, and whether models keep their order."""

    by: Order | None = None
    partition: Literal["model", "none"] | None = None


_Options = dict[_Slug, dict[str, msgspec.Raw]]


class ProviderPreferences(msgspec.Struct):
    """The ``provider`` object: which providers may serve the request, and in which order."""

    order: _Slugs | None = None
    only: _Slugs | None = None
    ignore: _Slugs | None = None
    allow_fallbacks: bool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: bool | None = None
    max_price: MaxPrice | None = None
    quantizations: Annotated[list[Quantization], msgspec.Meta(max_length=32)] | None = None
    require_parameters: bool | None = None
    enforce_distillable_text: bool | None = None
    sort: Order | Sorting | None = None
    preferred_max_latency: _Measure | Percentiles | None = None
    preferred_min_throughput: _Measure | Percentiles | None = None
    options: Annotated[_Options, msgspec.Meta(max_length=32)] | None = None


class Plugin(msgspec.Struct):
    id: str
    enabled: bool | None = None


class _Function(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[a-zA-Z0-9_-]+\Z")]


class Tool(msgspec.Struct):
    type: Any = None
    function: _Function | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    exclude: bool | None = None


_Metadata = dict[
    Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]
]


class _Common(msgspec.Struct, kw_only=True):
    model: _Slug | None = None
    models: _Slugs | None = None
    provider: ProviderPreferences | None = None
    plugins: Annotated[list[Plugin], msgspec.Meta(max_length=32)] | None = None
    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    session_id: Annotated[str, msgspec.Meta(max_length=SESSION_LENGTH)] | None = None
    stream: bool | None = None
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    frequency_penalty: _Number | None = None
    presence_penalty: _Number | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=MAX_STOPS)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None


class ChatRequest(_Common, kw_only=True):
    """The body of ``POST /chat/completions``; other fields are sent upstream unchanged."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: _Tokens | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    metadata: Annotated[_Metadata, msgspec.Meta(max_length=16)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, msgspec.Raw] | None = None
    reasoning: _Reasoning | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None


class TextRequest(_Common, kw_only=True):
    """The body of ``POST /completions``."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


class EmbeddingsItem(msgspec.Struct):
    content: Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(min_length=1)]


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /embeddings``: texts, tokens, or items with parts of several kinds."""

    input: str | Annotated[list[str | int | list[int] | EmbeddingsItem], msgspec.Meta(min_length=1)]
    model: _Slug
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    input_type: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    provider: ProviderPreferences | None = None
    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    session_id: Annotated[str, msgspec.Meta(max_length=SESSION_LENGTH)] | None = None
    stream: bool | None = None


Body = ChatRequest | TextRequest | EmbeddingsRequest
SHAPES: Final[dict[Operation, type[Body]]] = {
    Operation.CHAT: ChatRequest,
    Operation.TEXT: TextRequest,
    Operation.EMBEDDINGS: EmbeddingsRequest,
}
