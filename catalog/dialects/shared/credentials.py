"""Parses the credentials that name their host: those of Azure, Amazon Bedrock and Google Vertex.

Each is the text of one JSON object. A URL is built from its members, so every member must match a
pattern as a whole, every host ends in a suffix from a fixed list, and unknown members are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from config.credentials import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

_Patterns = Mapping[str, re.Pattern[str]]

# Visible ASCII characters only, so that the key cannot break out of its header.
_KEY: Final = re.compile(r"[!-~]{8,8192}")
_TEXT: Final = re.compile(r"[ -~]{0,2048}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]{16,8192}")

# The last three labels of every host of Azure's model services: public, Government and China.
_AZURE_SERVICES: Final = ("openai", "cognitiveservices", "services.ai")
_AZURE_CLOUDS: Final = ("azure.com", "azure.us", "azure.cn")
AZURE_SUFFIXES: Final = frozenset(
    f"{service}.{cloud}" for service in _AZURE_SERVICES for cloud in _AZURE_CLOUDS
)
_AZURE_URL: Final = re.compile(
    r"https://([A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)\.([A-Za-z.]+)/?"
)
_API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-preview)?")

# Excludes the regions of the isolated partitions, which have no public host names.
_REGION: Final = re.compile(r"(?!(?:us|eu)-iso)(?:[a-z]{2}|eusc)(?:-[a-z]+)+-[0-9]{1,2}")
_AWS_SUFFIXES: Final = {"cn": "amazonaws.com.cn", "eusc": "amazonaws.eu"}
_ACCESS_KEY_ID: Final = re.compile(r"[A-Z0-9]{16,128}")

_PROJECT_ID: Final = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_LOCATION: Final = re.compile(r"global|us|eu|[a-z]+-[a-z]+[0-9]{1,2}")
_CLIENT_EMAIL: Final = re.compile(
    r"[a-z0-9][a-z0-9.-]{0,127}@[a-z0-9.-]{1,127}\.gserviceaccount\.com"
)
_OTHERS_OF_ACCOUNT: Final = (
    "project_id", "client_id", "auth_uri", "token_uri", "auth_provider_x509_cert_url",
    "client_x509_cert_url",
)  # fmt: skip
_KEY_ID: Final = re.compile(r"[0-9a-f]{40}")
_PEM: Final = re.compile(
    r"-----BEGIN (RSA |)PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{1,8192}-----END \1PRIVATE KEY-----\n?"
)

# The members whose values no message may contain.
_SENSITIVE: Final = frozenset(
    ("api_key", "access_key_id", "secret_access_key", "session_token", "private_key")
)


class InvalidCredential(Exception):
    """The secret is not a credential of its provider; the message repeats no part of it."""


@dataclass(frozen=True, slots=True)
class AzureCredential:
    """The key of a resource. A dated ``api_version`` selects the older, dated interface."""

    host: str
    api_key: Secret
    api_version: str | None


@dataclass(frozen=True, slots=True)
class AccessKey:
    """The keys that sign requests to AWS."""

    access_key_id: Secret
    secret_access_key: Secret
    session_token: Secret | None


@dataclass(frozen=True, slots=True)
class BedrockCredential:
    """A region, with a Bedrock API key or an access key."""

    region: str
    login: Secret | AccessKey

    @property
    def host(self) -> str:
        suffix = _AWS_SUFFIXES.get(self.region.partition("-")[0], "amazonaws.com")
        return f"bedrock-runtime.{self.region}.{suffix}"


@dataclass(frozen=True, slots=True)
class VertexCredential:
    """A project, its location, and the service account that calls it."""

    project_id: str
    location: str
    client_email: str
    private_key_id: str
    private_key: RSAPrivateKey = field(repr=False, compare=False)

    @property
    def host(self) -> str:
        if self.location == "global":
            return "aiplatform.googleapis.com"
        if self.location in ("us", "eu"):
            return f"aiplatform.{self.location}.rep.googleapis.com"
        return f"{self.location}-aiplatform.googleapis.com"


def host_of_url(base_url: str | None, secret: Secret) -> str:
    """Returns the host of a format whose secret names none."""
    return urlsplit(base_url or "").hostname or ""


# Parsing a private key takes milliseconds, so each process parses each credential once.
@lru_cache(maxsize=4096)
def parse_azure(secret: Secret) -> AzureCredential:
    """Parses ``{"api_key", "endpoint_url"[, "api_version"]}``.

    The URL is that of a resource, ``https://NAME.SUFFIX``. Raises :class:`InvalidCredential`.
    """
    members = _match_members(
        _parse_object(secret),
        required={"api_key": _KEY, "endpoint_url": _AZURE_URL},
        optional={"api_version": _API_VERSION},
    )
    match = _AZURE_URL.fullmatch(members["endpoint_url"])
    assert match is not None
    name, suffix = match[1].lower(), match[2].lower()
    if suffix not in AZURE_SUFFIXES:
        raise InvalidCredential(
            "The credential's endpoint_url must be the URL of an Azure resource."
        )
    return AzureCredential(
        host=f"{name}.{suffix}",
        api_key=Secret(members["api_key"]),
        api_version=members.get("api_version"),
    )


@lru_cache(maxsize=4096)
def parse_bedrock(secret: Secret) -> BedrockCredential:
    """Parses ``{"region", "access_key_id", "secret_access_key"[, "session_token"]}`` or
    ``{"region", "api_key"}``; raises :class:`InvalidCredential`."""
    members = _parse_object(secret)
    if "api_key" in members:
        found = _match_members(members, required={"region": _REGION, "api_key": _KEY})
        return BedrockCredential(region=found["region"], login=Secret(found["api_key"]))
    found = _match_members(
        members,
        required={
            "region": _REGION,
            "access_key_id": _ACCESS_KEY_ID,
            "secret_access_key": _BASE64,
        },
        optional={"session_token": _BASE64},
    )
    token = found.get("session_token")
    return BedrockCredential(
        region=found["region"],
        login=AccessKey(
            access_key_id=Secret(found["access_key_id"]),
            secret_access_key=Secret(found["secret_access_key"]),
            session_token=None if token is None else Secret(token),
        ),
    )


@lru_cache(maxsize=4096)
def parse_vertex(secret: Secret) -> VertexCredential:
    """Parses ``{"project_id", "location", "service_account": {…}}``.

    The service account is the content of a key file from Google. Raises
    :class:`InvalidCredential`.
    """
    members = _parse_object(secret)
    account = members.pop("service_account", None)
    found = _match_members(members, required={"project_id": _PROJECT_ID, "location": _LOCATION})
    if not isinstance(account, dict):
        raise InvalidCredential("The credential must have service_account, a JSON object.")
    keys = _match_members(
        account,
        required={
            "type": re.compile("service_account"),
            "client_email": _CLIENT_EMAIL,
            "private_key_id": _KEY_ID,
            "private_key": _PEM,
        },
        optional={
            # Another universe (a sovereign cloud of Google) has other hosts.
            "universe_domain": re.compile(r"googleapis\.com"),
            **dict.fromkeys(_OTHERS_OF_ACCOUNT, _TEXT),
        },
    )
    return VertexCredential(
        project_id=found["project_id"],
        location=found["location"],
        client_email=keys["client_email"],
        private_key_id=keys["private_key_id"],
        private_key=_load_private_key(keys["private_key"]),
    )


def sensitive_parts(secret: Secret) -> list[str]:
    """Returns the texts that a message must not show: the secret and its sensitive members."""
    text = secret.reveal()
    parts = [text] if text else []
    if text.startswith("{"):
        try:
            members = json.loads(text)
        except (ValueError, RecursionError):
            return parts
        for holder in (members, members.get("service_account")):
            if isinstance(holder, dict):
                parts += [
                    value
                    for name, value in holder.items()
                    if name in _SENSITIVE and isinstance(value, str) and value
                ]
    return parts


def _load_private_key(pem: str) -> RSAPrivateKey:
    # The first private key imports them, because they take a megabyte and few commands need them.
    serialization: Any = import_module("cryptography.hazmat.primitives.serialization")
    rsa: Any = import_module("cryptography.hazmat.primitives.asymmetric.rsa")
    key: RSAPrivateKey | None
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, import_module("cryptography.exceptions").UnsupportedAlgorithm):
        key = None
    if key is None or not isinstance(key, rsa.RSAPrivateKey) or key.key_size < 2048:
        raise InvalidCredential("The credential's private_key is not valid.")
    return key


def _parse_object(secret: Secret) -> dict[str, Any]:
    try:
        members = json.loads(secret.reveal(), object_pairs_hook=_refuse_repeated)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise InvalidCredential(
            "The credential must be one JSON object that names each member once."
        )
    return members


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("repeated")
    return members


def _match_members(
    members: Mapping[str, Any], *, required: _Patterns, optional: _Patterns | None = None
) -> dict[str, str]:
    """Returns the members. Raises for missing, unknown and unmatched members."""
    patterns = {**required, **(optional or {})}
    if not members.keys() <= patterns.keys():
        raise InvalidCredential("The credential has an unknown member; remove it.")
    found: dict[str, str] = {}
    for name, pattern in patterns.items():
        if name not in members:
            if name in required:
                raise InvalidCredential(f"The credential must have {name}.")
            continue
        value = members[name]
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise InvalidCredential(f"The credential's {name} is not valid.")
        found[name] = value
    return found
