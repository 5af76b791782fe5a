"""What OpenAI's API answers to Responses with encrypted reasoning, and how Codex asks for it."""

from __future__ import annotations

from typing import Any, Final

THOUGHT: Final[dict[str, Any]] = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Look."}],
    "encrypted_content": "gAAAAABpOpaque==",
}
CALL: Final[dict[str, Any]] = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "arguments": '{"command":["ls"]}',
    "call_id": "call_1",
    "name": "shell_command",
}
SPOKEN: Final[dict[str, Any]] = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
}
USAGE: Final[dict[str, Any]] = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 140,
}
RESPONSE: Final[dict[str, Any]] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1763800000,
    "status": "completed",
    "background": False,
    "billing": {"payer": "developer"},
    "error": None,
    "incomplete_details": None,
    "instructions": "You are Codex.",
    "model": "gpt-5-codex",
    "output": [THOUGHT, SPOKEN, CALL],
    "parallel_tool_calls": False,
    "prompt_cache_key": "theirs",
    "safety_identifier": "theirs",
    "store": False,
    "usage": USAGE,
    "user": None,
}
_BEGUN: Final[dict[str, Any]] = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}


def _number(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


_OPENED: Final[list[dict[str, Any]]] = [
    {"type": "response.created", "response": _BEGUN},
    {"type": "response.in_progress", "response": _BEGUN},
]
_SPOKEN_AT: Final = {"item_id": "msg_1", "output_index": 1, "content_index": 0}


def _added(index: int, item: dict[str, Any], **begun: Any) -> dict[str, Any]:
    event = {"type": "response.output_item.added", "output_index": index}
    return {**event, "item": {**item, **begun}}


def _done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


_ITEMS: Final[list[dict[str, Any]]] = [
    _added(0, THOUGHT, summary=[], encrypted_content="gAAA"),
    {
        "type": "response.reasoning_summary_text.delta",
        "item_id": "rs_1",
        "output_index": 0,
        "summary_index": 0,
        "delta": "Look.",
        "obfuscation": "xY",
    },
    _done(0, THOUGHT),
    _added(1, SPOKEN, status="in_progress", content=[]),
    {
        "type": "response.content_part.added",
        **_SPOKEN_AT,
        "part": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    },
    {"type": "response.output_text.delta", **_SPOKEN_AT, "delta": "I look.", "logprobs": []},
    {"type": "response.output_text.done", **_SPOKEN_AT, "text": "I look.", "logprobs": []},
    {"type": "response.content_part.done", **_SPOKEN_AT, "part": SPOKEN["content"][0]},
    _done(1, SPOKEN),
    _added(2, CALL, status="in_progress", arguments=""),
    {
        "type": "response.function_call_arguments.delta",
        "item_id": "fc_1",
        "output_index": 2,
        "delta": CALL["arguments"],
    },
    {
        "type": "response.function_call_arguments.done",
        "item_id": "fc_1",
        "output_index": 2,
        "name": CALL["name"],
        "arguments": CALL["arguments"],
    },
    _done(2, CALL),
]
EVENTS: Final = _number(*_OPENED, *_ITEMS, {"type": "response.completed", "response": RESPONSE})
OPENED: Final = EVENTS[: len(_OPENED)]
ITEMS: Final = EVENTS[len(_OPENED) : -1]
COMPLETED: Final = EVENTS[-1]

# What Codex sends, with the members in its order.
AGENT: Final[dict[str, Any]] = {
    "model": "acme/falcon",
    "instructions": "You are Codex.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be brief."}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List."}]},
        {
            "type": "reasoning",
            "summary": [],
            "content": None,
            "encrypted_content": "gAAAAABpEarlier==",
        },
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_0",
            "name": "apply_patch",
            "input": "*** Begin Patch",
        },
        {"type": "custom_tool_call_output", "call_id": "call_0", "output": "Done."},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell_command",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"command": {"type": "array"}}},
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edits files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto", "encrypted_of_next_year": 1.50},
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-conversation",
    "text": {"verbosity": "low"},
    "a_field_of_next_year": {"a": [1.50]},
}
