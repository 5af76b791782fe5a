"""Amazon Bedrock's OpenAI-compatible chat completions, signed or with a Bedrock API key."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from botocore.auth import SIGV4_TIMESTAMP, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from catalog.dialects import credentials, openai
from catalog.dialects.base import Call, Operation
from config.egress import OutboundRequest
from config.secrets import Secret

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = True
parse_reply = openai.parse_reply
stream_parser = openai.stream_parser


def host(base_url: str | None, secret: Secret) -> str:
    return credentials.bedrock(secret).host


def build(call: Call, *, clock: Callable[[], float] = time.time) -> OutboundRequest:
    credential = credentials.bedrock(call.secret)
    url = f"https://{credential.host}/openai/v1/{call.operation.value}"
    login = credential.login
    if isinstance(login, Secret):
        return openai.request(call, url, {"Authorization": f"Bearer {login.reveal()}"})
    request = openai.request(call, url, {})
    request.headers = {
        **request.headers,
        **_signature(request, login, credential.region, datetime.fromtimestamp(clock(), UTC)),
    }
    return request


def _signature(
    request: OutboundRequest, key: credentials.AccessKey, region: str, now: datetime
) -> dict[str, str]:
    """Returns the headers that sign a request: the date, the token of a session, the signature.

    Of the other headers only the content's type is signed: the rest may change on the way.
    """
    token = key.session_token
    signer = SigV4Auth(
        ReadOnlyCredentials(
            key.access_key_id.reveal(),
            key.secret_access_key.reveal(),
            None if token is None else token.reveal(),
        ),
        "bedrock",
        region,
    )
    timestamp = now.strftime(SIGV4_TIMESTAMP)
    headers = {"X-Amz-Date": timestamp}
    if token is not None:
        headers["X-Amz-Security-Token"] = token.reveal()
    unsigned = AWSRequest(
        method=request.method,
        url=request.url,
        data=request.body,
        headers={"Content-Type": request.headers["Content-Type"], **headers},
    )
    unsigned.context["timestamp"] = timestamp
    # What `add_auth` does, but at a given moment, and without its debug log of the session's token.
    text = signer.string_to_sign(unsigned, signer.canonical_request(unsigned))
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(unsigned)}, "
        f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(unsigned))}, "
        f"Signature={signer.signature(text, unsigned)}"
    )
    return headers
