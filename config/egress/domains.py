"""Finds the domain that a host belongs to, by the Public Suffix List; pure.

Credentials that an earlier release bound to a domain still have one.
"""

from __future__ import annotations

from functools import cache, lru_cache

from publicsuffixlist import PublicSuffixList

from config.egress.addresses import is_address


def scope_of(host: str) -> str:
    """Returns the scope of a host: its registrable domain with a leading dot, or the host itself.

    ``.example.com`` is the scope of ``llm.example.com``: the domain and all its subdomains. The
    private section of the list counts, so that ``.me.github.io`` is a scope and ``.github.io`` is
    not. An address, a public suffix and a name without a dot are scopes of their own.
    """
    if is_address(host):
        return host
    domain = _read_suffixes().privatesuffix(host)
    return host if domain is None else f".{domain}"


def is_in_scope(host: str, scope: str) -> bool:
    """Returns whether a host belongs to a scope.

    A subdomain that the list gives to other owners, such as ``up.railway.app``, does not belong to
    ``.railway.app``. The list is read only for a name that ends like the scope.
    """
    if not scope.startswith("."):
        return host == scope
    return host == scope[1:] or (host.endswith(scope) and _cached_scope_of(host) == scope)


_cached_scope_of = lru_cache(maxsize=4096)(scope_of)


@cache
def _read_suffixes() -> PublicSuffixList:
    # The list takes four megabytes, and most workers never bind a credential.
    return PublicSuffixList()
