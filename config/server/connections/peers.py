"""The addresses of callers: which of them share a limit, and which are proxies of the operator."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

EVERYBODY: Final = "*"
_CALLER_BITS: Final = 64


@lru_cache(maxsize=4096)
def address_group(host: str) -> str:
    """Returns what counts as one address: an IPv4 address, or the /64 network of an IPv6 address.

    A caller with IPv6 usually has a whole /64 network.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(IPv6Network((int(address) >> _CALLER_BITS << _CALLER_BITS, _CALLER_BITS)))
    return str(address)


def parse_proxies(items: Iterable[str]) -> list[str]:
    """Checks a list of addresses, networks or ``*``, and returns it. Raises ``ValueError``.

    uvicorn takes what it cannot parse for a host name, which never matches.
    """
    found = list(items)
    for item in found:
        if item != EVERYBODY:
            ip_network(item)
        elif len(found) > 1:
            raise ValueError(f"{EVERYBODY!r} means everybody and stands alone")
    return found


class Proxies:
    """The operator's proxies, as uvicorn reads the same list."""

    def __init__(self, items: Iterable[str]) -> None:
        found = parse_proxies(items)
        self._is_everybody = EVERYBODY in found
        self._networks: list[IPv4Network | IPv6Network] = [
            ip_network(item) for item in found if item != EVERYBODY
        ]

    def __contains__(self, host: str) -> bool:
        if self._is_everybody:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
