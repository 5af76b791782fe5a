"""The errors of malformed requests, each with the name of its field."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from config.api.errors import GatewayError, InvalidRequest

# A message of msgspec: "Expected `int`, got `str` - at `$.messages[0].role`".
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)


def explain_decode_error(text: str, *, within: str = "") -> InvalidRequest:
    """Returns the error for a message of msgspec, which names a type and a place.

    ``within`` is the name of the field that was decoded, if it was not the whole body.
    """
    match = _PLACE.fullmatch(text)
    assert match is not None
    what = match["what"].replace("`", "")
    path = (within + (match["path"] or "")).lstrip(".").replace("[...]", "[]")
    missing = re.search(r"missing required field (\w+)", what)
    if missing:
        return missing_field(f"{path}.{missing[1]}".lstrip("."))
    if not path:
        return InvalidRequest(f"The body must be a JSON object. ({what})")
    return field_error(path, f"{what}.")


def field_error(name: str, text: str) -> InvalidRequest:
    """Returns the error for one wrong field."""
    return InvalidRequest(f"{name}: {text}", metadata={"fields": {name: text}})


def missing_field(name: str) -> InvalidRequest:
    """Returns the error for a missing field."""
    return field_error(name, "This field is required.")


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
