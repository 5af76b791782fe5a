"""The rules of both clients: limits of time, addresses, request headers, TLS, and responses."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import certifi

from config.egress.addresses import BaseURL, EgressPolicy, InvalidURL, find_refusal, parse_target
from config.egress.errors import (
    AddressRefused,
    BadResponse,
    Compressed,
    EgressError,
    NameUnknown,
    RedirectRefused,
)

# The most seconds that a column holds: a day.
MOST_SECONDS: Final = 86_400
# The most addresses of a name: each is checked and may be tried. An answer over TCP may have
# thousands, if the owner of the name wants it.
MOST_ADDRESSES: Final = 64
# The setting that has the operator's limit, which no endpoint exceeds.
SETTING_OF: Final[Mapping[str, str]] = {
    "connect": "UPSTREAM_CONNECT_TIMEOUT",
    "headers": "UPSTREAM_HEADERS_TIMEOUT",
    "first_event": "UPSTREAM_FIRST_EVENT_TIMEOUT",
    "idle": "UPSTREAM_IDLE_TIMEOUT",
    "total": "HOLD_TIMEOUT",
}

DEFAULT_HEADERS: Final = {
    "User-Agent": "Causeway",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
}
# RFC 9110, section 5.6.2.
_CERTIFICATE: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----"
)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The client writes these, or they change how a message is read or where it seems to come from.
_RESERVED: Final = re.compile(
    r"(?i)accept|accept-encoding|connection|content-.*|expect|forwarded|host|http2-settings"
    r"|keep-alive|proxy-.*|te|trailers?|transfer-encoding|upgrade|user-agent|via|x-forwarded-.*"
)
_VALUE: Final = re.compile(r"[!-~](?:[ -~]{0,4094}[!-~])?")


class TimeLimits(NamedTuple):
    """The limits that an endpoint has of its own, in seconds; ``None`` for those of the operator.

    ``connect`` is for the name, the connection and TLS. ``headers`` is for the headers of a stream,
    and ``first_event`` for its first event, both counted from the beginning of the call. ``idle``
    bounds the silence after that event, and ``total`` the whole call. A plain answer is bounded by
    ``connect`` and ``total`` alone.
    """

    connect: int | None = None
    headers: int | None = None
    first_event: int | None = None
    idle: int | None = None
    total: int | None = None

    def stated(self) -> dict[str, int]:
        """Returns the limits that differ from the operator's, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


NO_OWN_LIMITS: Final = TimeLimits()


def tighten(limit: float, own: int | None) -> float:
    """Returns the operator's limit, or an endpoint's own one if that is shorter."""
    return limit if own is None or own > limit else own


@dataclass(slots=True)
class OutboundRequest:
    """An HTTP request; `repr` shows the method alone, so that no traceback shows a secret.

    `rest` are the pieces of the body after `body`: long data that is not copied into one piece.
    `left_out` names what its maker was asked to send, and it does not have.
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    rest: Sequence[bytes | memoryview] = field(default=(), repr=False)
    left_out: frozenset[str] = field(default=frozenset(), repr=False)


def check_addresses(
    addresses: Sequence[str], policy: EgressPolicy, port: int, *, plain: bool
) -> Sequence[str]:
    """Returns the addresses when all of them are allowed; one refused address refuses all."""
    if not addresses:
        raise NameUnknown("no such name")
    if len(addresses) > MOST_ADDRESSES:
        raise NameUnknown("too many addresses")
    for address in addresses:
        if reason := find_refusal(address, policy, port, plain=plain):
            raise AddressRefused(reason)
    return addresses


def check_url(text: str, policy: EgressPolicy) -> BaseURL:
    """Returns the origin of a URL before a connection to it. Raises `AddressRefused`."""
    try:
        return parse_target(text, policy=policy)
    except InvalidURL:
        raise AddressRefused("URL") from None


# Why TLS failed, as far as the library tells it; for people who run the service alone.
NO_TLS: Final = "the server speaks no TLS"
UNKNOWN_AUTHORITY: Final = "unknown authority"
OTHER_NAME: Final = "a certificate of another name"
EXPIRED: Final = "an expired certificate"
# The codes of OpenSSL's X509_V_ERR_….
_REASONS: Final = {
    7: UNKNOWN_AUTHORITY,  # Another one has the same name.
    10: EXPIRED,
    18: UNKNOWN_AUTHORITY, 19: UNKNOWN_AUTHORITY, 20: UNKNOWN_AUTHORITY, 21: UNKNOWN_AUTHORITY,
    62: OTHER_NAME, 64: OTHER_NAME,
}  # fmt: skip


def describe_tls(exc: ssl.SSLError) -> str:
    """Returns why TLS failed; a text of ours, empty where it is not known."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return _REASONS.get(exc.verify_code, "a certificate that is not valid")
    return NO_TLS if exc.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST") else ""


