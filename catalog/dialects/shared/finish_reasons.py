"""Maps the finish reasons of providers to OpenAI's and keeps the provider's name beside it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

# Other names that servers of this interface are known to send; any other name becomes "stop".
_REASONS: Final = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
    "safety": "content_filter",
    "refusal": "content_filter",
}
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


def normalize_finish_reasons(
    choices: msgspec.Raw | list[Any],
) -> tuple[Any, str | None, str | None]:
    """Returns choices with both names of each reason, then both names of the last reason.

    Choices that are not a list of objects are returned unchanged.
    """
    if isinstance(choices, msgspec.Raw):
        try:
            choices = _decode(choices)
        except msgspec.DecodeError:
            return choices, None, None
    reason = native = None
    for choice in choices:
        given = choice.get("finish_reason")
        if isinstance(given, str):
            own = choice.get("native_finish_reason")
            native = choice["native_finish_reason"] = own if isinstance(own, str) else given
            reason = choice["finish_reason"] = _REASONS.get(given.lower(), "stop")
    return choices, reason, native
