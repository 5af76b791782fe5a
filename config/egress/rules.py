"""What both clients hold to: where they dial, what they send, which answers they take."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import certifi

from config.egress.addresses import BaseURL, EgressPolicy, InvalidURL, parse_target, refusal
from config.egress.errors import (
    AddressRefused,
    BadResponse,
    ConnectFailed,
    EgressError,
    RedirectRefused,
)

DEFAULT_HEADERS: Final = {
    "User-Agent": "Causeway",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
}
# RFC 9110, section 5.6.2.
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(slots=True)
class OutboundRequest:
    """Is one request; headers and body stay out of its `repr`, and so out of every traceback."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


def judge(
    addresses: Sequence[str], policy: EgressPolicy, port: int, *, plain: bool
) -> Sequence[str]:
    """Return the addresses when each of them may be dialled; one refused answer refuses all."""
    if not addresses:
        raise ConnectFailed("no such name")
    for address in addresses:
        if reason := refusal(address, policy, port, plain=plain):
            raise AddressRefused(reason)
    return addresses


def vet(text: str, policy: EgressPolicy) -> BaseURL:
    """Return the origin of a URL that is about to be dialled. Raises `AddressRefused`."""
    try:
        return parse_target(text, policy=policy)
    except InvalidURL:
        raise AddressRefused("URL") from None


@lru_cache(maxsize=4)
def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """Return the one context per bundle: reading the authorities takes tens of milliseconds."""
    context = ssl.create_default_context()
    # Some Python builds look for the system's authorities where there are none.
    context.load_verify_locations(certifi.where())
    if ca_bundle is not None:
        context.load_verify_locations(ca_bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context


def system_addresses(host: str, port: int) -> list[str]:
    """Ask the platform's resolver, which blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    # A sockaddr with a scope id has it beside the address: put it back, to be refused.
    return [
        f"{address[0]}%{address[3]}" if len(address) == 4 and address[3] else str(address[0])
        for _, _, _, _, address in found
    ]


def are_sendable(headers: Mapping[str, str]) -> bool:
    """Tell headers from what could end one and begin another."""
    # The libraries differ in what they let through: a NUL, a lone surrogate, Latin-1 or UTF-8.
    names, values = "".join(headers), "".join(headers.values())
    return (
        values.isascii() and values.isprintable() and (not names or bool(_TOKEN.fullmatch(names)))
    )


def check_head(status: int, encoding: str | None) -> EgressError | None:
    """Return what is wrong with an answer whose headers are there."""
    if 300 <= status < 400:
        return RedirectRefused()
    if status < 200:
        return BadResponse("interim status")
    if encoding and encoding.lower() != "identity":
        return BadResponse("compressed")
    return None
