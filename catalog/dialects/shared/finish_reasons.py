"""Maps the finish reasons of providers to OpenAI's and keeps the provider's name beside it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from catalog.dialects.shared.raw import first_byte

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
_decode = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_text = msgspec.json.Decoder(str).decode


def normalize_finish_reasons(
    choices: msgspec.Raw | list[Any],
) -> tuple[Any, str | None, str | None]:
    """Returns choices with both names of each reason, then both names of the last reason.

    Choices that are not a list of objects are returned unchanged.
    """
    if isinstance(choices, msgspec.Raw):
        try:
            decoded: list[dict[str, Any]] = _decode(choices)
        except msgspec.DecodeError:
            return choices, None, None
        choices = decoded
    reason = native = None
    for choice in choices:
        given = _read_text(choice.get("finish_reason"))
        if given is not None:
            own = _read_text(choice.get("native_finish_reason"))
            native = choice["native_finish_reason"] = given if own is None else own
            reason = choice["finish_reason"] = _REASONS.get(given.lower(), "stop")
    return choices, reason, native


def name_finish_reason(native: str) -> str:
    """Returns our name of a provider's finish reason."""
    return _REASONS.get(native.lower(), "stop")


def _read_text(value: Any) -> str | None:
    """Returns a text that is raw JSON or not; ``None`` for any other value."""
    if isinstance(value, msgspec.Raw):
        return _decode_text(value) if first_byte(value) == b'"' else None
    return value if isinstance(value, str) else None
