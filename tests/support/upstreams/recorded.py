"""What Anthropic's API answers with features that chat does not have, and who asks for them."""

from __future__ import annotations

from typing import Any, Final

CITED: Final = {
    "type": "web_search_result_location",
    "cited_text": "Rain until noon.",
    "url": "https://weather.example/zurich",
    "title": "Zürich",
    "encrypted_index": "Eo8BCioIAhgB",
}
SEARCHED: Final[list[dict[str, Any]]] = [
    {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "weather"},
    },
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {
                "type": "web_search_result",
                "url": "https://weather.example/zurich",
                "title": "Zürich",
                "encrypted_content": "EqgfCioIARgB",
                "page_age": None,
            }
        ],
    },
    {"type": "text", "text": "It rains.", "citations": [CITED]},
]
USAGE: Final[dict[str, Any]] = {
    "input_tokens": 100,
    "cache_creation_input_tokens": 30,
    "cache_read_input_tokens": 20,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    "output_tokens": 40,
    "output_tokens_details": {"thinking_tokens": 5},
    "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
    "service_tier": "standard",
}
MESSAGE: Final[dict[str, Any]] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5",
    "content": SEARCHED,
    "stop_reason": "pause_turn",
    "stop_sequence": None,
    "container": None,
    "context_management": {"applied_edits": []},
    "usage": USAGE,
}


def _delta(index: int, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": piece}


def _block(index: int, block: dict[str, Any], *pieces: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *(_delta(index, **piece) for piece in pieces),
        {"type": "content_block_stop", "index": index},
    ]


STARTED: Final[dict[str, Any]] = {
    "type": "message_start",
    "message": {
        **MESSAGE,
        "content": [],
        "stop_reason": None,
        "usage": {**USAGE, "output_tokens": 1},
    },
}
BLOCKS: Final[list[dict[str, Any]]] = [
    *_block(
        0,
        {**SEARCHED[0], "input": {}},
        {"type": "input_json_delta", "partial_json": '{"query": '},
        {"type": "input_json_delta", "partial_json": '"weather"}'},
    ),
    *_block(1, SEARCHED[1]),
    *_block(
        2,
        {"type": "text", "text": "", "citations": []},
        {"type": "citations_delta", "citation": CITED},
        {"type": "text_delta", "text": "It "},
        {"type": "text_delta", "text": "rains."},
    ),
]
ENDED: Final[list[dict[str, Any]]] = [
    {
        "type": "message_delta",
        "delta": {"stop_reason": "pause_turn", "stop_sequence": None},
        "context_management": {"applied_edits": []},
        "usage": USAGE,
    },
    {"type": "message_stop"},
]
EVENTS: Final[list[dict[str, Any]]] = [STARTED, {"type": "ping"}, *BLOCKS, *ENDED]

# What Claude Code sends, with the members in its order.
AGENT: Final[dict[str, Any]] = {
    "model": "acme/falcon",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"},
                {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.181; cch=1;"},
        {
            "type": "text",
            "text": "You are Claude Code.",
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Runs a command.",
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
            "defer_loading": True,
        }
    ],
    "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
BETAS: Final = "claude-code-20250219,context-management-2025-06-27, effort-2025-11-24"
RATES: Final = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "input_cache_read": "0.0000003",
    "input_cache_write": "0.00000375",
    "input_cache_write_1h": "0.000006",
    "web_search": "0.01",
}
# 50 tokens at the full rate, 20 read, 10 written for minutes and 20 for an hour, 40 of output, and
# two searches.
COST: Final = (
    0.000003 * 100 + 0.0000003 * 20 + 0.00000375 * 10 + 0.000006 * 20 + 0.000015 * 40 + 0.02
)
# What a caller found, which a filter reads.
FOUND_SECRET: Final[dict[str, Any]] = {
    "type": "search_result",
    "source": "https://pages.example",
    "title": "about SECRET",
    "content": [{"type": "text", "text": "the SECRET"}],
    "citations": {"enabled": True},
}
