"""The places of a request body: what a filter reads there, and what a redaction may change; pure.

Filters read everything. The tree of this module is the closed list of exceptions: known names of
members, known values of enumerations, numbers of parameters, and encoded media. A value in a place
that the tree does not describe is text with all its names and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from catalog.dialects.base import Operation
from catalog.dialects.shared.replies import ANTHROPIC_FORMAT, GEMINI_FORMAT

# Numbers of parameters with fewer digits are read nowhere; a card number has at least 13.
DATA_DIGITS: Final = 12


class Redaction(Enum):
    """What a filter with the action ``redact`` does to a text that it matches."""

    REPLACE = "replace"
    # A placeholder would change the meaning of the request, so the request is blocked.
    REFUSE = "refuse"
    # Ids must stay different from each other, and acceptable to every provider.
    PSEUDONYM = "pseudonym"


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A place of a body; the items of a list are in the place of the list.

    ``members`` are the places of known members, and ``others`` is the place of the rest. ``values``
    are the texts that need no reading. ``is_parameter`` is true where a short number is a setting
    of the model, ``is_encoded`` where Base64 may stand, and ``is_data`` in the data of a tool call,
    whose names and numbers may be replaced too.
    """

    members: Mapping[str, Place] = field(default_factory=dict)
    others: Place | None = None
    values: frozenset[str] = frozenset()
    redaction: Redaction = Redaction.REPLACE
    is_parameter: bool = False
    is_encoded: bool = False
    is_data: bool = False

    def inner(self, name: str) -> Place:
        """Returns the place of a member."""
        known = self.members.get(name) or self.others
        if known is not None:
            return known
        return TEXT if self.redaction is Redaction.REPLACE and not self.is_data else self


TEXT: Final = Place()
DATA: Final = Place(is_data=True)
FIXED: Final = Place(redaction=Redaction.REFUSE)
_ID: Final = Place(redaction=Redaction.PSEUDONYM)
_PARAMETER: Final = Place(redaction=Redaction.REFUSE, is_parameter=True)
_ENCODED: Final = Place(redaction=Redaction.REFUSE, is_encoded=True)


def _one_of(values: str, **members: Place) -> Place:
    """Returns the place of an enumeration, which may also be an object with these members."""
    return Place(members=members, values=frozenset(values.split()), redaction=Redaction.REFUSE)


_CACHE_CONTROL: Final = Place({"type": _one_of("ephemeral"), "ttl": _one_of("5m 1h")})

# JSON Schema: its numbers bound values, and its names are those of a tool's arguments.
_SCHEMA_MEMBERS: Final[dict[str, Place]] = {}
_SCHEMA: Final = Place(_SCHEMA_MEMBERS, others=FIXED, redaction=Redaction.REFUSE)
_SCHEMA_MEMBERS.update(
    dict.fromkeys(("title", "description", "$comment"), TEXT)
    | dict.fromkeys(
        (
            "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
            "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
            "minContains", "maxContains",
        ),
        _PARAMETER,
    )
    | dict.fromkeys(
        (
            "items", "prefixItems", "additionalItems", "contains", "additionalProperties",
            "propertyNames", "unevaluatedItems", "unevaluatedProperties", "anyOf", "oneOf",
            "allOf", "not", "if", "then", "else",
        ),
        _SCHEMA,
    )
    | dict.fromkeys(
        ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"),
        Place(others=_SCHEMA, redaction=Redaction.REFUSE),
    )
    | dict.fromkeys(
        (
            "enum", "const", "default", "examples", "pattern", "required", "$ref", "$id",
            "$anchor", "$schema", "contentEncoding", "contentMediaType", "nullable",
            "uniqueItems", "deprecated", "readOnly", "writeOnly",
        ),
        FIXED,
    )
    | {
        "type": _one_of("array boolean integer null number object string"),
        "format": _one_of(
            "date date-time duration email hostname ipv4 ipv6 time uri uri-reference uuid"
            " int32 int64 float double binary byte"
        ),
    }
)  # fmt: skip

