"""Answers without what the model thought, for callers who want none of it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_NAMES: Final = ("reasoning", "reasoning_content")
_DETAILS: Final = "reasoning_details"
_MARK: Final = b'"reasoning'
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


def hidden(choices: bytes | msgspec.Raw | list[Any]) -> Any:
    """Returns choices without the text of their reasoning; what is malformed is returned as it is.

    Parts that are encrypted or signed stay: the caller cannot read them, or sends them back.
    """
    if not isinstance(choices, list):
        if _MARK not in bytes(choices):
            return choices
        try:
            choices = _decode(choices)
        except (msgspec.DecodeError, RecursionError):
            return choices
    for choice in choices:
        for part in (choice.get("delta"), choice.get("message")):
            if isinstance(part, dict):
                _hide(part)
    return choices


def _hide(part: dict[str, Any]) -> None:
    for name in _NAMES:
        part.pop(name, None)
    details = part.pop(_DETAILS, None)
    if isinstance(details, list) and (kept := [one for one in details if _is_kept(one)]):
        part[_DETAILS] = kept


def _is_kept(detail: Any) -> bool:
    return isinstance(detail, dict) and bool(detail.get("data") or detail.get("signature"))
