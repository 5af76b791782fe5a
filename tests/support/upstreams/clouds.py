"""The clouds as a local server, which checks what a cloud would check: path, login, signature.

Signatures are computed here from what the clouds publish, not with the libraries that make them.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import json
import re
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote, unquote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.embedded import AZURE_HOST, BEDROCK_HOST, FOUNDRY_HOST, VERTEX_HOST
from tests.support.simulator.behaviours import BEHAVIOURS
from tests.support.simulator.protocol import Request, Script, Signal, Step
from tests.support.simulator.server import Simulator

AZURE_KEY: Final = "azure-key-0123456789abcdef"
BEDROCK_KEY: Final = "bedrock-key-0123456789abcdef"
ACCESS_KEY_ID: Final = "AKIAIOSFODNN7EXAMPLE"
SECRET_ACCESS_KEY: Final = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SESSION_TOKEN: Final = "AQoEXAMPLEH4aoAH0gNCAPyJxz4BlCFFxWNE1OPTgk5TthT+FvwqnKwRcOIfrRh3c"
PROJECT: Final = "example-project-1"
ACCOUNT: Final = f"gateway@{PROJECT}.iam.gserviceaccount.com"
KEY_ID: Final = "0123456789abcdef0123456789abcdef01234567"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"

_V1_PATH: Final = "/openai/v1/chat/completions"
_DATED_PATH: Final = re.compile(
    r"/openai/deployments/([^/]+)/chat/completions\?api-version=2024-10-21"
)
_CONVERSE_PATH: Final = re.compile(r"/model/([A-Za-z0-9._~%-]+)/converse(-stream)?")
_INVOKE_PATH: Final = re.compile(r"/model/([A-Za-z0-9._~%-]+)/invoke(-with-response-stream)?")
# Those that it knows; a request with another is refused.
BEDROCK_BETAS: Final = frozenset(
    (
        "computer-use-2025-01-24", "context-1m-2025-08-07", "context-management-2025-06-27",
        "effort-2025-11-24", "tool-search-tool-2025-10-19",
    )
)  # fmt: skip
_VERTEX: Final = f"/v1/projects/{PROJECT}/locations/us-central1"
_VERTEX_PATH: Final = f"{_VERTEX}/endpoints/openapi/chat/completions"
_PREDICT_PATH: Final = re.compile(
    rf"{_VERTEX}/publishers/anthropic/models/(claude[a-z0-9@-]+):(rawPredict|streamRawPredict)"
)
_MESSAGES_PATH: Final = "/anthropic/v1/messages"
_CLAUDE: Final = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}


@cache
def private_key(number: int = 0) -> rsa.RSAPrivateKey:
    """One key for each number, made once a process."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any) -> str:
    return str(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
    )


def azure(**changes: Any) -> dict[str, Any]:
    return _changed({"api_key": AZURE_KEY, "endpoint_url": f"https://{AZURE_HOST}"}, changes)


def foundry(**changes: Any) -> dict[str, Any]:
    return azure(endpoint_url=f"https://{FOUNDRY_HOST}", **changes)


def bedrock(**changes: Any) -> dict[str, Any]:
    credential = {
        "region": "us-east-1",
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
    }
    return _changed(credential, changes)


def bedrock_key(**changes: Any) -> dict[str, Any]:
    return _changed({"region": "us-east-1", "api_key": BEDROCK_KEY}, changes)


def vertex(**changes: Any) -> dict[str, Any]:
    credential = {"project_id": PROJECT, "location": "us-central1", "service_account": account()}
    return _changed(credential, changes)


def account(**changes: Any) -> dict[str, Any]:
    """A service account's key file, with all that Google puts into it."""
    file = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": KEY_ID,
        "private_key": pem(private_key()),
        "client_email": ACCOUNT,
        "client_id": "123456789012345678901",
        "auth_uri": "https://accounts.google.com/o/oauth2/auth",
        "token_uri": "https://oauth2.googleapis.com/token",
        "auth_provider_x509_cert_url": "https://www.googleapis.com/oauth2/v1/certs",
        "client_x509_cert_url": "https://www.googleapis.com/robot/v1/metadata/x509/gateway",
        "universe_domain": "googleapis.com",
    }
    return _changed(file, changes)