_FUNCTION: Final = Place(
    {"name": FIXED, "description": TEXT, "parameters": _SCHEMA, "strict": FIXED}
)
_CALLED: Final = Place({"name": FIXED, "arguments": TEXT})
_TOOL_TYPES: Final = "function custom openrouter:web_search web_search web_search_preview"
_PART: Final = Place(
    {
        "type": _one_of(
            "text image_url video_url input_audio input_video input_file file refusal image"
            " document thinking redacted_thinking reasoning tool_use tool_result input_text"
            " input_image output_text"
        ),
        "text": TEXT,
        "refusal": TEXT,
        "thinking": TEXT,
        "image_url": Place(
            {"url": _ENCODED, "detail": _one_of("auto low high original")},
            redaction=Redaction.REFUSE,
            is_encoded=True,
        ),
        "video_url": Place({"url": _ENCODED}, redaction=Redaction.REFUSE, is_encoded=True),
        "input_audio": Place(
            {
                "data": _ENCODED,
                "format": _one_of("wav mp3 flac opus pcm16 pcm24 aac ogg m4a aiff webm"),
            }
        ),
        "input_video": Place({"data": _ENCODED}),
        "file": Place({"file_data": _ENCODED, "file_id": FIXED, "filename": TEXT}),
        "source": Place(
            {
                "type": _one_of("base64 url text"),
                "data": _ENCODED,
                "url": _ENCODED,
                "media_type": FIXED,
            }
        ),
        "signature": _ENCODED,
        "cache_control": _CACHE_CONTROL,
    }
)
_REASONING_DETAIL: Final = Place(
    {
        "type": _one_of("reasoning.text reasoning.summary reasoning.encrypted"),
        "format": _one_of(
            f"{ANTHROPIC_FORMAT} {GEMINI_FORMAT} openai-responses-v1 azure-openai-responses-v1"
            " xai-responses-v1 unknown"
        ),
        "text": TEXT,
        "summary": TEXT,
        "signature": _ENCODED,
        "data": _ENCODED,
        "encrypted_content": _ENCODED,
        "id": _ID,
        "index": _PARAMETER,
    }
)
MESSAGE: Final = Place(
    {
        "role": _one_of("system developer user assistant tool"),
        "content": _PART,
        "name": TEXT,
        "refusal": TEXT,
        "reasoning": TEXT,
        "reasoning_content": TEXT,
        "reasoning_details": _REASONING_DETAIL,
        "tool_call_id": _ID,
        "tool_calls": Place(
            {
                "id": _ID,
                "type": _one_of("function custom"),
                "index": _PARAMETER,
                "function": _CALLED,
                "extra_content": Place({"google": Place({"thought_signature": _ENCODED})}),
            }
        ),
        "function_call": _CALLED,
        "audio": Place({"id": FIXED}),
        "cache_control": _CACHE_CONTROL,
    }
)