class InvalidAuthorities(ValueError):
    """The text has no certificates in PEM."""

    def __init__(self) -> None:
        super().__init__(
            "Must be certificates in PEM: each begins with -----BEGIN CERTIFICATE-----. A file in "
            "DER becomes one with: openssl x509 -inform der -in FILE."
        )


def read_authorities(text: str) -> str:
    """Returns certificates in PEM without what stands around them; raises `InvalidAuthorities`."""
    found = "\n".join(_CERTIFICATE.findall(text))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found)
    except (ssl.SSLError, ValueError):
        raise InvalidAuthorities from None
    return found


def check_authorities(path: str) -> None:
    """Raises `InvalidAuthorities` for a file that `tls_context` cannot use, or `OSError`."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise InvalidAuthorities from None


@lru_cache(maxsize=64)
def tls_context(ca_bundle: str | None, authorities: str = "") -> ssl.SSLContext:
    """Returns one cached context for the same authorities; reading them takes 10 ms and more."""
    context = ssl.create_default_context()
    # Some Python builds look for the system's authorities in a folder that does not exist.
    context.load_verify_locations(certifi.where())
    if ca_bundle is not None:
        context.load_verify_locations(ca_bundle)
    if authorities:
        context.load_verify_locations(cadata=authorities)
    context.set_alpn_protocols(["http/1.1"])
    return context


def resolve_with_system(host: str, port: int) -> list[str]:
    """Returns the addresses from the platform's resolver, which blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    # The scope id of an IPv6 address is a separate member. It is appended, so that the policy
    # refuses the address.
    return [
        f"{address[0]}%{address[3]}" if len(address) == 4 and address[3] else str(address[0])
        for _, _, _, _, address in found
    ]


def are_valid_headers(headers: Mapping[str, str]) -> bool:
    """Returns whether names are tokens and values printable ASCII, so no header hides another."""
    # The HTTP libraries differ in the characters that they accept: NUL, surrogates, Latin-1, UTF-8.
    names, values = "".join(headers), "".join(headers.values())
    return (
        values.isascii() and values.isprintable() and (not names or bool(_TOKEN.fullmatch(names)))
    )


def find_header_problem(name: str, value: Any) -> str | None:
    """Returns why a request may not have a header that its owner states; ``None`` if it may."""
    if not _TOKEN.fullmatch(name) or len(name) > 100:
        return "Each name must be a header name in ASCII."
    if _RESERVED.fullmatch(name):
        return "This service sets this header itself."
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        return "Must be 1 to 4096 visible ASCII characters and spaces."
    return None


def find_head_problem(status: int, encoding: str | None) -> EgressError | None:
    """Returns the problem with the status or encoding of a response, or `None`."""
    if 300 <= status < 400:
        return RedirectRefused()
    if status < 200:
        return BadResponse("interim status")
    if encoding and encoding.lower() != "identity":
        return Compressed()
    return None
