"""Removes the reasoning from replies, for callers who exclude it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_NAMES: Final = ("reasoning", "reasoning_content")
_DETAILS: Final = "reasoning_details"
_THINKING: Final = "thinking"
_TEXTS: Final = frozenset(("text", "summary"))
_MARKS: Final = (b'"reasoning', b'"thinking"')
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


def hide_reasoning(choices: bytes | msgspec.Raw | list[Any]) -> Any:
    """Returns choices without the text of their reasoning; malformed choices are unchanged.

    Encrypted or signed details stay, without their text: the caller cannot read them, and sends
    them back with the next request.
    """
    if not isinstance(choices, list):
        raw = bytes(choices)
        if not any(mark in raw for mark in _MARKS):
            return choices
        try:
            choices = _decode(choices)
        except (msgspec.DecodeError, RecursionError):
            return choices
    for choice in choices:
        for part in (choice.get("delta"), choice.get("message")):
            if isinstance(part, dict):
                _hide_in(part)
    return choices


def _hide_in(part: dict[str, Any]) -> None:
    for name in _NAMES:
        part.pop(name, None)
    details = part.pop(_DETAILS, None)
    if isinstance(details, list) and (
        kept := [_without_text(one) for one in details if _is_kept(one)]
    ):
        part[_DETAILS] = kept
    content = part.get("content")
    if isinstance(content, list) and any(map(_is_thinking, content)):
        # A content that holds only reasoning becomes an empty text.
        part["content"] = [one for one in content if not _is_thinking(one)] or ""


def _without_text(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if name not in _TEXTS}


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == _THINKING


def _is_kept(detail: Any) -> bool:
    return isinstance(detail, dict) and bool(detail.get("data") or detail.get("signature"))
