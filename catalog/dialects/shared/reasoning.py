"""Removes the reasoning from replies, for callers who exclude it, and reads what comes back."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from catalog.dialects.shared.raw import LONG_BYTES, decode_list, first_byte, read_member
from catalog.dialects.shared.replies import UNSIGNED_FORMAT, build_reasoning_detail

# The names that servers give to their reasoning, ours first.
REASONING_NAMES: Final = ("reasoning", "reasoning_content", "reasoning_text", "thinking")
_DETAILS: Final = "reasoning_details"
_THINKING: Final = "thinking"
_TEXTS: Final = frozenset(("text", "summary"))
_MARKS: Final = (b'"reasoning', b'"thinking"')
# What begins each piece of a thought that is encoded, and how one begins in a body.
_SEAL: Final = "causeway:"
SEAL_MARK: Final = b'"causeway:'
# The characters of a thought that wait for the next ones. Clients take each piece for a thought.
_MOST_WAITING: Final = 16_384
_Raws = dict[str, msgspec.Raw]
_decode_list_of_raws = msgspec.json.Decoder(list[_Raws]).decode
_decode_part = msgspec.json.Decoder(_Raws).decode
_encode = msgspec.json.Encoder().encode


class HiddenThoughts:
    """The unsigned thoughts of an answer whose caller excludes reasoning.

    Some models refuse the next turn of tools without them, so the caller gets them encoded: many
    pieces of a stream together.
    """

    __slots__ = ("_texts", "waiting")

    def __init__(self) -> None:
        self._texts: dict[bytes, list[str]] = {}
        # The number of characters that wait.
        self.waiting = 0

    def seal(self, index: bytes, text: str, *, is_last: bool) -> list[dict[str, Any]]:
        """Adds to the text of a choice; returns the detail of all of it when no more follows."""
        pieces = self._texts.setdefault(index, [])
        if text:
            pieces.append(text)
            self.waiting += len(text)
        if not pieces or (text and not is_last and self.waiting <= _MOST_WAITING):
            return []
        whole = "".join(pieces)
        pieces.clear()
        self.waiting -= len(whole)
        data = _SEAL + base64.urlsafe_b64encode(whole.encode()).decode()
        return [build_reasoning_detail(UNSIGNED_FORMAT, 0, data=data)]


def open_thoughts(messages: msgspec.Raw) -> msgspec.Raw:
    """Returns messages of chat whose encoded thoughts are texts; the same ones if malformed."""
    found = decode_list(messages)
    for message in found or ():
        details = decode_list(message.get(_DETAILS))
        for detail in details or ():
            data = read_member(detail, "data")
            if data.startswith(_SEAL):
                text = {"type": "reasoning.text", "text": _open(data), "format": UNSIGNED_FORMAT}
                detail.pop("data")
                detail.update(text)
        if details is not None:
            message[_DETAILS] = details
    return messages if found is None else msgspec.Raw(_encode(found))


def _open(data: str) -> str:
    """Returns the text of encoded pieces, which some clients join; none if they are malformed."""
    try:
        pieces = [base64.urlsafe_b64decode(piece).decode() for piece in data.split(_SEAL)]
    except ValueError:
        return ""
    return "".join(pieces)


def hide_reasoning(
    choices: bytes | msgspec.Raw | list[Any], thoughts: HiddenThoughts | None = None
) -> Any:
    """Returns choices without the text of their reasoning; malformed choices are unchanged.

    Encrypted or signed details stay, without their text: the caller cannot read them, and sends
    them back with the next request. With ``thoughts`` unsigned ones stay too, encoded.
    """
    if not isinstance(choices, list):
        # Long choices are decoded into raw members without a search, which would copy them.
        if len(choices) <= LONG_BYTES:
            raw = bytes(choices)
            if not any(mark in raw for mark in _MARKS) and not (thoughts and thoughts.waiting):
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
                text = "" if thoughts is None else _find_unsigned(part)
                _hide_in(part)
                if thoughts is not None:
                    is_last = name == "message" or isinstance(part.get("tool_calls"), list)
                    is_last = is_last or bool(read_member(choice, "finish_reason"))
                    index = _encode(choice.get("index"))
                    if sealed := thoughts.seal(index, text, is_last=is_last):
                        part[_DETAILS] = [*sealed, *part.get(_DETAILS, ())]
    return choices


def _find_unsigned(part: dict[str, Any]) -> str:
    """Returns the text of the reasoning of a part that nobody has signed."""
    details = part[_DETAILS] = _decode_list(part.get(_DETAILS))
    if isinstance(details, list) and details:
        return "".join(read_member(one, "text") for one in details if _is_unsigned(one))
    return next(filter(None, (read_member(part, name) for name in REASONING_NAMES)), "")


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


def _is_unsigned(detail: Any) -> bool:
    if not isinstance(detail, dict) or _is_kept(detail):
        return False
    return detail.get("format") in (None, UNSIGNED_FORMAT)
