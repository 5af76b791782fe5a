"""The errors of malformed requests, each with the name of its field."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from typing import Final

import msgspec

from config.api.errors import GatewayError, InvalidRequest

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
    r"|application/octet-stream)\Z": ("Must be image/jpeg, image/png, image/gif or image/webp."),
}
_BAD_FORM: Final = "Has a form that is not allowed."
# Any of these names the model.
MODEL_FIELDS: Final = frozenset(("model", "models", "preset"))


def explain_decode_error(
    text: str,
    *,
    within: str = "",
    shape: type[msgspec.Struct] | None = None,
    present: Collection[str] = (),
) -> InvalidRequest:
    """Returns the error for a message of msgspec, which names a type and a place.

    ``within`` is the name of the field that was decoded, if it was not the whole body. The error
    of a body that lacks a field names all that its ``shape`` requires beside the ``present`` ones.
    """
    match = _PLACE.fullmatch(text)
    assert match is not None
    what = match["what"].replace("`", "")
    path = (within + (match["path"] or "")).lstrip(".").replace("[...]", "[]")
    missing = re.search(r"missing required field (\w+)", what)
    if missing and not path and shape is not None:
        return _lacking_fields(shape, present)
    if missing:
        return missing_field(f"{path}.{missing[1]}".lstrip("."))
    if not path:
        return InvalidRequest(f"The body must be a JSON object. ({what})")
    if what.startswith(_REGEX):
        return field_error(path, _FORMS.get(ast.literal_eval(what[len(_REGEX) :]), _BAD_FORM))
    return field_error(path, f"{what}.")


def _lacking_fields(shape: type[msgspec.Struct], present: Collection[str]) -> InvalidRequest:
    """Returns the error for all fields that a body of a shape lacks."""
    fields = msgspec.structs.fields(shape)
    names = [each.encode_name for each in fields if each.required]
    if MODEL_FIELDS.isdisjoint(present) and any(each.name == "model" for each in fields):
        names.insert(0, "model")
    return missing_fields(*(name for name in dict.fromkeys(names) if name not in present))


def field_error(name: str, text: str) -> InvalidRequest:
    """Returns the error for one wrong field."""
    return InvalidRequest(f"{name}: {text}", metadata={"fields": {name: text}})


def missing_field(name: str) -> InvalidRequest:
    """Returns the error for a missing field."""
    return missing_fields(name)


def missing_fields(*names: str) -> InvalidRequest:
    """Returns the error for all fields that are missing."""
    text = "This field is required." if len(names) == 1 else "These fields are required."
    fields = dict.fromkeys(names, "This field is required.")
    return InvalidRequest(f"{', '.join(names)}: {text}", metadata={"fields": fields})


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
