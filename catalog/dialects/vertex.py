"""Google Vertex AI's OpenAI-compatible chat completions, called as a service account.

It serves every model but Claude, which is :mod:`vertex_claude`'s.

The bearer token is a JWT that the service account signs itself, with a scope in place of an
audience, as https://google.aip.dev/auth/4111 describes: no token server is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from google.auth import jwt
from google.auth.crypt import RSASigner

from catalog.dialects import openai
from catalog.dialects.base import Call, Operation
from catalog.dialects.shared import credentials
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = True
parse_reply = openai.parse_reply
stream_parser = openai.stream_parser

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
# Google accepts an hour at most; a token is used for fifty minutes of it.
_LIFETIME: Final = 3600
_IN_USE: Final = 3000


def host(base_url: str | None, secret: Secret) -> str:
    return credentials.vertex(secret).host


def build(call: Call, *, clock: Callable[[], float] = time.time) -> OutboundRequest:
    return openai.request(
        call,
        f"{parent(call.secret)}/endpoints/openapi/{call.operation.value}",
        {"Authorization": f"Bearer {token(call.secret, clock()).reveal()}"},
        signs_calls=True,
    )


def parent(secret: Secret) -> str:
    """Returns the URL of the credential's project where it runs."""
    found = credentials.vertex(secret)
    return f"https://{found.host}/v1/projects/{found.project_id}/locations/{found.location}"


def token(secret: Secret, moment: float) -> Secret:
    """Returns the bearer token of a moment, in seconds since the epoch."""
    # A moment's tokens begin at its window's start, so that the moment alone says which it is.
    now = int(moment)
    return _token(secret, now - now % _IN_USE)


@lru_cache(maxsize=4096)
def _token(secret: Secret, issued_at: int) -> Secret:
    credential = credentials.vertex(secret)
    claims = {
        "iss": credential.client_email,
        "sub": credential.client_email,
        "scope": _SCOPE,
        "iat": issued_at,
        "exp": issued_at + _LIFETIME,
    }
    signer = RSASigner(credential.private_key, credential.private_key_id)  # type: ignore[no-untyped-call]
    return Secret(jwt.encode(signer, claims).decode())  # type: ignore[no-untyped-call]
