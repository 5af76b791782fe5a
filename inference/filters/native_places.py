"""The places of a body in Messages and in Responses, as :mod:`places` has those of chat; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from catalog.capabilities import NativeFormat
from inference.filters.places import (
    CACHE_CONTROL,
    DATA,
    ENCODED,
    FIXED,
    ID,
    PARAMETER,
    SCHEMA,
    TEXT,
    Place,
    Redaction,
    one_of,
)

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
                "max_output_tokens",
                "max_tool_calls",
                "stream",
                "temperature",
                "top_p",
                "top_logprobs",
                "parallel_tool_calls",
                "stream_options",
            ),
            PARAMETER,
        ),
    },
}
# The members that the gateway replaces.
REPLACED: Final[Mapping[NativeFormat, frozenset[str]]] = {
    NativeFormat.ANTHROPIC: frozenset(("model", "metadata")),
    NativeFormat.RESPONSES: frozenset(("model",)),
}
