"""Decides which addresses, ports and URLs are allowed; pure, without any input or output.

`ipaddress.is_global` is not a policy: it admits NAT64, 6to4, multicast and the metadata addresses
of clouds. IPv4 has an explicit deny list; IPv6 allows 2000::/3 minus exceptions.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL_LENGTH = 2048
ANYWHERE: Final = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


@dataclass(frozen=True, slots=True)
class PinnedHost:
    """The address of a host name, and the port to use there instead of 443, if any."""

    address: str
    port: int | None = None


class Proxy(NamedTuple):
    """The operator's proxy, and the header that logs in there, which its `repr` does not show."""

    host: str
    port: int
    login: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.host}, {self.port})"


class Reach(NamedTuple):
    """What the operator allows the connections of one provider or organization besides the rules.

    ``networks`` and ``authorities``, certificates in PEM, are added to those of the policy.
    ``is_proxied`` says that the connections use the operator's proxy, if there is one. ``owner`` is
    the id of the organization that chose their hosts; empty if the operator did.
    """

    networks: tuple[Network, ...] = ()
    authorities: str = ""
    is_proxied: bool = False
    owner: str = ""


NO_REACH: Final = Reach()


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The rules for connections to the outside: allowed addresses, timeouts and sizes.

    `allowed_networks` admit addresses that would be refused, on any port and over plain HTTP. They
    do not switch off the URL grammar, TLS, or the refusal of mapped and translated addresses.
    `hosts` replaces DNS for its names. `ca_bundle` is a PEM file of authorities that are trusted
    in addition to the system's, and `authorities` the text of such a file. `proxy` is used for
    public addresses where a `Reach` says so. Timeouts are in seconds; `connect_timeout` covers name
    resolution, connection and TLS handshake together.
    """

    allowed_networks: tuple[Network, ...] = ()
    hosts: Mapping[str, PinnedHost] = field(default_factory=dict)
    ca_bundle: str | None = None
    authorities: str = ""
    proxy: Proxy | None = None
    connect_timeout: float = 5.0
    max_response_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.connect_timeout <= 0 or self.max_response_bytes <= 0:
            raise ValueError("connect_timeout and max_response_bytes must be positive")

    def extend(self, reach: Reach) -> EgressPolicy:
        """Returns the policy with what one provider or organization is allowed besides."""
        if not reach.networks and not reach.authorities:
            return self
        return replace(
            self,
            allowed_networks=(*self.allowed_networks, *reach.networks),
            authorities=reach.authorities,
        )

    def is_own(self, address: str) -> bool:
        """Returns whether an address is in a network that the operator allows."""
        ip = ipaddress.ip_address(address)
        return any(ip in network for network in self.allowed_networks)

    def pinned_address(self, host: str, port: int) -> tuple[str, int] | None:
        """Returns the address and port of a name that the operator pinned, else `None`.

        A pinned port replaces only port 443; any other port in the URL stays.
        """
        found = self.hosts.get(host)
        if found is None:
            return None
        return found.address, (found.port or port) if port == 443 else port


def parse_network(text: str) -> Network:
    """Parses an address or a network such as `10.1.0.0/16`. Raises `ValueError` with a message."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is no network: write an address such as 10.0.0.5, or a network such as "
            "10.0.0.0/24 without bits after its length."
        ) from exc


class InvalidURL(ValueError):
    """The URL is not valid; the message is a fixed text that never repeats any part of the URL."""


def _table(*rows: tuple[str, str]) -> tuple[tuple[Network, str], ...]:
    return tuple((ipaddress.ip_network(network), reason) for network, reason in rows)


