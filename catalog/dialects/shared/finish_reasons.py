"""Why an answer ended, in the words of OpenAI's interface; the provider's own stand beside them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

# What servers of this interface are known to say besides; anything else ended in good order.
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


def named(choices: msgspec.Raw | list[Any]) -> tuple[Any, str | None, str | None]:
    """Returns choices that say both reasons, and the last pair of them.

    What is not a list of objects is returned as it is.
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
            said = choice.get("native_finish_reason")
            native = choice["native_finish_reason"] = said if isinstance(said, str) else given
            reason = choice["finish_reason"] = _REASONS.get(given.lower(), "stop")
    return choices, reason, native
