"""Encodes the reasoning of replies into texts that callers send back unchanged, and decodes them.

A block of Anthropic's has one opaque text: its signature, or its encrypted data. The reasoning of
other providers has more members that must come back with it, so its opaque text is our mark and the
base64 of all these members. Reasoning that nobody signed has one too: clients leave out a block
without a signature, and some models refuse a conversation without their own thoughts.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from catalog.dialects.shared.replies import ANTHROPIC_FORMAT
from inference.requests.chat_replies import ReplyReasoning

MARK: Final = "causeway:"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ReplyReasoning).decode


def encode_opaque(detail: ReplyReasoning) -> str:
    """Returns the opaque text of a block: Anthropic's own text, or the marked encoding."""
    secret = detail.data if detail.signature is None else detail.signature
    if detail.format == ANTHROPIC_FORMAT:
        return secret or ""
    kept = ReplyReasoning(
        signature=detail.signature, data=detail.data, id=detail.id, format=detail.format
    )
    return MARK + base64.urlsafe_b64encode(_encode(kept)).decode()


def decode_opaque(opaque: str, *, is_encrypted: bool, **members: Any) -> ReplyReasoning:
    """Returns the detail of a block's opaque text; a text without our mark is Anthropic's own.

    ``members`` are the other members of the block.
    """
    detail = _decode_marked(opaque)
    if detail is None:
        detail = ReplyReasoning(format=ANTHROPIC_FORMAT)
        if is_encrypted:
            detail.data = opaque
        else:
            detail.signature = opaque
    detail.type = "reasoning.encrypted" if is_encrypted else "reasoning.text"
    return msgspec.structs.replace(detail, **members)


def _decode_marked(opaque: str) -> ReplyReasoning | None:
    if not opaque.startswith(MARK):
        return None
    try:
        return _decode(base64.urlsafe_b64decode(opaque.removeprefix(MARK)))
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return None