# Refused even within an allowed network: nothing answers at these addresses, or they contain
# another address, and a router would deliver to a host that was never checked.
_NEVER = _table(
    ("0.0.0.0/8", "unspecified"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved or broadcast"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("::ffff:0:0:0/96", "IPv4-translated"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("2001::/32", "Teredo"),
    ("2002::/16", "6to4"),
    ("ff00::/8", "multicast"),
)

# Listed in IANA's special-purpose registries, or known as a cloud's metadata service.
_DENIED = _table(
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.31.196.0/24", "AS112"),
    ("192.52.193.0/24", "AMT relay"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "AS112"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("::1/128", "loopback"),
    ("2001::/23", "protocol assignments"),
    ("2001:db8::/32", "documentation"),
    ("2620:4f:8000::/48", "AS112"),
    ("3ffe::/16", "returned"),
    ("3fff::/20", "documentation"),
)

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_LOOPBACK_V6 = ipaddress.IPv6Address("::1")

# Ports above 1023 of services that do not speak HTTP and that a request could harm.
_FORBIDDEN_PORTS = frozenset(
    [1080, 1433, 1434, 1521, 1719, 1720, 1723, 1883, 2049, 2181, 3268, 3269, 3306, 3389]
    + [3659, 4045, 4190, 4369, 5060, 5061, 5222, 5269, 5432, 5672, 6379, 6566, 6697, 8883]
    + [9042, 9092, 9300, 11211, 25672, 27017, 27018, 27019, 50000, 61616]
    + [*range(5900, 5907), *range(6000, 6064), *range(6660, 6670)]
)


def _is_port_allowed(port: int) -> bool:
    return port == 443 or (1024 <= port <= 65535 and port not in _FORBIDDEN_PORTS)


def _has_embedded_ipv4(address: ipaddress.IPv6Address) -> bool:
    """Returns whether the address is IPv4-compatible (::a.b.c.d) or ISATAP (…:0:5efe:a.b.c.d)."""
    if address in _COMPATIBLE:
        return address != _LOOPBACK_V6
    return (int(address) >> 32) & 0xFCFFFFFF == 0x00005EFE


def find_refusal(
    address: str, policy: EgressPolicy, port: int, *, plain: bool = False
) -> str | None:
    """Returns the reason to refuse an address and port, or `None` when they are allowed.

    The reason is a fixed text for logs. `plain` means a connection without TLS.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "not an address"
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None:
            return "scoped address"
        if _has_embedded_ipv4(ip):
            return "IPv4 inside IPv6"
    for network, reason in _NEVER:
        if ip in network:
            return reason
    if not 1 <= port <= 65535:
        return "port"
    if any(ip in network for network in policy.allowed_networks):
        return None
    for network, reason in _DENIED:
        if ip in network:
            return reason
    if ip.version == 6 and ip not in _GLOBAL_UNICAST:
        return "not global unicast"
    if not _is_port_allowed(port):
        return "port"
    return "plain HTTP" if plain else None


_VISIBLE = re.compile(r"[!-\[\]-~]*")
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(?::(.*))?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True, slots=True)
class BaseURL:
    """A URL in canonical form; `text` is stored, compared and connected to."""

    text: str
    scheme: str
    host: str  # an IPv6 literal without its brackets
    port: int

    def join(self, path: str) -> str:
        """Returns the URL of `path`, which begins with "/" and may have a query.

        Without the slash a path could extend the host name. The client checks the rest of the
        result, once for each text.
        """
        if not path.startswith("/"):
            raise InvalidURL("the path must begin with a slash")
        return self.text + path


def parse_base_url(text: str, *, policy: EgressPolicy, require_https: bool = True) -> BaseURL:
    """Parses a URL that a person typed. Raises `InvalidURL`.

    An address literal is checked here, a name at every connection. Allowed networks make the
    allowed ports depend on the address; then the port of a name is checked at the connection too.
    """
    if not isinstance(text, str) or len(text) > MAX_URL_LENGTH:
        raise InvalidURL("the URL must be text of at most 2048 characters")
    if not _VISIBLE.fullmatch(text):
        raise InvalidURL("the URL may hold visible ASCII characters only, and no backslash")
    if "?" in text or "#" in text:
        raise InvalidURL("the URL must have neither a query nor a fragment")
    if (parts := _PARTS.fullmatch(text)) is None:
        raise InvalidURL("this is not an absolute URL")
    scheme, authority, path = parts[1].lower(), parts[2], parts[3]
    if scheme != "https" and (require_https or scheme != "http"):
        raise InvalidURL("the URL must begin with https://")
    if "@" in authority:
        raise InvalidURL("the URL must not hold a user name or a password")
    if (found := _AUTHORITY.fullmatch(authority)) is None:
        raise InvalidURL("the host of the URL is not valid")
    default = 443 if scheme == "https" else 80
    port = _parse_port(found[2], default)
    host, literal = _parse_host(found[1])
    plain = scheme == "http"
    if literal:
        if find_refusal(host, policy, port, plain=plain):
            raise InvalidURL("the address or the port of the URL is not allowed")
    elif not policy.allowed_networks and (plain or not _is_port_allowed(port)):
        raise InvalidURL("the address or the port of the URL is not allowed")
    authority = f"[{host}]" if ":" in host else host
    if port != default:
        authority += f":{port}"
    return BaseURL(f"{scheme}://{authority}{_canonical_path(path)}", scheme, host, port)


_PROXY = re.compile(r"http://(?:([!-?A-~]+)@)?(\[[0-9A-Fa-f:.]*\]|[^@:/\[\]]+):([0-9]+)/?")
_PINNED = re.compile(r"([^=]+)=(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?")


def parse_pinned_hosts(items: Iterable[str]) -> dict[str, PinnedHost]:
    """Parses items `name=address[:port]`, with IPv6 in brackets. Raises `ValueError`."""
    hosts: dict[str, PinnedHost] = {}
    for item in items:
        if (found := _PINNED.fullmatch(item)) is None:
            raise ValueError(f"{item!r} is not of the form name=address or name=address:port")
        try:
            name, literal = _parse_host(found[1])
            address, is_literal = _parse_host(found[2])
            port = None if found[3] is None else _parse_port(found[3], 443)
        except InvalidURL:
            raise ValueError(f"{item!r} has an invalid name, address or port") from None
        if literal or not is_literal:
            raise ValueError(f"{item!r} must give an address for a name")
        if name in hosts:
            raise ValueError(f"{name!r} is given twice")
        hosts[name] = PinnedHost(address, port)
    return hosts


def parse_proxy(text: str) -> Proxy | None:
    """Parses `http://[USER:PASSWORD@]HOST:PORT`; `None` for an empty text. Raises `ValueError`."""
    if not text:
        return None
    problem = ValueError(
        "it must be of the form http://HOST:PORT or http://USER:PASSWORD@HOST:PORT"
    )
    if (found := _PROXY.fullmatch(text)) is None:
        raise problem
    try:
        host, port = _parse_host(found[2])[0], _parse_port(found[3], 0)
    except InvalidURL:
        raise problem from None
    login = "" if found[1] is None else base64.b64encode(unquote_to_bytes(found[1])).decode()
    return Proxy(host, port, login)


def is_address(host: str) -> bool:
    """Returns whether the host of a parsed URL is an address literal."""
    return ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _parse_port(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise InvalidURL("the port of the URL must be a number from 1 to 65535")
    return int(text)


def _parse_host(text: str) -> tuple[str, bool]:
    """Returns the canonical host, and whether it is an address literal.

    Platform resolvers read 127.1, 0x7f000001 and 2130706433 as addresses. So a host whose last
    label looks like a number must be a dotted IPv4 address.
    """
    if text.startswith("["):
        try:
            return str(ipaddress.IPv6Address(text[1:-1])), True
        except ValueError:
            raise InvalidURL("the host of the URL is not a valid IPv6 address") from None
    host = text.lower()
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host)), True
        except ValueError:
            raise InvalidURL("the host of the URL is neither a name nor a dotted IPv4") from None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidURL("the host of the URL is not a valid name")
    return host, False


def _canonical_path(path: str) -> str:
    """Returns the path without its last slash and with unreserved characters unescaped.

    Escapes of control characters, "/", "\\", "%", "?" and "#" are refused: servers disagree on
    when to decode them, so a server could serve another path than the one that was compared.
    """
    if not _PATH.fullmatch(path):
        raise InvalidURL("the path of the URL holds a character that is not allowed")

    def decode(escape: re.Match[str]) -> str:
        character = chr(int(escape[1], 16))
        if character < " " or character in "/\\%?#\x7f":
            raise InvalidURL("the path of the URL holds an escape that is not allowed")
        return character if character in _UNRESERVED else escape[0].upper()

    path = _ESCAPE.sub(decode, path).removesuffix("/")
    if any(segment in ("", ".", "..") for segment in path.split("/")[1:]):
        raise InvalidURL("the path of the URL must not hold empty or dot segments")
    return path


def parse_target(text: str, *, policy: EgressPolicy) -> BaseURL:
    """Returns the origin of a URL before a connection to it. Raises `InvalidURL`.

    Unlike a base URL it may have a query, and escaped slashes in its path, as in model names.
    """
    head, _, query = text.partition("?")
    slash = head.find("/", 8)
    origin, path = (head, "") if slash < 0 else (head[:slash], head[slash:])
    base = parse_base_url(origin, policy=policy, require_https=False)
    if base.text != origin or not _PATH.fullmatch(path) or not _QUERY.fullmatch(query):
        raise InvalidURL("the URL is not canonical")
    decoded = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), path)
    if not {".", ".."}.isdisjoint(re.split(r"[/\\]", decoded)):
        raise InvalidURL("the path of the URL must not hold dot segments")
    return base
