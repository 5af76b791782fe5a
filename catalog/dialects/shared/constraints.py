"""What each target accepts beside the shape of its format: one table, and the changes that fit it.

A format that two servers share does not make them equal: ids, names and schemas that one of them
accepts are errors of the next. What is changed here means the same to a model.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from catalog.dialects.shared.images.pictures import sniff

_ALPHANUMERIC: Final = string.digits + string.ascii_letters
_IDENTIFIER: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_ANY: Final = re.compile(r".+", re.DOTALL)
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_LENGTH: Final = 16


class Constraints(NamedTuple):
    """The constraints of one target.

    ``call_id`` is the form of the ids of tool calls. ``longest_name`` is that of a function's name,
    which some targets want to begin with a letter. ``needs_tools`` says that a conversation with
    tool calls must have tools, ``has_blanks`` that a stop sequence may be white space alone and an
    answer to be continued may end in it, and ``has_strict_schemas`` that a schema may have few
    keywords. ``begins_with_user`` and ``ends_with_user`` say whose turn the first and the last one
    must be, ``has_strict_roles`` that an answer must follow the results of tools, and a system text
    no answer, and ``has_pictures`` that an answer may have pictures.
    """

    call_id: re.Pattern[str] = _ANY
    longest_name: int = 64
    has_letter_first: bool = False
    needs_tools: bool = False
    has_blanks: bool = True
    has_strict_schemas: bool = False
    begins_with_user: bool = False
    ends_with_user: bool = False
    has_strict_roles: bool = False
    has_pictures: bool = False

    def fit_name(self, name: str) -> str:
        """Returns the name of a function as the target accepts it."""
        fitting = _NOT_IN_NAMES.sub("_", name) or "_"
        if self.has_letter_first and fitting[0] in "-0123456789":
            fitting = f"_{fitting}"
        if len(fitting) <= self.longest_name:
            return fitting
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{fitting[: self.longest_name - _HASH_LENGTH - 1]}_{digest[:_HASH_LENGTH]}"


OPENAI: Final = Constraints()
# https://docs.mistral.ai/api: the id of a call has exactly nine letters and digits.
# Its validator is public (mistral-common 1.13.1); its API refuses the user after a result besides.
MISTRAL: Final = Constraints(call_id=_NINE, ends_with_user=True, has_strict_roles=True)
# The longest id at OpenAI itself, for a conversation with others; no id may be empty.
SHORT_IDS: Final = Constraints(call_id=re.compile(r".{1,40}", re.DOTALL))
RESPONSES: Final = Constraints(call_id=re.compile(r".{1,64}", re.DOTALL), longest_name=128)
GEMINI: Final = Constraints(
    has_letter_first=True, begins_with_user=True, ends_with_user=True, has_pictures=True
)
ANTHROPIC: Final = Constraints(
    call_id=_IDENTIFIER,
    longest_name=128,
    needs_tools=True,
    has_blanks=False,
    has_strict_schemas=True,
    begins_with_user=True,
)
BEDROCK: Final = ANTHROPIC._replace(longest_name=64)


class CallIds:
    """Gives the calls of a conversation ids that the target accepts, no two of them alike.

    The id of a result is that of the latest call with its id; calls of one answer that share an id
    have their results in their own order. An id that fits stays, and one that does not becomes the
    same id in every request, so that cached prefixes stay valid.
    """

    __slots__ = ("_form", "_given", "_open", "_taken", "_told", "_untold")

    def __init__(self, form: re.Pattern[str]) -> None:
        self._form = form
        self._given: dict[str, str] = {}
        self._open: dict[str, list[str]] = {}
        self._taken: set[str] = set()
        # The calls of the last answer from the last to the first, and all that have a result.
        self._untold: list[str] = []
        self._told: set[str] = set()

    def name_calls(self, given: Sequence[str]) -> list[str]:
        """Returns the ids of the calls of a further answer."""
        named = [self._name_call(each) for each in given]
        self._untold = named[::-1]
        self._open = {each: [] for each in given}
        for each, name in zip(given, named, strict=True):
            self._open[each].append(name)
        return named

    def _name_call(self, given: str) -> str:
        name = given if self._form.fullmatch(given) else self._hash(given)
        while name in self._taken:
            name = self._hash(f"{name}\0{len(self._taken)}")
        self._taken.add(name)
        self._given[given] = name
        return name

    def name_result(self, given: str) -> str:
        """Returns the id of the call that a result belongs to."""
        if waiting := self._open.get(given):
            found = waiting.pop(0)
        elif given in self._given:
            found = self._given[given]
        elif given:
            found = given if self._form.fullmatch(given) else self._hash(given)
        else:
            # Without an id, the place of a result tells its call.
            while self._untold and self._untold[-1] in self._told:
                self._untold.pop()
            found = self._untold[-1] if self._untold else self._hash(given)
        self._told.add(found)
        return found

    def _hash(self, text: str) -> str:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
        if self._form is not _NINE:
            return f"call_{digest.hexdigest()[:24]}"
        number = int.from_bytes(digest.digest())
        return "".join(_ALPHANUMERIC[number // 62**place % 62] for place in range(9))


# A name that some targets refuse, in raw tools or messages.
ODD_NAME: Final = re.compile(rb'"name"\s*:\s*"(?![a-zA-Z_][a-zA-Z0-9_-]{0,63}")')
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


def fit_names(
    fields: Mapping[str, Any], target: Constraints
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the fields with names that a target accepts, and those of the tools by the new ones.

    Calls of earlier turns may have names that no tool has: models invent some.
    """
    changed = dict(fields)
    names: dict[str, str] = {}
    has_changed = False

    def fit(function: Any, member: str) -> None:
        nonlocal has_changed
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and (fitting := target.fit_name(name)) != name:
            function["name"], has_changed = fitting, True
            if member == "tools":
                names[fitting] = name

    for member in ("tools", "tool_choice", "messages"):
        if member not in fields:
            continue
        value = _decode(_encode(fields[member]))
        for item in value if isinstance(value, list) else [value]:
            for call in [item, *_list(item, "tool_calls")] if isinstance(item, dict) else ():
                fit(call.get("function") if isinstance(call, dict) else None, member)
        changed[member] = value
    return (changed, names) if has_changed else (dict(fields), {})


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
    "application/x-pdf": "application/pdf",
    "application/csv": "text/csv",
    "text/x-markdown": "text/markdown",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
}
_PDF: Final = "JVBERi0"


