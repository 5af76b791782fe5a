"""Reasoning of earlier answers, which callers send back as they got it.

Anthropic's blocks have room for one opaque text, its signature. The reasoning of other providers
has more that must come back with it, so their text is a seal around all of that.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from catalog.dialects.shared.replies import ANTHROPIC_FORMAT

_MARK: Final = "causeway:"
_encode = msgspec.json.Encoder().encode


class Detail(msgspec.Struct, omit_defaults=True):
    """A member of chat's ``reasoning_details``: text, a signature of it, or encrypted ``data``."""

    type: str = ""
    text: str | None = None
    summary: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None
    index: int | None = None


_decode = msgspec.json.Decoder(Detail).decode


def sealed(detail: Detail) -> str:
    """Returns the opaque text of a block: Anthropic's own, or a seal around another provider's."""
    secret = detail.data if detail.signature is None else detail.signature
    if detail.format == ANTHROPIC_FORMAT:
        return secret or ""
    kept = Detail(signature=detail.signature, data=detail.data, id=detail.id, format=detail.format)
    return _MARK + base64.urlsafe_b64encode(_encode(kept)).decode()


def opened(opaque: str, *, is_encrypted: bool, **members: Any) -> Detail:
    """Returns what a block's opaque text stands for; one without our mark is Anthropic's."""
    detail = _unsealed(opaque)
    if detail is None:
        detail = Detail(format=ANTHROPIC_FORMAT)
        if is_encrypted:
            detail.data = opaque
        else:
            detail.signature = opaque
    detail.type = "reasoning.encrypted" if is_encrypted else "reasoning.text"
    return msgspec.structs.replace(detail, **members)


def _unsealed(opaque: str) -> Detail | None:
    if not opaque.startswith(_MARK):
        return None
    try:
        return _decode(base64.urlsafe_b64decode(opaque.removeprefix(_MARK)))
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return None
