"""Signatures of webhooks as Standard Webhooks has them; pure. See https://www.standardwebhooks.com.

A receiver with any library of that standard verifies them: the header ``webhook-signature`` has one
signature for each valid secret, over the id, the time and the body.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from config.credentials import Secret

_PREFIX: Final = "whsec_"
_KEY_BYTES: Final = 32


def make_secret() -> Secret:
    """Returns a new secret of 256 random bits in the form of the standard."""
    return Secret(_PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode())


def sign(
    secrets: Sequence[Secret], *, message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Returns the three headers of a message, signed with each secret."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(_signature(secret, signed) for secret in secrets),
    }


def _signature(secret: Secret, signed: bytes) -> str:
    key = base64.b64decode(secret.reveal().removeprefix(_PREFIX))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
