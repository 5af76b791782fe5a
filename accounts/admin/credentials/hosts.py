"""Shows where the secret of a credential may go, and where it went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db.models import Count, Max
from django.utils.html import format_html_join

from accounts.hosts import HostRule
from accounts.models import ByokCredential
from catalog.models import DialectName, Provider
from config.clocks.writing import write_time
from config.console.unfold import display
from endpoints.models import Validation

_SHOWN: Final = 20


class CredentialHosts:
    """The columns of a credential about the hosts that may receive, or received, its secret."""

    @display(description="May be sent to")
    def destinations(self, credential: ByokCredential) -> str:
        return format_html_join(
            "", "<div>{}</div>", ((line,) for line in _destinations(credential))
        )

    @display(description="Was sent to")
    def past_destinations(self, credential: ByokCredential) -> str:
        """Returns the hosts to which validations have sent the secret, latest first."""
        rows = (
            Validation.objects.filter(credential=credential)
            .exclude(host="")
            .values_list("host")
            .annotate(last=Max("created_at"), count=Count("pk"))
            .order_by("-last")[:_SHOWN]
        )
        lines = ((host, write_time(last), count) for host, last, count in rows)
        return (
            format_html_join("", "<div>{}, last at {} (validations: {})</div>", lines)
            or "no host yet"
        )


def _destinations(credential: ByokCredential) -> Iterator[str]:
    provider = Provider.objects.filter(slug=credential.provider_slug).first()
    if provider is not None:
        yield from (f"{host} (of the provider)" for host in sorted(provider.own_hosts()))
        if DialectName(provider.dialect).has_url_in_credential:
            yield "the host that the secret names"
            return
    limits = credential.host_limits()
    if limits.allowed_hosts is not None:
        yield from (f"{host} (allowed host)" for host in sorted(limits.allowed_hosts))
    elif limits.rule is HostRule.OFF:
        yield "any other host, because CREDENTIALS_REQUIRE_HOSTS is off"
    elif limits.is_open:
        yield "the host of its first use"
    elif limits.rule is HostRule.FIRST_USE:
        for scope in limits.bound_domains or ():
            domain = scope.removeprefix(".")
            extent = " and its subdomains" if scope.startswith(".") else ""
            yield f"{domain}{extent} (first use)"
