"""What each target accepts beside the shape of its format: one table, and the changes that fit it.

A format that two servers share does not make them equal: ids, names and schemas that one of them
accepts are errors of the next. What is changed here means the same to a model.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from catalog.dialects.shared.images.pictures import sniff

_ALPHANUMERIC: Final = string.digits + string.ascii_letters
_IDENTIFIER: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_ANY: Final = re.compile(r".+", re.DOTALL)


class Constraints(NamedTuple):
    """The constraints of one target.

    ``call_id`` is the form of the ids of tool calls. ``longest_name`` is that of a function's name.
    ``needs_tools`` says that a conversation with tool calls must have tools, ``has_blank_stops``
    that a stop sequence may be white space alone, and ``has_strict_schemas`` that a schema may have
    few keywords.
    """

    call_id: re.Pattern[str] = _ANY
    longest_name: int = 64
    needs_tools: bool = False
    has_blank_stops: bool = True
    has_strict_schemas: bool = False


OPENAI: Final = Constraints()
# https://docs.mistral.ai/api: the id of a call has exactly nine letters and digits.
MISTRAL: Final = Constraints(call_id=_NINE)
GEMINI: Final = Constraints()
ANTHROPIC: Final = Constraints(
    call_id=_IDENTIFIER,
    longest_name=128,
    needs_tools=True,
    has_blank_stops=False,
    has_strict_schemas=True,
)
BEDROCK: Final = ANTHROPIC._replace(longest_name=64)


class CallIds:
    """Gives the calls of a conversation ids that the target accepts, no two of them alike.

    The id of a result is that of the latest call with its id. An id that fits stays, and one that
    does not becomes the same id in every request, so that cached prefixes stay valid.
    """

    __slots__ = ("_form", "_given", "_taken")

    def __init__(self, form: re.Pattern[str]) -> None:
        self._form = form
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()

    def name_call(self, given: str) -> str:
        """Returns the id of a further call."""
        name = given if self._form.fullmatch(given) else self._hash(given)
        while name in self._taken:
            name = self._hash(f"{given}\0{len(self._taken)}")
        self._taken.add(name)
        self._given[given] = name
        return name

    def name_result(self, given: str) -> str:
        """Returns the id of the call that a result belongs to."""
        found = self._given.get(given)
        if found is None:
            found = given if self._form.fullmatch(given) else self._hash(given)
        return found

    def _hash(self, text: str) -> str:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
        if self._form is not _NINE:
            return f"call_{digest.hexdigest()[:24]}"
        number = int.from_bytes(digest.digest())
        return "".join(_ALPHANUMERIC[number // 62**place % 62] for place in range(9))


_HASH_LENGTH: Final = 16
# A name that some targets refuse, in raw tools or messages.
LONG_NAME: Final = re.compile(rb'"name"\s*:\s*"[^"\\]{65,}"')
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


def shorten_names(fields: Mapping[str, Any], most: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the fields with names of at most this length, and the long ones by the short ones."""
    changed = dict(fields)
    names: dict[str, str] = {}

    def shorten(function: Any) -> None:
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and len(name) > most:
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            short = f"{name[: most - _HASH_LENGTH - 1]}_{digest[:_HASH_LENGTH]}"
            names[short], function["name"] = name, short

    for member in ("tools", "tool_choice", "messages"):
        if member not in fields:
            continue
        value = _decode(_encode(fields[member]))
        for item in value if isinstance(value, list) else [value]:
            for call in [item, *_list(item, "tool_calls")] if isinstance(item, dict) else ():
                shorten(call.get("function") if isinstance(call, dict) else None)
        changed[member] = value
    return (changed, names) if names else (dict(fields), {})


def restore_names(choices: Any, names: Mapping[str, str]) -> list[Any]:
    """Returns the choices of an answer with the names that the caller knows."""
    found: list[Any] = _decode(_encode(choices))
    for choice in found:
        for name in ("message", "delta"):
            for call in _list(choice.get(name), "tool_calls"):
                function = call.get("function") or {}
                if function.get("name") in names:
                    function["name"] = names[function["name"]]
    return found


def _list(value: Any, member: str) -> Iterable[Any]:
    found = value.get(member) if isinstance(value, dict) else None
    return found if isinstance(found, list) else ()


_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
}


def name_media_type(given: str | None, data: str) -> str | None:
    """Returns the type of media in Base64 as all targets write it, by its bytes if it is absent."""
    kind = (given or "").lower()
    kind = _ALIASES.get(kind, kind)
    if kind in ("", "application/octet-stream", "image/*"):
        return sniff(data[:512].encode()) or kind or None
    return kind


# What a strict schema may have; other keywords become a part of the description.
_KEYWORDS: Final = frozenset(
    (
        "$ref", "$defs", "definitions", "type", "anyOf", "allOf", "enum", "const", "description",
        "title", "default", "properties", "required", "items", "additionalProperties", "format",
    )
)  # fmt: skip
_FORMATS: Final = frozenset(
    (
        "date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid",
    )
)  # fmt: skip


def restrict_schema(schema: Any) -> Any:
    """Returns a schema of few keywords; the model still reads the others in the description."""
    if isinstance(schema, list):
        return [restrict_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "oneOf":
            kept["anyOf"] = restrict_schema(value)
        elif name in ("properties", "$defs", "definitions") and isinstance(value, dict):
            kept[name] = {key: restrict_schema(each) for key, each in value.items()}
        elif name in ("items", "anyOf", "allOf"):
            kept[name] = restrict_schema(value)
        elif name == "minItems" and value in (0, 1):
            kept[name] = value
        elif name not in _KEYWORDS or (name == "format" and value not in _FORMATS):
            if not name.startswith("$"):
                told[name] = value
        else:
            kept[name] = value
    kind = kept.get("type")
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in kept:
        kept["additionalProperties"] = False
    if told:
        text = _encode(told).decode()
        kept["description"] = (
            f"{kept['description']}\n\n{text}" if kept.get("description") else text
        )
    return kept
