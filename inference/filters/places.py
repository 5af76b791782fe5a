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

from catalog.capabilities import NativeFormat
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
    whose names and numbers may be replaced too. ``has_texts`` is true where texts beside each other
    are parts of one, and ``is_distinct`` where the items of a list have to differ.
    """

    members: Mapping[str, Place] = field(default_factory=dict)
    others: Place | None = None
    values: frozenset[str] = frozenset()
    redaction: Redaction = Redaction.REPLACE
    is_parameter: bool = False
    is_encoded: bool = False
    is_data: bool = False
    has_texts: bool = False
    is_distinct: bool = False

    def inner(self, name: str) -> Place:
        """Returns the place of a member."""
        known = self.members.get(name) or self.others
        if known is not None:
            return known
        return TEXT if self.redaction is Redaction.REPLACE and not self.is_data else self


TEXT: Final = Place()
DATA: Final = Place(is_data=True)
# The values that a schema names: the model may answer with a placeholder instead of one.
VALUES: Final = Place(is_data=True, is_distinct=True)
FIXED: Final = Place(redaction=Redaction.REFUSE)
ID: Final = Place(redaction=Redaction.PSEUDONYM)
PARAMETER: Final = Place(redaction=Redaction.REFUSE, is_parameter=True)
ENCODED: Final = Place(redaction=Redaction.REFUSE, is_encoded=True)


def one_of(values: str, **members: Place) -> Place:
    """Returns the place of an enumeration, which may also be an object with these members."""
    return Place(members=members, values=frozenset(values.split()), redaction=Redaction.REFUSE)


CACHE_CONTROL: Final = Place({"type": one_of("ephemeral"), "ttl": one_of("5m 1h")})

# JSON Schema: its numbers bound values, and its names are those of a tool's arguments.
_SCHEMA_MEMBERS: Final[dict[str, Place]] = {}
SCHEMA: Final = Place(_SCHEMA_MEMBERS, others=FIXED, redaction=Redaction.REFUSE)
_SCHEMA_MEMBERS.update(
    dict.fromkeys(("title", "description", "$comment"), TEXT)
    | dict.fromkeys(
        (
            "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
            "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
            "minContains", "maxContains",
        ),
        PARAMETER,
    )
    | dict.fromkeys(
        (
            "items", "prefixItems", "additionalItems", "contains", "additionalProperties",
            "propertyNames", "unevaluatedItems", "unevaluatedProperties", "anyOf", "oneOf",
            "allOf", "not", "if", "then", "else",
        ),
        SCHEMA,
    )
    | dict.fromkeys(("enum", "const", "default", "example", "examples"), VALUES)
    | dict.fromkeys(
        ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"),
        Place(others=SCHEMA, redaction=Redaction.REFUSE),
    )
    | dict.fromkeys(
        (
            "pattern", "required", "$ref", "$id", "$anchor", "$schema", "contentEncoding",
            "contentMediaType", "nullable", "uniqueItems", "deprecated", "readOnly", "writeOnly",
        ),
        FIXED,
    )
    | {
        "type": one_of("array boolean integer null number object string"),
        "format": one_of(
            "date date-time duration email hostname ipv4 ipv6 time uri uri-reference uuid"
            " int32 int64 float double binary byte"
        ),
    }
)  # fmt: skip

_FUNCTION: Final = Place(
    {"name": FIXED, "description": TEXT, "parameters": SCHEMA, "strict": FIXED}
)
_CALLED: Final = Place({"name": FIXED, "arguments": TEXT})
_TOOL_TYPES: Final = "function custom openrouter:web_search web_search web_search_preview"
_PART: Final = Place(
    {
        "type": one_of(
            "text image_url video_url input_audio input_video input_file file refusal image"
            " document thinking redacted_thinking reasoning tool_use tool_result input_text"
            " input_image output_text"
        ),
        "text": TEXT,
        "refusal": TEXT,
        "thinking": TEXT,
        "image_url": Place(
            {"url": ENCODED, "detail": one_of("auto low high original")},
            redaction=Redaction.REFUSE,
            is_encoded=True,
        ),
        "video_url": Place({"url": ENCODED}, redaction=Redaction.REFUSE, is_encoded=True),
        "input_audio": Place(
            {
                "data": ENCODED,
                "format": one_of("wav mp3 flac opus pcm16 pcm24 aac ogg m4a aiff webm"),
            }
        ),
        "input_video": Place({"data": ENCODED}),
        "file": Place({"file_data": ENCODED, "file_id": FIXED, "filename": TEXT}),
        "source": Place(
            {
                "type": one_of("base64 url text"),
                "data": ENCODED,
                "url": ENCODED,
                "media_type": FIXED,
            }
        ),
        "signature": ENCODED,
        "cache_control": CACHE_CONTROL,
    },
    has_texts=True,
)
_REASONING_DETAIL: Final = Place(
    {
        "type": one_of("reasoning.text reasoning.summary reasoning.encrypted"),
        "format": one_of(
            f"{ANTHROPIC_FORMAT} {GEMINI_FORMAT} openai-responses-v1 azure-openai-responses-v1"
            " xai-responses-v1 unknown"
        ),
        "text": TEXT,
        "summary": TEXT,
        "signature": ENCODED,
        "data": ENCODED,
        "encrypted_content": ENCODED,
        "id": ID,
        "index": PARAMETER,
    }
)
MESSAGE: Final = Place(
    {
        "role": one_of("system developer user assistant tool"),
        "content": _PART,
        "name": TEXT,
        "refusal": TEXT,
        "reasoning": TEXT,
        "reasoning_content": TEXT,
        "reasoning_details": _REASONING_DETAIL,
        "tool_call_id": ID,
        "tool_calls": Place(
            {
                "id": ID,
                "type": one_of("function custom"),
                "index": PARAMETER,
                "function": _CALLED,
                "extra_content": Place({"google": Place({"thought_signature": ENCODED})}),
            }
        ),
        "function_call": _CALLED,
        "audio": Place({"id": FIXED}),
        "cache_control": CACHE_CONTROL,
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
        PARAMETER,
    ),
    "stop": FIXED,
    "metadata": TEXT,
    "tools": Place(
        {"type": one_of(_TOOL_TYPES), "function": _FUNCTION, "cache_control": CACHE_CONTROL}
    ),
    "functions": _FUNCTION,
    "function_call": one_of("auto none", name=FIXED),
    "tool_choice": one_of(
        "auto none required any", type=one_of(_TOOL_TYPES), function=Place({"name": FIXED})
    ),
    "response_format": Place(
        {
            "type": one_of("text json_object json_schema grammar python"),
            "json_schema": Place(
                {"name": FIXED, "description": TEXT, "schema": SCHEMA, "strict": FIXED},
                redaction=Redaction.REFUSE,
            ),
        },
        redaction=Redaction.REFUSE,
    ),
    "prediction": Place({"type": one_of("content"), "content": _PART}),
    "reasoning": Place(
        {
            "effort": one_of("none minimal low medium high xhigh max"),
            "summary": one_of("auto concise detailed"),
            "max_tokens": PARAMETER,
        },
        redaction=Redaction.REFUSE,
    ),
    "reasoning_effort": one_of("none minimal low medium high xhigh max"),
    "verbosity": one_of("low medium high xhigh max"),
    "modalities": one_of("text image audio video"),
    "service_tier": one_of("auto default flex priority scale"),
    "encoding_format": one_of("float base64"),
    "input_type": FIXED,
    "audio": Place({"voice": FIXED, "format": one_of("wav mp3 flac opus pcm16 aac")}),
    "cache_control": CACHE_CONTROL,
    "web_search_options": Place(
        {
            "search_context_size": one_of("low medium high"),
            "user_location": Place({"type": one_of("approximate")}),
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
    Operation.RERANK: {"query": TEXT, "documents": Place({"text": TEXT, "image": ENCODED})},
    Operation.IMAGES: {"prompt": TEXT},
}
_IMAGES: Final[Mapping[str, Place]] = {
    **dict.fromkeys(("input_references", "mask", "markup"), _PART),
    **dict.fromkeys(
        ("output_compression", "partial_images", "frame_count", "frame_duration_ms"), PARAMETER
    ),
    **dict.fromkeys(("size", "resolution", "aspect_ratio", "svg"), FIXED),
    "quality": one_of("auto low medium high xhigh max standard hd"),
    "output_format": one_of("png jpeg webp svg gif"),
    "background": one_of("auto transparent opaque"),
    "input_fidelity": one_of("high low"),
    "moderation": one_of("low auto"),
    "style": one_of("vivid natural"),
    "complexity": one_of("low medium high"),
    "response_format": one_of("url b64_json"),
}
# Fields that other operations do not have, or use for something else.
_OWN: Final[Mapping[Operation, Mapping[str, Place]]] = {
    Operation.IMAGES: _IMAGES,
    Operation.SPEECH: {
        "voice": Place({"id": FIXED}, redaction=Redaction.REFUSE),
        "response_format": one_of("mp3 opus aac flac wav pcm"),
        "speed": PARAMETER,
    },
    Operation.TRANSCRIPTION: {
        "language": FIXED,
        "languages": FIXED,
        "response_format": one_of("json verbose_json diarized_json"),
        "timestamp_granularities": one_of("segment word"),
        "include": one_of("logprobs"),
        "chunking_strategy": one_of("auto", type=one_of("server_vad")),
        "known_speaker_references": ENCODED,
    },
}
BODIES: Final[Mapping[Operation, Mapping[str, Place]]] = {
    operation: {**_COMMON, **_OWN.get(operation, {}), **prompts}
    for operation, prompts in PROMPTS.items()
}

# The places of Messages and of Responses, as those above are of chat.
_BLOCK_MEMBERS: Final[dict[str, Place]] = {}
_BLOCK: Final = Place(_BLOCK_MEMBERS, has_texts=True)
_CITATION: Final = Place(
    {
        "type": one_of(
            "char_location page_location content_block_location search_result_location"
            " web_search_result_location"
        ),
        "encrypted_index": ENCODED,
        **dict.fromkeys(
            (
                "document_index", "search_result_index", "start_char_index", "end_char_index",
                "start_page_number", "end_page_number", "start_block_index", "end_block_index",
            ),
            PARAMETER,
        ),
        "enabled": PARAMETER,
    }
)  # fmt: skip
_BLOCK_MEMBERS.update(
    {
        "type": one_of(
            "text image document search_result tool_use tool_result thinking redacted_thinking"
            " server_tool_use web_search_tool_result web_search_result web_fetch_tool_result"
            " web_fetch_result compaction container_upload tool_reference mcp_tool_use"
            " mcp_tool_result code_execution_tool_result bash_code_execution_tool_result"
            " text_editor_code_execution_tool_result"
        ),
        "source": Place(
            {
                "type": one_of("base64 url text content file"),
                "media_type": FIXED,
                "file_id": FIXED,
                "data": ENCODED,
                "url": ENCODED,
                "content": _BLOCK,
            }
        ),
        "content": _BLOCK,
        "input": DATA,
        "name": FIXED,
        "is_error": PARAMETER,
        "citations": _CITATION,
        "cache_control": CACHE_CONTROL,
        **dict.fromkeys(("id", "tool_use_id"), ID),
        **dict.fromkeys(("signature", "data", "encrypted_content"), ENCODED),
        **dict.fromkeys(("text", "thinking", "title", "context", "page_age"), TEXT),
    }
)
_TURN: Final = Place({"role": one_of("user assistant system"), "content": _BLOCK})
_TOOL: Final = Place(
    {
        "name": FIXED,
        "input_schema": SCHEMA,
        "description": TEXT,
        "cache_control": CACHE_CONTROL,
        **dict.fromkeys(
            (
                "type", "strict", "defer_loading", "eager_input_streaming", "allowed_callers",
                "max_uses", "max_content_tokens", "display_width_px", "display_height_px",
                "display_number", "max_characters",
            ),
            PARAMETER,
        ),
    }
)  # fmt: skip
_EDIT: Final = Place(
    dict.fromkeys(("type", "keep", "trigger", "clear_at_least", "value"), PARAMETER),
    redaction=Redaction.REFUSE,
    is_parameter=True,
)
_ITEM_MEMBERS: Final[dict[str, Place]] = {}
_ITEM: Final = Place(_ITEM_MEMBERS, has_texts=True)
_OPENAI_TOOL: Final[dict[str, Place]] = {}
_ITEM_MEMBERS.update(
    {
        "type": one_of(
            "message reasoning function_call function_call_output custom_tool_call"
            " custom_tool_call_output local_shell_call local_shell_call_output shell_call"
            " shell_call_output apply_patch_call apply_patch_call_output tool_search_call"
            " tool_search_output web_search_call image_generation_call additional_tools"
            " configuration_update input_text input_image input_file input_audio output_text"
            " refusal summary_text reasoning_text text url_citation search exec"
        ),
        "role": one_of("user assistant system developer"),
        "status": one_of("in_progress completed incomplete failed"),
        "phase": one_of("commentary final_answer"),
        "detail": one_of("auto low high original"),
        "content": _ITEM,
        "summary": _ITEM,
        "output": _ITEM,
        "tools": Place(_OPENAI_TOOL),
        "action": DATA,
        "operation": DATA,
        "image_url": Place({"url": ENCODED}, redaction=Redaction.REFUSE, is_encoded=True),
        "input_audio": Place({"data": ENCODED, "format": FIXED}),
        **dict.fromkeys(("name", "namespace", "execution"), FIXED),
        **dict.fromkeys(("id", "call_id"), ID),
        **dict.fromkeys(("encrypted_content", "file_data", "file_url", "result"), ENCODED),
        **dict.fromkeys(("text", "refusal", "arguments", "input", "filename"), TEXT),
    }
)
_OPENAI_TOOL.update(
    {
        "type": one_of(
            "function custom namespace local_shell shell apply_patch tool_search grammar"
        ),
        "name": FIXED,
        "description": TEXT,
        "parameters": SCHEMA,
        "tools": Place(_OPENAI_TOOL),
        "format": Place({"type": one_of("text grammar"), "syntax": FIXED, "definition": FIXED}),
        **dict.fromkeys(
            ("strict", "defer_loading", "execution", "allowed_callers", "environment"), PARAMETER
        ),
    }
)
NATIVE_BODIES: Final[Mapping[NativeFormat, Mapping[str, Place]]] = {
    NativeFormat.ANTHROPIC: {
        "model": FIXED,
        "messages": _TURN,
        "system": _BLOCK,
        "tools": _TOOL,
        "tool_choice": Place(
            {"type": one_of("auto any tool none"), "name": FIXED}, redaction=Redaction.REFUSE
        ),
        "stop_sequences": FIXED,
        "thinking": Place(
            {
                "type": one_of("enabled disabled adaptive between_tools"),
                "display": one_of("summarized omitted"),
                "budget_tokens": PARAMETER,
            },
            redaction=Redaction.REFUSE,
        ),
        "output_config": Place(
            {
                "effort": one_of("low medium high xhigh max"),
                "format": Place({"type": one_of("json_schema"), "schema": SCHEMA}),
            }
        ),
        "context_management": Place({"edits": _EDIT}),
        "cache_control": CACHE_CONTROL,
        "service_tier": one_of("auto standard_only"),
        **dict.fromkeys(("max_tokens", "stream", "temperature", "top_p", "top_k"), PARAMETER),
    },
    NativeFormat.RESPONSES: {
        "model": FIXED,
        "input": _ITEM,
        "instructions": TEXT,
        "tools": Place(_OPENAI_TOOL),
        "tool_choice": Place(_OPENAI_TOOL, redaction=Redaction.REFUSE),
        "text": Place(
            {
                "format": Place(
                    {
                        "type": one_of("text json_object json_schema"),
                        "name": FIXED,
                        "description": TEXT,
                        "schema": SCHEMA,
                        "strict": PARAMETER,
                    }
                ),
                "verbosity": one_of("low medium high"),
            }
        ),
        "reasoning": Place(
            {
                "effort": one_of("none minimal low medium high xhigh max"),
                "summary": one_of("auto concise detailed"),
            },
            redaction=Redaction.REFUSE,
        ),
        "include": FIXED,
        "truncation": one_of("disabled"),
        "service_tier": one_of("auto default flex priority scale"),
        "prompt_cache_key": ID,
        **dict.fromkeys(
            (
                "max_output_tokens", "max_tool_calls", "stream", "temperature", "top_p",
                "top_logprobs", "parallel_tool_calls", "stream_options",
            ),
            PARAMETER,
        ),
    },
}  # fmt: skip
# The members that the gateway replaces.
REPLACED: Final[Mapping[NativeFormat, frozenset[str]]] = {
    NativeFormat.ANTHROPIC: frozenset(("model", "metadata")),
    NativeFormat.RESPONSES: frozenset(("model",)),
}
