"""The places of a body in Anthropic's Messages, as :mod:`places` has those of chat; pure."""

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
_BLOCK: Final = Place(_BLOCK_MEMBERS)
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
# ``metadata`` is not sent: the gateway replaces it.
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
    }
}
# The members that the gateway replaces.
REPLACED: Final = frozenset(("model", "metadata"))
