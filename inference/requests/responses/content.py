"""Translates the parts of messages and of tool outputs to those of chat."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inference.requests.problems import convert_each, field_error, missing_field
from inference.requests.responses.items import ItemPart

_TEXTS: Final = frozenset(("input_text", "output_text", "text", "summary_text", "reasoning_text"))
_LIFETIMES: Final = frozenset((b'"5m"', b'"1h"'))
_STORED: Final = "This service stores no files. Send the data itself or a URL."
_encode = msgspec.json.Encoder().encode


def convert_content(content: str | list[ItemPart] | None, place: str) -> str | list[dict[str, Any]]:
    """Returns the content of a chat message: one text if it has only text, else a list of parts.

    Every server accepts one text. Raises :class:`InvalidRequest`.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = convert_each(content, _convert_part, place)
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        text: str = parts[0]["text"]
        return text
    return parts


def join_texts(content: str | list[ItemPart] | None, place: str) -> str:
    """Returns the text of an answer that is sent back; its parts are one text to their reader."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        if part.type == "refusal":
            texts.append(part.refusal or "")
        elif part.type in _TEXTS:
            texts.append(part.text or "")
        else:
            text = "An answer of the assistant consists of 'output_text' and 'refusal'."
            raise field_error(f"{place}[{index}].type", text)
    return "".join(texts)


def _convert_part(part: ItemPart, place: str) -> dict[str, Any]:
    match part.type:
        case kind if kind in _TEXTS:
            if part.text is None:
                raise missing_field(f"{place}.text")
            converted: dict[str, Any] = {"type": "text", "text": part.text}
        case "refusal":
            converted = {"type": "text", "text": part.refusal or ""}
        case "input_image":
            converted = _convert_image(part, place)
        case "input_file":
            converted = _convert_file(part, place)
        case "input_audio":
            if part.input_audio is None:
                raise missing_field(f"{place}.input_audio")
            converted = {"type": "input_audio", "input_audio": part.input_audio}
        case "input_video":
            url = _read_url(part.video_url, f"{place}.video_url")
            converted = {"type": "video_url", "video_url": {"url": url}}
        case kind:
            text = f"This service does not know a part of the type {kind[:64]!r}."
            raise field_error(f"{place}.type", text)
    if (mark := _cache_control(part)) is not None:
        converted["cache_control"] = mark
    return converted


def _convert_image(part: ItemPart, place: str) -> dict[str, Any]:
    if part.image_url is None and part.file_id:
        raise field_error(f"{place}.file_id", _STORED)
    url = _read_url(part.image_url, f"{place}.image_url")
    detail = {} if part.detail in (None, "auto") else {"detail": part.detail}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def _convert_file(part: ItemPart, place: str) -> dict[str, Any]:
    data = part.file_data or part.file_url
    if not data:
        if part.file_id:
            raise field_error(f"{place}.file_id", _STORED)
        raise missing_field(f"{place}.file_data")
    name = part.filename or ("document.pdf" if "application/pdf" in data[:64] else "document")
    return {"type": "file", "file": {"filename": name, "file_data": data}}


def _read_url(given: Any, place: str) -> str:
    """Returns a URL, which some callers wrap as chat does."""
    if isinstance(given, dict):
        given = given.get("url")
    if given is None:
        raise missing_field(place)
    if not isinstance(given, str) or not given:
        raise field_error(place, "Expected a URL, or a data: URL.")
    return given


def _cache_control(part: ItemPart) -> dict[str, Any] | None:
    """Returns the end of a cached prefix, which the two interfaces name differently."""
    if part.cache_control is not None:
        return part.cache_control
    if part.prompt_cache_breakpoint is None:
        return None
    lifetime = part.prompt_cache_breakpoint.get("ttl")
    mark: dict[str, Any] = {"type": "ephemeral"}
    if lifetime is not None and bytes(lifetime) in _LIFETIMES:
        mark["ttl"] = lifetime
    return mark
