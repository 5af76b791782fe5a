"""Signs requests to Bedrock's runtime, and reads the messages of AWS's event stream."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
from botocore.auth import SIGV4_TIMESTAMP, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError

from catalog.dialects.base import Call, InvalidStream, ProviderFailure, parse_error
from catalog.dialects.shared import credentials
from catalog.dialects.shared.sse import EventTooLarge
from config.credentials import Secret
from config.egress import OutboundRequest

_MAX_EVENT_BYTES: Final = 20_971_520
_encode = msgspec.json.Encoder().encode


def post(
    call: Call, method: str, body: dict[str, Any], clock: Callable[[], float]
) -> OutboundRequest:
    """Returns the request that calls a method of the runtime for the model of a call."""
    credential = credentials.parse_bedrock(call.secret)
    # An identifier may be an ARN, whose slashes and colons must stay in one segment of the path.
    model = quote(call.model, safe="")
    login = credential.login
    request = OutboundRequest(
        method="POST",
        url=f"https://{credential.host}/model/{model}/{method}",
        headers={
            "Content-Type": "application/json",
            "Accept": "application/vnd.amazon.eventstream" if call.stream else "application/json",
        },
        body=_encode(body),
    )
    if isinstance(login, Secret):
        signature = {"Authorization": f"Bearer {login.reveal()}"}
    else:
        now = datetime.fromtimestamp(clock(), UTC)
        signature = _sign(request, login, credential.region, now)
    request.headers = {**request.headers, **signature}
    return request


def _sign(
    request: OutboundRequest, key: credentials.AccessKey, region: str, now: datetime
) -> dict[str, str]:
    """Returns the headers that sign a request: the date, the session token and the signature.

    ``Content-Type`` is the only other header that is signed; the rest may change on the way.
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
    # Signs like `add_auth`, but with a given time and without its debug log of the session token.
    text = signer.string_to_sign(unsigned, signer.canonical_request(unsigned))
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(unsigned)}, "
        f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(unsigned))}, "
        f"Signature={signer.signature(text, unsigned)}"
    )
    return headers


class Frames:
    """Splits bytes into the messages of AWS's event stream, which carry checksums."""

    __slots__ = ("_buffer", "_size")

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()
        self._size = 0

    @property
    def is_complete(self) -> bool:
        return self._size == 0

    @property
    def held(self) -> int:
        return self._size

    def flush(self) -> Iterator[EventStreamMessage]:
        raise InvalidStream("A message of the stream is cut off.")

    def feed(self, data: bytes) -> Iterator[EventStreamMessage]:
        self._buffer.add_data(data)
        self._size += len(data)
        try:
            for message in self._buffer:
                self._size -= message.prelude.total_length
                yield message
        except (ParserError, struct.error, UnicodeDecodeError, KeyError):
            raise InvalidStream("A message of the stream is damaged.") from None
        if self._size > _MAX_EVENT_BYTES:
            raise EventTooLarge


def parse_failure(message: EventStreamMessage) -> ProviderFailure:
    """Returns the failure in a message that is an exception of the model or a stream error."""
    headers = message.headers
    code = headers.get(":exception-type") or headers.get(":error-code")
    text = parse_error(message.payload).message or headers.get(":error-message")
    return ProviderFailure(
        text if isinstance(text, str) else None, code if isinstance(code, str) else None
    )
