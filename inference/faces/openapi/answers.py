"""What the answers of several routes have in common: identity, usage, cost and routing metadata."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.faces.openapi.shapes import Open, any_of

GenerationId = Annotated[str, msgspec.Meta(description="Our generation id, `gen-…`.")]
UnixSeconds = Annotated[int, msgspec.Meta(description="Unix seconds.")]
AnsweringModel = Annotated[
    str, msgspec.Meta(description="The public slug of the model that answered.")
]
ProviderName = Annotated[str, msgspec.Meta(description="Display name of the provider.")]
Cost = Annotated[float, msgspec.Meta(description="The cost to the credits, in USD.")]
Byok = Annotated[
    bool, msgspec.Meta(description="The organization's own credential paid the provider.")
]
FinishReason = Annotated[
    str | None,
    msgspec.Meta(description="`stop`, `length`, `tool_calls`, `content_filter` or `error`."),
]
# The envelope of an error, which the control plane declares.
ErrorMember = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ErrorDetail"})
]


class CacheControl(msgspec.Struct):
    """The end of a prefix of the prompt that the provider shall cache."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | UnsetType = UNSET


class CostDetails(Open):
    """What the provider charges for the answer, in USD."""

    upstream_inference_cost: float
    upstream_inference_prompt_cost: float
    upstream_inference_completions_cost: float
    server_tool_cost: float | UnsetType = UNSET
    rules: list[dict[str, Any]] | UnsetType = UNSET


class PromptTokensDetails(Open):
    """Parts of the prompt's tokens, as far as the provider counts them."""

    cached_tokens: int | UnsetType = UNSET
    cache_write_tokens: int | UnsetType = UNSET
    audio_tokens: int | UnsetType = UNSET
    video_tokens: int | UnsetType = UNSET


class CompletionTokensDetails(Open):
    """Parts of the answer's tokens, as far as the provider counts them."""

    reasoning_tokens: int | UnsetType = UNSET
    audio_tokens: int | UnsetType = UNSET
    image_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class ServerToolUse(Open):
    """How often the provider ran tools."""

    web_search_requests: int | UnsetType = UNSET


class CompletionUsage(Open):
    """The tokens of an answer, and its cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cost: Cost | UnsetType = UNSET
    is_byok: Byok | UnsetType = UNSET
    cost_details: CostDetails | UnsetType = UNSET
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    server_tool_use_details: ServerToolUse | UnsetType = UNSET


class AvailableEndpoint(Open):
    """An endpoint that could serve the request."""

    provider: str
    model: str
    selected: bool
    drifted_at: str | UnsetType = UNSET


class AvailableEndpoints(Open):
    """The endpoints of the model, and those of them that could serve the request."""

    total: int
    available: list[AvailableEndpoint]


class RoutingAttempt(Open):
    """A call of an endpoint, with the HTTP status of its answer."""

    provider: str
    model: str
    status: int | None


class PipelineStage(Open):
    """A step that changed the request or the selection of endpoints."""

    type: str
    name: str
    summary: str
    data: dict[str, Any]


class RoutingMetadata(Open):
    """How the request was routed, for callers who send `X-OpenRouter-Metadata: enabled`."""

    requested: str
    strategy: str
    region: str | None
    summary: str
    attempt: int
    is_byok: bool
    endpoints: AvailableEndpoints
    attempts: list[RoutingAttempt]
    pipeline: list[PipelineStage] | UnsetType = UNSET
    generation_time: Annotated[int, msgspec.Meta(description="Milliseconds.")] | UnsetType = UNSET


class EmbeddingsUsage(Open):
    """The tokens of embeddings, and their cost."""

    prompt_tokens: int
    total_tokens: int
    cost: Cost | UnsetType = UNSET
    is_byok: Byok | UnsetType = UNSET
    cost_details: CostDetails | UnsetType = UNSET
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET


Vector = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        extra_json_schema=any_of(
            {"type": "array", "items": {"type": "number"}},
            {"type": "string", "description": "Base64."},
        )
    ),
]


class Embedding(Open):
    """The vector of one input."""

    object: Literal["embedding"]
    embedding: Vector
    index: int


class EmbeddingsResponse(Open):
    """The vectors of all inputs, in their order."""

    object: Literal["list"]
    model: AnsweringModel
    data: list[Embedding]
    id: GenerationId | UnsetType = UNSET
    provider: ProviderName | UnsetType = UNSET
    usage: EmbeddingsUsage | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


class RankedDocument(Open):
    """A document of the request."""

    text: str | UnsetType | None = UNSET
    image: str | UnsetType | None = UNSET


class RerankResult(Open):
    """The relevance of the document with this index."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankUsage(Open):
    """What a rerank used, and its cost."""

    search_units: int | UnsetType = UNSET
    total_tokens: int | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET
    is_byok: Byok | UnsetType = UNSET
    cost_details: CostDetails | UnsetType = UNSET


class RerankResponse(Open):
    """The most relevant documents first."""

    results: list[RerankResult]
    model: AnsweringModel
    id: GenerationId | UnsetType = UNSET
    provider: ProviderName | UnsetType = UNSET
    usage: RerankUsage | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET
