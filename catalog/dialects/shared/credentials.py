"""Parses the credentials that are the text of one JSON object.

Those of Azure, Amazon Bedrock and Google Vertex name their host. A URL is built from their members,
so every member must match a pattern as a whole; the hosts of Bedrock and Vertex end in a suffix
from a fixed list. Others state headers and query parameters beside a key. Unknown members are
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from config.credentials import NO_SECRET, Secret
from config.egress.addresses import ANYWHERE, EgressPolicy, InvalidURL, parse_base_url
from config.egress.rules import find_header_problem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

_Patterns = Mapping[str, re.Pattern[str]]

# Visible ASCII characters only, so that the key cannot break out of its header.
_KEY: Final = re.compile(r"[!-~]{8,8192}")
_TEXT: Final = re.compile(r"[ -~]{0,2048}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]{16,8192}")

# What may stand beside a key, or instead of it.
_MOST_STATED: Final = 16
_MOST_STATED_LENGTH: Final = 4096
# Gemini's own parameter ``alt`` chooses the form of a stream.
_QUERY_NAME: Final = re.compile(r"(?!alt\Z)[A-Za-z0-9$_.~-]{1,100}")
_QUERY_VALUE: Final = re.compile(r"[ -~]{1,4096}")
# Shorter texts are no secrets: masking them would take the words out of a message.
_LEAST_MASKED: Final = 8

# A resource, an API manager's prefix, or the target URI of a deployment as the portal shows it.
_AZURE_URL: Final = re.compile(
    r"(?=.{1,2048}\Z)(https://[^?#]+?)(?:/(openai|models|anthropic)(?:/[^?#]*)?)?/?(?:\?api-version=([^&#]*))?"
)
_API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-preview)?|preview")
# The address is judged at each connection.
_ANY_POLICY: Final = EgressPolicy(allowed_networks=ANYWHERE)

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
    """The key of a resource, or of what stands before it, at the address ``root``.

    A dated ``api_version`` selects the older, dated interface. ``interface`` is that of the target
    URI, if the credential has one.
    """

    host: str
    api_key: Secret
    api_version: str | None
    root: str = ""
    interface: str | None = None

    @property
    def is_dated(self) -> bool:
        return self.api_version not in (None, "preview")

    def address(self, path: str) -> str:
        version = "" if self.api_version is None else f"?api-version={self.api_version}"
        return f"{self.root}/{path}{version}"


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


class Stated(NamedTuple):
    """The parts of a secret: the one that the dialect gets, and what is added to each request."""

    secret: Secret
    headers: Mapping[str, str]
    query: str


def host_of_url(base_url: str | None, secret: Secret) -> str:
    """Returns the host of a format whose secret names none; raises :class:`InvalidCredential`."""
    if secret.is_object and read_stated(secret).secret.is_object:
        raise InvalidCredential("The credential has an unknown member; remove it.")
    return urlsplit(base_url or "").hostname or ""


@lru_cache(maxsize=4096)
def read_stated(secret: Secret) -> Stated:
    """Parses ``{"api_key"?, "headers"?: {…}, "query"?: {…}}``, with other members for Azure.

    Raises :class:`InvalidCredential`.
    """
    members = _parse_object(secret)
    headers, query = [
        {} if (table := members.pop(name, None)) is None else table for name in ("headers", "query")
    ]
    if not all(isinstance(each, dict) and len(each) <= _MOST_STATED for each in (headers, query)):
        raise InvalidCredential("The credential's headers and query must be objects of 16 members.")
    if len(json.dumps((headers, query))) > _MOST_STATED_LENGTH:
        raise InvalidCredential("The credential's headers and query must have at most 4 kB.")
    for name, value in headers.items():
        if problem := find_header_problem(name, value):
            raise InvalidCredential(f"The credential's headers.{name[:100]}: {problem}")
    folded = {name.lower() for name in headers}
    if len(folded) < len(headers) or ("authorization" in folded and "api_key" in members):
        raise InvalidCredential("The credential's headers state one header twice.")
    for name, value in query.items():
        is_text = isinstance(value, str) and _QUERY_VALUE.fullmatch(value)
        if not (is_text and _QUERY_NAME.fullmatch(name)):
            raise InvalidCredential(f"The credential's query.{name[:100]} is not valid.")
    rest = secret
    if not members.keys() - {"api_key"}:
        if not (members or headers or query):
            raise InvalidCredential("The credential must have api_key, headers or query.")
        key = _match_members(members, required={}, optional={"api_key": _KEY}).get("api_key")
        rest = NO_SECRET if key is None else Secret(key)
    return Stated(rest, headers, urlencode(query, quote_via=quote))


# Parsing a private key takes milliseconds, so each process parses each credential once.
@lru_cache(maxsize=4096)
def parse_azure(secret: Secret) -> AzureCredential:
    """Parses ``{"api_key"?, "endpoint_url"[, "api_version"]}``, with what may stand beside them.

    Raises :class:`InvalidCredential`.
    """
    given = _parse_object(secret)
    _, headers, query = read_stated(secret)
    members = _match_members(
        {name: value for name, value in given.items() if name not in ("headers", "query")},
        required={"endpoint_url": _AZURE_URL},
        optional={"api_key": _KEY, "api_version": _API_VERSION},
    )
    if not ("api_key" in members or headers or query):
        raise InvalidCredential("The credential must have api_key.")
    match = _AZURE_URL.fullmatch(members["endpoint_url"])
    assert match is not None
    version = members.get("api_version", match[3])
    try:
        base = parse_base_url(match[1], policy=_ANY_POLICY)
    except InvalidURL as exc:
        raise InvalidCredential(f"The credential's endpoint_url is not valid: {exc}.") from None
    if version is not None and not _API_VERSION.fullmatch(version):
        raise InvalidCredential("The api-version of the credential's endpoint_url is not valid.")
    if match[3] not in (None, version) or (version and "api-version=" in query):
        raise InvalidCredential("The credential states two versions; leave one of them out.")
    key = Secret(members.get("api_key", ""))
    return AzureCredential(base.host, key, version, base.text, match[2])


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
    if secret.is_object:
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
        for table in (members.get("headers"), members.get("query")):
            for value in table.values() if isinstance(table, dict) else ():
                # A server may repeat a token without its scheme, or a part of its URL.
                shown = (str(value), str(value).rpartition(" ")[2], quote(str(value), safe=""))
                parts += [text for text in shown if len(text) >= _LEAST_MASKED]
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