def name_media_type(given: str | None, data: str, name: str | None = None) -> str | None:
    """Returns the type of media in Base64 as all targets write it.

    The bytes of a picture say more than its sender, whose type some targets compare with them. A
    type that is absent is that of the bytes or of the file's name.
    """
    kind = (given or "").partition(";")[0].strip().lower()
    kind = _ALIASES.get(kind, kind)
    is_unknown = kind in ("", "application/octet-stream")
    if is_unknown and data.startswith(_PDF):
        return "application/pdf"
    if is_unknown or kind.startswith("image/"):
        kind = sniff(data[:512].encode()) or kind
    if is_unknown and kind in ("", "application/octet-stream") and name:
        kind = mimetypes.guess_type(name)[0] or kind
    return kind or None


# The beginning of media in Base64, and their first bytes. Some encoders escape every slash.
_DATA: Final = re.compile(
    rb'(?<!\\)"(?i:data):([a-zA-Z]+\\?/[a-zA-Z0-9.+*-]+)?(?:;[^;,"\\]{1,64})*;(?i:base64),(?=([^"]{0,344}))'
)


def name_media_types(body: bytes) -> bytes:
    """Returns JSON whose media in Base64 have types as all servers write them."""
    return _DATA.sub(_name_data, body)


def _name_data(found: re.Match[bytes]) -> bytes:
    given, data = ((each or b"").replace(b"\\", b"").decode() for each in found.groups())
    kind = name_media_type(given, data)
    return found[0] if kind is None else b'"data:%b;base64,' % kind.encode()


