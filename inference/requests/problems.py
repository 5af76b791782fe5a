"""The errors of malformed requests, each with the name of its field."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from config.api.errors import GatewayError, InvalidRequest
from config.api.text import CONTROL_CHARACTERS, NOT_STORABLE
from config.server.load.large_work import LARGE_BYTES

Item = TypeVar("Item")
Converted = TypeVar("Converted")

# A message of msgspec: "Expected `int`, got `str` - at `$.messages[0].role`".
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_REGEX: Final = "Expected str matching regex "
# What a text must be, by the pattern that it must match.
_FORMS: Final = {
    r"^[a-zA-Z0-9_-]+\Z": "Must have letters, digits, hyphens and underscores alone.",
    r"^[0-9]{1,9}(\.[0-9]{1,12})?\Z": 'Must be an amount such as 0.5 or "0.5".',
    r"^(auto|512|768|1K|1\.5K|2K|4K|[1-9][0-9]{1,4}x[1-9][0-9]{1,4})\Z": (
        "Must be auto, 512, 768, 1K, 1.5K, 2K, 4K, or a width and a height such as 1024x1024."
    ),
    r"^(image/(p?jpe?g|(x-)?png|gif|webp|\*)|IMAGE/(JPE?G|PNG|GIF|WEBP)"
    r"|application/octet-stream)(;.*)?\Z": (
        "Must be image/jpeg, image/png, image/gif or image/webp."
    ),
}
_BAD_FORM: Final = "Has a form that is not allowed."
_REQUIRED: Final = "This field is required."
# The most missing fields that one error names.
_MOST_NAMED: Final = 20
# Any of these names the model.
MODEL_FIELDS: Final = frozenset(("model", "models", "preset"))


def explain_decode_error(
    text: str, *, within: str = "", shape: Any = None, body: bytes | msgspec.Raw = b""
) -> InvalidRequest:
    """Returns the error for a message of msgspec, which names a type and a place.

    ``within`` is the name of the field that was decoded, if it was not the whole body. The error
    of a ``body`` that lacks a field names all that it lacks of its ``shape``.
    """
    match = _PLACE.fullmatch(text)
    assert match is not None
    what = match["what"].replace("`", "")
    path = (within + (match["path"] or "")).lstrip(".").replace("[...]", "[]")
    missing = re.search(r"missing required field (\w+)", what)
    if missing:
        lacking = () if shape is None else _find_lacking(shape, bytes(body), within)
        return missing_fields(*(lacking or [f"{path}.{missing[1]}".lstrip(".")]))
    if not path:
        return InvalidRequest(f"The body must be a JSON object. ({what})")
    if what.startswith(_REGEX):
        return field_error(path, _FORMS.get(ast.literal_eval(what[len(_REGEX) :]), _BAD_FORM))
    return field_error(path, f"{what}.")


def _find_lacking(shape: Any, body: bytes, within: str) -> list[str]:
    """Returns the names of the fields that a body lacks of a shape, with all that are nested."""
    if len(body) > LARGE_BYTES:
        return []
    value, kind = msgspec.json.decode(body), _inspect(shape)
    names = list(islice(_walk_lacking(kind, value, within), _MOST_NAMED))
    if within or not isinstance(kind, msgspec.inspect.StructType):
        return names
    has_model = any(each.name == "model" for each in kind.fields)
    if has_model and MODEL_FIELDS.isdisjoint(value):
        names = ["model", *(each for each in names if each != "model")]
    return names


# Takes milliseconds for a body of chat.
_inspect = cache(msgspec.inspect.type_info)


def _walk_lacking(kind: msgspec.inspect.Type, value: Any, place: str) -> Iterator[str]:
    match kind:
        case msgspec.inspect.Metadata(type=inner):
            yield from _walk_lacking(inner, value, place)
        case msgspec.inspect.UnionType(types=types):
            yield from _walk_union(types, value, place)
        case msgspec.inspect.StructType(fields=fields) if isinstance(value, dict):
            for field in fields:
                name = f"{place}.{field.encode_name}".lstrip(".")
                if field.encode_name in value:
                    yield from _walk_lacking(field.type, value[field.encode_name], name)
                elif field.required:
                    yield name
        case msgspec.inspect.ListType(item_type=item) if isinstance(value, list):
            for index, each in enumerate(value):
                yield from _walk_lacking(item, each, f"{place}[{index}]")


def _walk_union(types: Iterable[Any], value: Any, place: str) -> Iterator[str]:
    structs = [each for each in types if isinstance(each, msgspec.inspect.StructType)]
    if not isinstance(value, dict) or not structs:
        for each in types:
            yield from _walk_lacking(each, value, place)
    elif (tag := structs[0].tag_field) is not None and tag not in value:
        yield f"{place}.{tag}".lstrip(".")
    else:
        for each in structs:
            if tag is None or each.tag == value[tag]:
                yield from _walk_lacking(each, value, place)


def field_error(name: str, text: str) -> InvalidRequest:
    """Returns the error for one wrong field."""
    return InvalidRequest(f"{name}: {text}", metadata={"fields": {name: text}})


def require_user(name: str, user: str | None) -> None:
    """Raises :class:`InvalidRequest` for a text by which no end user can be registered.

    ``/external-users`` takes control characters inside of a text, and ``/end-users`` white space at
    its ends. It is stored, hashed and exported, and stands in no header or line of the log.
    """
    if user is None or not CONTROL_CHARACTERS.search(user):
        return
    if NOT_STORABLE.search(user):
        raise field_error(name, "Must not contain NUL.")
    if user != user.strip():
        raise field_error(name, "Must not begin or end with white space.")


def missing_fields(*names: str) -> InvalidRequest:
    """Returns the error for the fields that are missing."""
    text = _REQUIRED if len(names) == 1 else "These fields are required."
    fields = dict.fromkeys(names, _REQUIRED)
    return InvalidRequest(f"{', '.join(names)}: {text}", metadata={"fields": fields})


def missing_parts(fields: Collection[str], *names: str) -> InvalidRequest:
    """Returns the error for parts that a form or a body lacks, and for its model if it has none."""
    return missing_fields(*(["model"] if MODEL_FIELDS.isdisjoint(fields) else []), *names)


def convert_each(
    items: Iterable[Item], convert: Callable[[Item, str], Converted], place: str
) -> list[Converted]:
    """Converts the items of a list; an error about missing fields names those of all items."""
    converted, lacking = [], list[str]()
    for index, item in enumerate(items):
        try:
            converted.append(convert(item, f"{place}[{index}]"))
        except InvalidRequest as exc:
            fields = exc.metadata.get("fields", {})
            if set(fields.values()) != {_REQUIRED}:
                if not lacking:
                    raise
                break
            lacking += fields
    if lacking:
        raise missing_fields(*lacking[:_MOST_NAMED])
    return converted


def name_shortening(error: GatewayError, field: str) -> None:
    """Names the field that asks to shorten a prompt in the refusal of one that is too long."""
    text = "This service does not shorten prompts."
    error.message = f"{field}: {text} {error.message}"
    error.metadata |= {"fields": {field: text}}


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as its caller could see it; none of the provider's bytes."""

    status: int
    message: str
    provider_name: str | None = None
