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
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from config.simulator import Request
from tests.embedded import AZURE_HOST, BEDROCK_HOST, VERTEX_HOST

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
_VERTEX_PATH: Final = (
    f"/v1/projects/{PROJECT}/locations/us-central1/endpoints/openapi/chat/completions"
)


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
    credential = {
        "project_id": PROJECT,
        "location": "us-central1",
        "service_account": account(),
    }
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


class Gate:
    """Admits requests as the cloud of their host would; ``skew`` puts its clock ahead."""

    def __init__(self) -> None:
        self.skew = 0

    def __call__(self, request: Request) -> str | int:
        check = {
            AZURE_HOST: self._azure,
            BEDROCK_HOST: self._bedrock,
            VERTEX_HOST: self._vertex,
        }.get(request.headers["host"])
        status = 421 if check is None else check(request)
        return status or "chat"

    def _azure(self, request: Request) -> int:
        if request.headers.get("api-key") != AZURE_KEY or "authorization" in request.headers:
            return 401
        dated = _DATED_PATH.fullmatch(request.path)
        if dated is None:
            return 0 if request.path == _V1_PATH else 404
        return 0 if unquote(dated[1]) == request.body["model"] else 404

    def _bedrock(self, request: Request) -> int:
        if request.path != _V1_PATH:
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
        return 0 if request.path == _VERTEX_PATH else 404


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
    """Signs as AWS's "Signature Version 4" describes it; header names in lower case."""
    canonical = "\n".join(
        [
            "POST",
            path,
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
