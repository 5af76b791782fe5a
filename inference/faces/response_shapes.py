"""The shapes of OpenAI's Responses for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_OBJECT: Final = {"type": "object"}
_NULLABLE_STRING: Final = {"type": ["string", "null"]}
_NULLABLE_NUMBER: Final = {"type": ["number", "null"]}
_NULLABLE_INTEGER: Final = {"type": ["integer", "null"]}
_USAGE: Final = "#/components/schemas/ResponsesUsage"
_RESPONSE: Final = "#/components/schemas/ResponsesResult"


def _open(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Returns the shape of an object that may have other members."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": True,
    }


def _nullable(shape: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [shape, {"type": "null"}]}


_ITEM: Final = _open({"type": _STRING, "id": _STRING}, status=_STRING)
_EVENTS: Final = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.output_text.annotation.added",
    "response.refusal.delta",
    "response.refusal.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
]

SHAPES: Final = {
    "ResponsesUsage": _open(
        {
            "input_tokens": {"type": "integer", "description": "With the tokens of the cache."},
            "input_tokens_details": _open(
                {"cached_tokens": _INTEGER, "cache_write_tokens": _INTEGER}
            ),
            "output_tokens": {"type": "integer", "description": "With the tokens of reasoning."},
            "output_tokens_details": _open({"reasoning_tokens": _INTEGER}),
            "total_tokens": _INTEGER,
        },
        cost={"type": "number", "description": "The cost to the credits, in USD."},
        is_byok={"type": "boolean"},
        cost_details=_open(
            {},
            upstream_inference_cost=_NUMBER,
            upstream_inference_input_cost=_NUMBER,
            upstream_inference_output_cost=_NUMBER,
        ),
        server_tool_use_details=_OBJECT,
    ),
    "ResponsesResult": _open(
        {
            "id": {"type": "string", "description": "Our generation id, `gen-…`."},
            "object": {"const": "response"},
            "created_at": {"type": "integer", "description": "Unix seconds."},
            "completed_at": _NULLABLE_INTEGER,
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
            "model": {"type": "string", "description": "The slug of the model that answered."},
            "output": {"type": "array", "items": _ITEM},
            "error": _nullable(_open({"code": _STRING, "message": _STRING}, metadata=_OBJECT)),
            "incomplete_details": _nullable(
                _open({"reason": {"enum": ["max_output_tokens", "content_filter"]}})
            ),
            "instructions": _NULLABLE_STRING,
            "metadata": _nullable(_OBJECT),
            "parallel_tool_calls": {"type": "boolean"},
            "temperature": _NULLABLE_NUMBER,
            "top_p": _NULLABLE_NUMBER,
            "presence_penalty": _NULLABLE_NUMBER,
            "frequency_penalty": _NULLABLE_NUMBER,
            "tool_choice": {"anyOf": [_STRING, _OBJECT]},
            "tools": {"type": "array", "items": _open({"type": _STRING})},
            "store": {"const": False},
            "usage": _nullable({"$ref": _USAGE}),
        },
        provider={"type": "string", "description": "Display name of the provider."},
        openrouter_metadata=_OBJECT,
    ),
    "ResponsesStreamEvent": _open(
        {"type": {"enum": _EVENTS}, "sequence_number": _INTEGER},
        response={"$ref": _RESPONSE},
        output_index=_INTEGER,
        item=_ITEM,
        item_id=_STRING,
        content_index=_INTEGER,
        summary_index=_INTEGER,
        annotation_index=_INTEGER,
        delta=_STRING,
        part=_open({"type": _STRING}),
    ),
}
DESCRIPTION: Final = (
    "Every model can be used: the request becomes a chat completion. Nothing is stored, so the "
    "whole conversation comes with every request; `store: true`, `previous_response_id`, "
    "`conversation`, `prompt`, `background: true` and items of the type `item_reference` are "
    "refused. A tool that no endpoint can run is left out and named in the header `X-Left-Out`, "
    "unless `tool_choice` demands it. The `encrypted_content` of reasoning is to be sent back "
    "unchanged. With `stream`, the response is OpenAI's events; a failure after the first event is "
    "`response.failed`, which ends the stream."
)
LEFT_OUT: Final = {
    "description": "The tools and items of the request that were not sent, separated by commas.",
    "schema": {"type": "string"},
}
