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
    signer = _Signer(
        ReadOnlyCredentials(
            key.access_key_id.reveal(),
            key.secret_access_key.reveal(),
            None if token is None else token.reveal(),
        ),
        region,
        now,
    )
    signed = AWSRequest(
        method=request.method,
        url=request.url,
        data=request.body,
        headers={"Content-Type": request.headers["Content-Type"]},
    )
    signer.add_auth(signed)
    return dict(signed.headers.items())


class _Signer(SigV4Auth):
    """Signs at a given moment; the library's own entry point asks the system's clock."""

    def __init__(self, login: ReadOnlyCredentials, region: str, now: datetime) -> None:
        super().__init__(login, "bedrock", region)
        self._now = now

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        request.context["timestamp"] = self._now.strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)
