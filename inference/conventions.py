"""Names of telemetry for generative AI, as the newest registries of OpenTelemetry have them.

The names have moved from OpenTelemetry's own registry to one of generative AI, which its package
`opentelemetry-util-genai` follows: https://github.com/open-telemetry/semantic-conventions-genai.
What no registry has, such as costs, has a name of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
STREAM: Final = "gen_ai.request.stream"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
CONVERSATION: Final = "gen_ai.conversation.id"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
# Parts of the tokens by their modality, by the member of a usage.
TOKENS_OF_UNITS: Final[Mapping[str, str]] = {
    "audio": "gen_ai.usage.audio.input_tokens",
    "image_prompt": "gen_ai.usage.image.input_tokens",
    "audio_output": "gen_ai.usage.audio.output_tokens",
    "image_output": "gen_ai.usage.image.output_tokens",
}
OWN_PROVIDER: Final = "causeway.provider.slug"
OWN_COST: Final = "causeway.cost.total_usd"

# Prometheus writes dots as underscores, and the unit at the end.
DURATION_METRIC: Final = "gen_ai_client_operation_duration_seconds"
FIRST_CHUNK_METRIC: Final = "gen_ai_client_operation_time_to_first_chunk_seconds"
TOKENS_METRIC: Final = "gen_ai_client_token_usage"
SECONDS: Final = tuple(0.01 * 2**step for step in range(14))
TOKENS: Final = tuple(4.0**step for step in range(14))
INPUT: Final = "input"
OUTPUT: Final = "output"

# The registry's values of ``gen_ai.provider.name``; one that it lacks has its slug.
_OF_SLUGS: Final[Mapping[str, str]] = {
    "amazon-bedrock": "aws.bedrock",
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "google-ai-studio": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "groq": "groq",
    "mistral": "mistral_ai",
    "openai": "openai",
    "perplexity": "perplexity",
    "xai": "x_ai",
}
# A provider of an operator or a tenant is known by the service whose format it speaks.
_OF_DIALECTS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
}


def name_provider(slug: str, dialect: str | None) -> str:
    """Returns the registry's name of a provider; a second account such as ``xai-2`` has it too."""
    base, _, number = slug.rpartition("-")
    known = _OF_SLUGS.get(base if number.isdecimal() else slug)
    return known or _OF_DIALECTS.get(dialect or "") or slug


def describe_units(units: Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the attributes of tokens by their modality."""
    counts = units or {}
    return {name: counts[unit] for unit, name in TOKENS_OF_UNITS.items() if counts.get(unit)}
