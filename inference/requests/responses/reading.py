"""Decodes the parts of a request whose shape depends on their type, and names wrong fields."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from inference.requests.problems import explain_decode_error, field_error

Shape = TypeVar("Shape")

# Values that set nothing: every field accepts them.
_EMPTY: Final = frozenset((b"", b"null", b"false", b'""', b"[]", b"{}"))
_EMPTY_BYTES: Final = 5
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_unset(raw: msgspec.Raw) -> bool:
    """Returns whether a member is missing, or has a value that sets nothing."""
    return len(raw) <= _EMPTY_BYTES and bytes(raw) in _EMPTY


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