# What a strict schema may have; other keywords become a part of the description.
_KEYWORDS: Final = frozenset(
    (
        "$ref", "$defs", "definitions", "type", "anyOf", "allOf", "enum", "const", "description",
        "title", "default", "properties", "required", "items", "additionalProperties", "format",
    )
)  # fmt: skip
_FORMATS: Final = (
    "date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid",
)  # fmt: skip


# What the schema of a tool's arguments may not have at its top.
ALTERNATIVES: Final = frozenset(("anyOf", "oneOf", "allOf"))


def flatten_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a tool's arguments without alternatives at its top.

    Every member of an alternative may be given; the description says how they go together.
    """
    told = {
        name: value
        for name, value in schema.items()
        if name in ALTERNATIVES and isinstance(value, list)
    }
    if not told:
        return schema
    kept = {name: value for name, value in schema.items() if name not in told}
    properties = dict(kept.get("properties") or {})
    # The first description of a member counts.
    merged: dict[str, Any] = {}
    for each in reversed([each for several in told.values() for each in several]):
        if isinstance(each, dict) and isinstance(each.get("properties"), dict):
            merged |= each["properties"]
    return _describe({**kept, "properties": merged | properties}, told)


def _describe(schema: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema whose description has the keywords that a target does not know."""
    text = _encode(told).decode()
    given = schema.get("description")
    return {**schema, "description": f"{given}\n\n{text}" if given else text}


def has_map(schema: Any) -> bool:
    """Tells whether a schema has an object of any names, which :func:`restrict_schema` would lose.

    Names beside ``properties`` count if the schema says more of them than that they may be there.
    """
    if not isinstance(schema, dict):
        return isinstance(schema, list) and any(map(has_map, schema))
    has_properties = "properties" in schema
    others = schema.get("additionalProperties", not has_properties)
    has_others = (isinstance(others, dict) and others) or schema.get("patternProperties")
    if has_others and (_is_object(schema) or has_properties):
        return True
    is_plain = not schema.get("properties") and ALTERNATIVES.isdisjoint(schema)
    if is_plain and others is not False and _is_object(schema):
        return True
    named = [schema.get(name) for name in ("properties", "$defs", "definitions")]
    inner = [each for members in named if isinstance(members, dict) for each in members.values()]
    return any(map(has_map, [schema.get("items"), *map(schema.get, ALTERNATIVES), *inner]))


def _is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


# Keywords that say what a value is, of which a strict schema of OpenAI's must have one, and those
# that it may not have.
_KINDS: Final = frozenset(("type", "anyOf", "$ref"))
_OPEN: Final = frozenset(
    (
        "allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "prefixItems",
        "dependentRequired", "dependentSchemas",
    )
)  # fmt: skip


def is_closed(schema: Any, *, is_top: bool = True) -> bool:
    """Tells whether a schema is an object's, and one that OpenAI takes as a strict one.

    Each object inside requires all of its properties, and allows no others.
    """
    if not isinstance(schema, dict) or not _OPEN.isdisjoint(schema) or _KINDS.isdisjoint(schema):
        return False
    if is_top and ("anyOf" in schema or not _is_object(schema)):
        return False
    named = [schema.get(name, {}) for name in ("properties", "$defs", "definitions")]
    required, choices = schema.get("required", []), schema.get("anyOf", [])
    if not all(isinstance(each, dict) for each in named) or not isinstance(choices, list):
        return False
    if _is_object(schema) or "properties" in schema:
        has_all = isinstance(required, list) and all(name in required for name in named[0])
        if not has_all or schema.get("additionalProperties") is not False:
            return False
    items = [schema["items"]] if "items" in schema else []
    inner = [*choices, *items, *(each for members in named for each in members.values())]
    return all(is_closed(each, is_top=False) for each in inner)


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
        elif (
            name not in _KEYWORDS
            or (name == "format" and value not in _FORMATS)
            or (name == "additionalProperties" and isinstance(value, dict))
        ):
            if not name.startswith("$"):
                told[name] = value
        else:
            kept[name] = value
    if _is_object(kept) or "properties" in kept:
        kept["additionalProperties"] = False
    return _describe(kept, told) if told else kept
