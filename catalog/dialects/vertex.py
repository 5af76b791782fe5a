"""Google Vertex AI's OpenAI-compatible chat completions, called by a service account.

https://cloud.google.com/vertex-ai/generative-ai/docs/start/openai describes them. They serve every
model except Claude; see :mod:`vertex_claude`.

The bearer token is a JWT that the service account signs itself, with a scope instead of an
audience, as https://google.aip.dev/auth/4111 describes. So no token server is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from google.auth import jwt
from google.auth.crypt import RSASigner

from catalog.dialects import openai
from catalog.dialects.base import Call, Operation
from catalog.dialects.shared import credentials
from config.clocks.clock import clock as database_clock
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = True
parse_reply = openai.parse_reply
stream_parser = openai.stream_parser

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
# In seconds. Google accepts a lifetime of at most one hour; a token is used for fifty minutes.
_LIFETIME_SECONDS: Final = 3600
_USED_SECONDS: Final = 3000


def host(base_url: str | None, secret: Secret) -> str:
    return credentials.parse_vertex(secret).host


def build(call: Call, *, clock: Callable[[], float] = database_clock.time) -> OutboundRequest:
    return openai.build_request(
        call,
        f"{project_url(call.secret)}/endpoints/openapi/{call.operation.value}",
        {"Authorization": f"Bearer {bearer_token(call.secret, clock()).reveal()}"},
        has_signatures=True,
    )


def project_url(secret: Secret) -> str:
    """Returns the URL of the credential's project at its location."""
    found = credentials.parse_vertex(secret)
    return f"https://{found.host}/v1/projects/{found.project_id}/locations/{found.location}"


def bearer_token(secret: Secret, moment: float) -> Secret:
    """Returns the bearer token for a moment in seconds since the epoch."""
    # Tokens are issued at the start of fixed windows, so the cache holds one token per window.
    now = int(moment)
    return _sign_token(secret, now - now % _USED_SECONDS)


@lru_cache(maxsize=4096)
def _sign_token(secret: Secret, issued_at: int) -> Secret:
    credential = credentials.parse_vertex(secret)
    claims = {
        "iss": credential.client_email,
        "sub": credential.client_email,
        "scope": _SCOPE,
        "iat": issued_at,
        "exp": issued_at + _LIFETIME_SECONDS,
    }
    signer = RSASigner(credential.private_key, credential.private_key_id)  # type: ignore[no-untyped-call]
    return Secret(jwt.encode(signer, claims).decode())  # type: ignore[no-untyped-call]
