"""Decodes the parts of a request whose shape depends on their type, and names wrong fields."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from inference.requests.problems import explain_decode_error, field_error

Shape = TypeVar("Shape")

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read(decoder: msgspec.json.Decoder[Shape], raw: msgspec.Raw, place: str) -> Shape:
    """Decodes a member; raises :class:`InvalidRequest` with the name of the wrong field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc), within=place, shape=decoder.type, body=raw) from None


def read_members(raw: msgspec.Raw, place: str) -> dict[str, msgspec.Raw]:
    """Decodes an object and leaves its values raw."""
    try:
        return _decode_object(raw)
    except msgspec.ValidationError:
        raise field_error(place, "Expected object.") from None