_COMMON: Final[dict[str, Place]] = {
    **dict.fromkeys(
        (
            "temperature", "top_p", "top_k", "top_a", "min_p", "frequency_penalty",
            "presence_penalty", "repetition_penalty", "length_penalty", "max_tokens",
            "max_completion_tokens", "min_tokens", "seed", "n", "best_of", "logprobs",
            "top_logprobs", "logit_bias", "stream", "stream_options", "dimensions",
            "parallel_tool_calls", "include_reasoning", "echo", "store",
        ),
        _PARAMETER,
    ),
    "stop": FIXED,
    "metadata": TEXT,
    "tools": Place(
        {"type": _one_of(_TOOL_TYPES), "function": _FUNCTION, "cache_control": _CACHE_CONTROL}
    ),
    "functions": _FUNCTION,
    "function_call": _one_of("auto none", name=FIXED),
    "tool_choice": _one_of(
        "auto none required any", type=_one_of(_TOOL_TYPES), function=Place({"name": FIXED})
    ),
    "response_format": Place(
        {
            "type": _one_of("text json_object json_schema grammar python"),
            "json_schema": Place(
                {"name": FIXED, "description": TEXT, "schema": _SCHEMA, "strict": FIXED},
                redaction=Redaction.REFUSE,
            ),
        },
        redaction=Redaction.REFUSE,
    ),
    "prediction": Place({"type": _one_of("content"), "content": _PART}),
    "reasoning": Place(
        {
            "effort": _one_of("none minimal low medium high xhigh max"),
            "summary": _one_of("auto concise detailed"),
            "max_tokens": _PARAMETER,
        },
        redaction=Redaction.REFUSE,
    ),
    "reasoning_effort": _one_of("none minimal low medium high xhigh max"),
    "verbosity": _one_of("low medium high xhigh max"),
    "modalities": _one_of("text image audio video"),
    "service_tier": _one_of("auto default flex priority scale"),
    "encoding_format": _one_of("float base64"),
    "input_type": FIXED,
    "audio": Place({"voice": FIXED, "format": _one_of("wav mp3 flac opus pcm16 aac")}),
    "cache_control": _CACHE_CONTROL,
    "web_search_options": Place(
        {
            "search_context_size": _one_of("low medium high"),
            "user_location": Place({"type": _one_of("approximate")}),
        }
    ),
}  # fmt: skip
# The prompt of each operation. Numbers in it are tokens, which only a filter without effect passes.
PROMPTS: Final[Mapping[Operation, Mapping[str, Place]]] = {
    Operation.CHAT: {"messages": MESSAGE},
    Operation.TEXT: {"prompt": Place(is_parameter=True), "suffix": TEXT},
    Operation.EMBEDDINGS: {"input": Place({"content": _PART}, is_parameter=True)},
    Operation.SPEECH: {
        "input": TEXT,
        "instructions": TEXT,
    },
    Operation.TRANSCRIPTION: {"prompt": TEXT, "keyterms": TEXT},
    Operation.RERANK: {"query": TEXT, "documents": Place({"text": TEXT, "image": _ENCODED})},
    Operation.IMAGES: {"prompt": TEXT},
}
_IMAGES: Final[Mapping[str, Place]] = {
    **dict.fromkeys(("input_references", "mask", "markup"), _PART),
    **dict.fromkeys(
        ("output_compression", "partial_images", "frame_count", "frame_duration_ms"), _PARAMETER
    ),
    **dict.fromkeys(("size", "resolution", "aspect_ratio", "svg"), FIXED),
    "quality": _one_of("auto low medium high xhigh max standard hd"),
    "output_format": _one_of("png jpeg webp svg gif"),
    "background": _one_of("auto transparent opaque"),
    "input_fidelity": _one_of("high low"),
    "moderation": _one_of("low auto"),
    "style": _one_of("vivid natural"),
    "complexity": _one_of("low medium high"),
    "response_format": _one_of("url b64_json"),
}
# Fields that other operations do not have, or use for something else.
_OWN: Final[Mapping[Operation, Mapping[str, Place]]] = {
    Operation.IMAGES: _IMAGES,
    Operation.SPEECH: {
        "voice": Place({"id": FIXED}, redaction=Redaction.REFUSE),
        "response_format": _one_of("mp3 opus aac flac wav pcm"),
        "speed": _PARAMETER,
    },
    Operation.TRANSCRIPTION: {
        "language": FIXED,
        "languages": FIXED,
        "response_format": _one_of("json verbose_json diarized_json"),
        "timestamp_granularities": _one_of("segment word"),
        "include": _one_of("logprobs"),
        "chunking_strategy": _one_of("auto", type=_one_of("server_vad")),
        "known_speaker_references": _ENCODED,
    },
}
BODIES: Final[Mapping[Operation, Mapping[str, Place]]] = {
    operation: {**_COMMON, **_OWN.get(operation, {}), **prompts}
    for operation, prompts in PROMPTS.items()
}
