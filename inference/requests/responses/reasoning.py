"""Puts the reasoning of chat into one opaque text that callers send back unchanged.

Providers sign or encrypt their reasoning, and accept it only as they made it; others need their own
text back. So the opaque text holds all members of chat's ``reasoning_details``, and the readable
summary beside it is never sent to a provider. A checksum shows whether the text was changed on its
way.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from inference.requests.chat_replies import ReplyReasoning
from inference.requests.limits import check_body

MARK: Final = "causeway1:"
_CHECK_BYTES: Final = 16
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[ReplyReasoning]).decode


class Damaged(Exception):
    """A text that this service made, and that somebody changed."""


def seal(details: Iterable[ReplyReasoning]) -> str | None:
    """Returns the opaque text of some reasoning; ``None`` if it has no text and no signature."""
    kept = [*details]
    if not any(detail.data or detail.signature or detail.text for detail in kept):
        return None
    payload = _encode(kept)
    return MARK + base64.urlsafe_b64encode(_check(payload) + payload).decode()


def unseal(text: str) -> list[ReplyReasoning] | None:
    """Returns the reasoning of an opaque text; ``None`` for a text of another service.

    Raises :class:`Damaged`, and :class:`InvalidRequest` for a text beyond the limits of a body:
    anyone can make such a text.
    """
    if not text.startswith(MARK):
        return None
    try:
        sealed = base64.b64decode(text.removeprefix(MARK), altchars=b"-_", validate=True)
        check, payload = sealed[:_CHECK_BYTES], sealed[_CHECK_BYTES:]
        if check != _check(payload):
            raise Damaged
        check_body(payload)
        return _decode(payload)
    except (binascii.Error, msgspec.DecodeError, ValueError, RecursionError):
        raise Damaged from None


def _check(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()[:_CHECK_BYTES]
