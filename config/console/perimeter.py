"""Limits the addresses that open the console, and finds an open perimeter for `check --deploy`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.encoding import escape_uri_path

from config.console.sign_in.recognition import PREFIX
from config.console.sign_in.throttle import address_of
from config.server.connections.peers import EVERYBODY, Proxies, address_group

logger = logging.getLogger("causeway.console")

_MAX_PATH: Final = 200
# Proxies of one installation are single hosts; more addresses are a network of others too.
_MOST_PROXIES: Final = 16
# Public networks with a shorter prefix have strangers, by the version of IP.
_LEAST_PREFIX: Final = {4: 8, 6: 16}
_LEAST_TOKEN: Final = 16
# What proxies add to a request that they pass on.
_PASSED_ON: Final = (
    "HTTP_X_FORWARDED_FOR",
    "HTTP_X_FORWARDED_HOST",
    "HTTP_X_FORWARDED_PROTO",
    "HTTP_X_REAL_IP",
    "HTTP_FORWARDED",
    "HTTP_VIA",
)
_FAR: Final = (
    "The console is not open to your address. Its operator names networks in CONSOLE_NETWORKS.\n"
)
_HIDDEN: Final = (
    "The console cannot tell your address: the proxy that passed this request on must send it in "
    "X-Forwarded-For, and stand in FORWARDED_ALLOW_IPS.\n"
)


class ConsoleNetworkMiddleware:
    """Refuses the pages of the console to addresses outside of ``CONSOLE_NETWORKS``.

    It comes before sessions and sign-ins: a stranger makes no query. Behind a proxy that does not
    name its callers, or is not believed, everybody would have the proxy's own address, so nobody
    is let in.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(PREFIX):
            return self._get_response(request)
        if not _is_near(address_of(request)):
            return _refuse(request, _FAR, "not from CONSOLE_NETWORKS")
        if any(name in request.META for name in _PASSED_ON) and not _is_named(request):
            return _refuse(request, _HIDDEN, "its proxy is not in FORWARDED_ALLOW_IPS")
        return self._get_response(request)


def _refuse(request: HttpRequest, text: str, reason: str) -> HttpResponse:
    path = escape_uri_path(request.path)[:_MAX_PATH]
    logger.warning("refused %s %s: %s", request.method, path, reason)
    response = HttpResponse(text, content_type="text/plain; charset=utf-8", status=403)
    # Django's log_response reads this mark.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _is_named(request: HttpRequest) -> bool:
    """Returns whether a proxy that is believed has named the caller of a request."""
    peer = getattr(request, "scope", {}).get("causeway.peer", "")
    has_name = bool(request.META.get("HTTP_X_FORWARDED_FOR", "").strip(" ,"))
    return has_name and peer in _read(tuple(settings.FORWARDED_ALLOW_IPS))


def _is_near(address: str) -> bool:
    """Returns whether an address may open the console; one that cannot be read may not."""
    # The group of an IPv4 address that IPv6 carries is the IPv4 address.
    given = address_group(address) if address.startswith("::ffff:") else address
    return given in _read(tuple(settings.CONSOLE_NETWORKS))


@lru_cache(maxsize=4)
def _read(networks: Sequence[str]) -> Proxies:
    return Proxies(networks)


def check_perimeter(**options: Any) -> list[checks.CheckMessage]:
    """Finds what makes the console or the metrics open to strangers."""
    found = [
        (
            not settings.ADMIN_REQUIRES_TOTP,
            "W001",
            "Operators may sign in to the console with a password alone.",
            "Set ADMIN_REQUIRES_TOTP=on.",
        ),
        (
            _has_everybody(settings.CONSOLE_NETWORKS),
            "W002",
            "The console can be opened from every address.",
            "Name the networks of its operators in CONSOLE_NETWORKS.",
        ),
        (
            sum(map(_count, settings.FORWARDED_ALLOW_IPS)) > _MOST_PROXIES,
            "W003",
            "Many addresses may claim another address in X-Forwarded-For.",
            "Name the proxy's own addresses in FORWARDED_ALLOW_IPS.",
        ),
        (
            not (settings.METRICS_TOKEN or settings.EMBEDDED),
            "W004",
            "Nobody can read the metrics, because they have no token.",
            "Set METRICS_TOKEN.",
        ),
        (
            0 < len(settings.METRICS_TOKEN) < _LEAST_TOKEN,
            "W005",
            "METRICS_TOKEN can be guessed.",
            f"Set a random one of at least {_LEAST_TOKEN} characters.",
        ),
    ]
    return [
        checks.Warning(text, hint=hint, id=f"console.{name}")
        for is_open, name, text, hint in found
        if is_open
    ]


def _has_everybody(networks: Sequence[str]) -> bool:
    return any(each == EVERYBODY or _is_wide(ip_network(each)) for each in networks)


def _is_wide(network: IPv4Network | IPv6Network) -> bool:
    return network.prefixlen < _LEAST_PREFIX[network.version] and not network.is_private


def _count(network: str) -> float:
    """Returns how many addresses a network has; loopback counts as one."""
    if network == EVERYBODY:
        return math.inf
    parsed = ip_network(network)
    return 1 if parsed.is_loopback else parsed.num_addresses