def _changed(members: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Replaces members; ``None`` removes one."""
    return {name: value for name, value in {**members, **changes}.items() if value is not None}


class Clouds(Simulator):
    """The simulated upstream at the clouds' names.

    Bedrock's speaks Converse, and Anthropic's format by InvokeModel: ``script`` are the steps with
    which it answers either instead.
    """

    script: Script | None = None

    def clear(self) -> None:
        super().clear()
        self.script = None

    def _answer(self, request: Request) -> Iterable[Step]:
        steps = super()._answer(request)
        if request.kind == "messages":
            predicted = _PREDICT_PATH.fullmatch(request.path)
            if predicted is not None:
                request.body |= {"model": predicted[1]}
            invoked = _INVOKE_PATH.fullmatch(request.path)
            if invoked is not None:
                request.body |= {"model": unquote(invoked[1]), "stream": invoked[2] is not None}
                if self.script is not None:
                    return self.script
            question = request.body["messages"][-1]["content"][-1]["text"]
            answer = f"You said: {question}"
            events = _make_events(answer, question) if request.stream else []
            if invoked is not None and events:
                return (stream_head(), invoke_stream(*events), Signal.CLOSE)
            return (_messaged(answer, question, events),)
        if request.kind != "converse":
            return steps
        found = _CONVERSE_PATH.fullmatch(request.path)
        assert found is not None
        # What the others say in the body is in the path here.
        request.body |= {"model": unquote(found[1]), "stream": found[2] is not None}
        if self.script is not None:
            return self.script
        if request.model in BEHAVIOURS:
            return BEHAVIOURS[request.model][1](request)
        question = request.body["messages"][-1]["content"][-1]["text"]
        return (_conversed(f"You said: {question}", question, is_stream=request.stream),)


def _messaged(answer: str, question: str, events: list[dict[str, Any]]) -> bytes:
    if not events:
        content = [{"type": "text", "text": answer}]
        usage = _count(answer, question)
        whole = {**_CLAUDE, "content": content, "stop_reason": "end_turn", "usage": usage}
        return _ok("application/json", json.dumps(whole).encode())
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return _ok("text/event-stream", "".join(lines).encode())


def _make_events(answer: str, question: str) -> list[dict[str, Any]]:
    usage = _count(answer, question)
    delta = {"type": "text_delta", "text": answer}
    block = {"type": "text", "text": ""}
    return [
        {"type": "message_start", "message": {**_CLAUDE, "content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]


def _count(answer: str, question: str) -> dict[str, int]:
    return {"input_tokens": len(question.split()), "output_tokens": len(answer.split())}


def _ok(content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _conversed(answer: str, question: str, *, is_stream: bool) -> bytes:
    prompt, completion = len(question.split()), len(answer.split())
    usage = {"inputTokens": prompt, "outputTokens": completion, "totalTokens": prompt + completion}
    if is_stream:
        content_type = "application/vnd.amazon.eventstream"
        start = {"contentBlockIndex": 0}
        body = event_stream(
            ("messageStart", {"role": "assistant"}),
            *(
                ("contentBlockDelta", {**start, "delta": {"text": piece}})
                for piece in re.findall(r"\s*\S+", answer)
            ),
            ("contentBlockStop", start),
            ("messageStop", {"stopReason": "end_turn"}),
            ("metadata", {"usage": usage, "metrics": {"latencyMs": 5}}),
        )
    else:
        content_type = "application/json"
        message = {"role": "assistant", "content": [{"text": answer}]}
        body = json.dumps(
            {
                "output": {"message": message},
                "stopReason": "end_turn",
                "usage": usage,
                "metrics": {"latencyMs": 5},
            }
        ).encode()
    return _ok(content_type, body)


def event_stream(*events: tuple[str, Any]) -> bytes:
    """Events as messages of AWS's event stream."""
    return b"".join(
        frame(
            json.dumps(fields).encode(),
            event_type=kind,
            content_type="application/json",
            message_type="event",
        )
        for kind, fields in events
    )


def stream_head(kind: str = "application/vnd.amazon.eventstream") -> bytes:
    """The head of an answer that ends with its connection."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n" % kind.encode()


def invoke_stream(*events: Any) -> bytes:
    """Events of Anthropic's as Bedrock sends them: in Base64, each with a padding."""
    return event_stream(
        *(
            ("chunk", {"bytes": base64.b64encode(json.dumps(event).encode()).decode(), "p": "abc"})
            for event in events
        )
    )


def exception(kind: str, message: str) -> bytes:
    """An exception in a stream of AWS's."""
    return frame(
        json.dumps({"message": message}).encode(),
        exception_type=kind,
        content_type="application/json",
        message_type="exception",
    )


def frame(payload: bytes, **headers: str) -> bytes:
    """One message of AWS's event stream: a prelude, headers, a payload, and two checksums."""
    packed = b"".join(
        struct.pack("!B", len(name)) + name + struct.pack("!BH", 7, len(value)) + value
        for name, value in (
            (f":{name.replace('_', '-')}".encode(), text.encode()) for name, text in headers.items()
        )
    )
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + packed + payload
    return message + struct.pack("!I", zlib.crc32(message))


class Gate:
    """Admits requests as the cloud of their host would; ``skew`` puts its clock ahead."""

    def __init__(self) -> None:
        self.skew = 0

    def __call__(self, request: Request) -> str | int:
        check = {
            AZURE_HOST: self._azure,
            BEDROCK_HOST: self._bedrock,
            FOUNDRY_HOST: self._foundry,
            VERTEX_HOST: self._vertex,
        }.get(request.headers["host"])
        status = 421 if check is None else check(request)
        if status:
            return status
        if request.headers["host"] == BEDROCK_HOST:
            return "messages" if _INVOKE_PATH.fullmatch(request.path) else "converse"
        is_claude = request.path == _MESSAGES_PATH or _PREDICT_PATH.fullmatch(request.path)
        return "messages" if is_claude else "chat"

    def _azure(self, request: Request) -> int:
        if request.headers.get("api-key") != AZURE_KEY or "authorization" in request.headers:
            return 401
        dated = _DATED_PATH.fullmatch(request.path)
        if dated is None:
            return 0 if request.path == _V1_PATH else 404
        return 0 if unquote(dated[1]) == request.body["model"] else 404

    def _foundry(self, request: Request) -> int:
        if request.headers.get("x-api-key") != AZURE_KEY or "authorization" in request.headers:
            return 401
        if request.headers.get("anthropic-version") != "2023-06-01":
            return 400
        return 0 if request.path == _MESSAGES_PATH else 404

    def _bedrock(self, request: Request) -> int:
        if _INVOKE_PATH.fullmatch(request.path):
            betas = request.body.get("anthropic_beta", ["effort-2025-11-24"])
            is_sound = (
                request.body["anthropic_version"] == "bedrock-2023-05-31"
                and request.body.keys().isdisjoint(("model", "stream", "diagnostics"))
                and bool(betas)
                and BEDROCK_BETAS.issuperset(betas)
            )
            if not is_sound:
                return 400
        elif not _CONVERSE_PATH.fullmatch(request.path):
            return 404
        if request.headers["authorization"] == f"Bearer {BEDROCK_KEY}":
            return 0
        if "x-amz-date" not in request.headers:
            return 403
        sent = time.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        if abs(time.time() + self.skew - calendar.timegm(sent)) > 300:
            return 403
        token = request.headers.get("x-amz-security-token")
        expected = authorization(
            request.path, request.headers, request.raw, signed_headers(token is not None)
        )
        is_signed = hmac.compare_digest(request.headers["authorization"], expected)
        return 0 if is_signed and token in (None, SESSION_TOKEN) else 403

    def _vertex(self, request: Request) -> int:
        scheme, _, token = request.headers["authorization"].partition(" ")
        try:
            header, claims = decode(token)
        except (ValueError, InvalidSignature):
            return 401
        now = time.time() + self.skew
        is_current = claims["iat"] <= now < claims["exp"] <= claims["iat"] + 3600
        is_known = (header["kid"], claims["iss"], claims["sub"]) == (KEY_ID, ACCOUNT, ACCOUNT)
        if scheme != "Bearer" or not is_current or not is_known or claims["scope"] != SCOPE:
            return 401
        predicted = _PREDICT_PATH.fullmatch(request.path)
        if predicted is None:
            return 0 if request.path == _VERTEX_PATH else 404
        is_streamed = predicted[2] == "streamRawPredict"
        is_sound = (
            "model" not in request.body
            and request.body["anthropic_version"] == "vertex-2023-10-16"
            and request.stream is is_streamed
        )
        return 0 if is_sound else 400


def signed_headers(has_token: bool) -> list[str]:
    return ["content-type", "host", "x-amz-date"] + ["x-amz-security-token"] * has_token


def authorization(
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    signed: list[str],
    *,
    region: str = "us-east-1",
) -> str:
    """Signs as AWS's "Signature Version 4" describes it; header names in lower case.

    The path is the one on the wire, whose escapes are escaped once more.
    """
    canonical = "\n".join(
        [
            "POST",
            quote(path, safe="/~"),
            "",
            *(f"{name}:{headers[name]}" for name in signed),
            "",
            ";".join(signed),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    stamp = headers["x-amz-date"]
    scope = f"{stamp[:8]}/{region}/bedrock/aws4_request"
    text = "\n".join(
        ["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{SECRET_ACCESS_KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    return (
        f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY_ID}/{scope}, "
        f"SignedHeaders={';'.join(signed)}, Signature={signature}"
    )


def decode(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Checks an RS256 token (RFC 7515) by the account's public key; its header and claims."""
    header, claims, signature = token.split(".")
    private_key().public_key().verify(
        _bytes(signature), f"{header}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
    )
    return json.loads(_bytes(header)), json.loads(_bytes(claims))


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
