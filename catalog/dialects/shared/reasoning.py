"""Removes the reasoning from replies, for callers who exclude it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from catalog.dialects.shared.raw import LONG_BYTES, first_byte

# The names that servers give to their reasoning, ours first.
REASONING_NAMES: Final = ("reasoning", "reasoning_content", "reasoning_text", "thinking")
_DETAILS: Final = "reasoning_details"
_THINKING: Final = "thinking"
_TEXTS: Final = frozenset(("text", "summary"))
_MARKS: Final = (b'"reasoning', b'"thinking"')
_Raws = dict[str, msgspec.Raw]
_decode_list_of_raws = msgspec.json.Decoder(list[_Raws]).decode
_decode_part = msgspec.json.Decoder(_Raws).decode


def hide_reasoning(choices: bytes | msgspec.Raw | list[Any]) -> Any:
    """Returns choices without the text of their reasoning; malformed choices are unchanged.

    Encrypted or signed details stay, without their text: the caller cannot read them, and sends
    them back with the next request.
    """
    if not isinstance(choices, list):
        # Long choices are decoded into raw members without a search, which would copy them.
        if len(choices) <= LONG_BYTES:
            raw = bytes(choices)
            if not any(mark in raw for mark in _MARKS):
                return choices
        try:
            choices = [*_decode_list_of_raws(choices)]
        except (msgspec.DecodeError, RecursionError):
            return choices
    for choice in choices:
        for name in ("delta", "message"):
            part: Any = choice.get(name)
            if first_byte(part) == b"{":
                part = choice[name] = _decode_part(part)
            if isinstance(part, dict):
                _hide_in(part)
    return choices


def _hide_in(part: dict[str, Any]) -> None:
    for name in REASONING_NAMES:
        part.pop(name, None)
    details = _decode_list(part.pop(_DETAILS, None))
    if isinstance(details, list) and (
        kept := [_without_text(one) for one in details if _is_kept(one)]
    ):
        part[_DETAILS] = kept
    content = _decode_list(part.get("content"))
    if isinstance(content, list) and any(map(_is_thinking, content)):
        # A content that holds only reasoning becomes an empty text.
        part["content"] = [one for one in content if not _is_thinking(one)] or ""


def _decode_list(value: Any) -> Any:
    """Decodes a raw list; other values stay as they are."""
    return msgspec.json.decode(value) if first_byte(value) == b"[" else value


def _without_text(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if name not in _TEXTS}


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == _THINKING


def _is_kept(detail: Any) -> bool:
    return isinstance(detail, dict) and bool(detail.get("data") or detail.get("signature"))
