"""The content that is stored of a generation: what it has, and how it is encrypted."""

from __future__ import annotations

import zlib
from typing import Any, Final
from uuid import UUID

import msgspec

from config.secrets import DecryptionFailed, seal_with, unseal_with
from inference.requests.problems import Failure

# The first level makes texts half as long, and costs less than the encryption of what it saves.
_LEVEL: Final = 1


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """The input and the output of a generation.

    ``input`` has a prompt, or messages. ``failure`` is the error that ended the generation, and
    ``earlier`` are those of the candidates that were tried before.
    """

    input: dict[str, Any]
    output: dict[str, Any]
    failure: Failure | None = None
    earlier: tuple[Failure, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Content).decode


def seal_content(content: Content, key: bytes, organization_id: UUID, generation_id: str) -> bytes:
    """Encrypts a content with the key of its organization, bound to its generation."""
    packed = zlib.compress(_encode(content), _LEVEL)
    return seal_with(key, packed, associated=_associate(organization_id, generation_id))


def unseal_content(sealed: bytes, key: bytes, organization_id: UUID, generation_id: str) -> Content:
    """Decrypts a content; raises :class:`DecryptionFailed`."""
    packed = unseal_with(key, sealed, associated=_associate(organization_id, generation_id))
    try:
        return _decode(zlib.decompress(packed))
    except (zlib.error, msgspec.DecodeError):
        raise DecryptionFailed from None


def _associate(organization_id: UUID, generation_id: str) -> str:
    return f"text:{organization_id}:{generation_id}"
