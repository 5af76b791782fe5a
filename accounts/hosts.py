"""Decides to which hosts the secret of a stored credential may be sent; pure.

Live validations, inference and the console ask the same :class:`HostLimits`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_WIDENING: Final = (
    "To allow it, send the secret as `key` together with `allowed_hosts`: PATCH /byok/{id}."
)


class HostRule(StrEnum):
    """The rule for a credential without ``allowed_hosts``: ``CREDENTIALS_REQUIRE_HOSTS``."""

    FIRST_USE = "first-use"
    NAMED = "named"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class HostLimits:
    """The hosts to which the secret of one credential may be sent.

    ``own_hosts`` are the hosts of its provider, or the host that the secret itself names; they are
    always allowed. ``allowed_hosts`` are the hosts that its owner named, ``None`` if none were.
    ``bound_domains`` has the host of its first use; ``None`` before it.
    """

    own_hosts: frozenset[str] = frozenset()
    allowed_hosts: frozenset[str] | None = None
    bound_domains: tuple[str, ...] | None = None
    rule: HostRule = HostRule.FIRST_USE

    @property
    def is_open(self) -> bool:
        """Returns whether the next use decides where the secret may go from then on."""
        return (
            self.allowed_hosts is None
            and self.bound_domains is None
            and self.rule is not HostRule.NAMED
        )

    def permits(self, host: str) -> bool:
        """Returns whether the secret may be sent to a host."""
        return self.permits_any or self.has_named(host)

    def has_named(self, host: str) -> bool:
        """Returns whether the provider, the owner or an earlier use named the host.

        Sending the secret there shows it to nobody new.
        """
        if host in self.own_hosts:
            return True
        if self.allowed_hosts is not None:
            return host in self.allowed_hosts
        return self.rule is not HostRule.NAMED and host in (self.bound_domains or ())

    def is_widened_by(self, allowed_hosts: Collection[str] | None) -> bool:
        """Returns whether new ``allowed_hosts`` may let the secret go to more hosts than now."""
        if allowed_hosts is None:
            return self.allowed_hosts is not None
        if self.permits_any:
            return False
        return not all(self.has_named(host) for host in allowed_hosts)

    @property
    def permits_any(self) -> bool:
        """Returns whether the secret may be sent to every host."""
        return self.is_open or (self.allowed_hosts is None and self.rule is HostRule.OFF)

    def refusal(self, host: str) -> str | None:
        """Returns the reason why the secret may not go to a host, and the remedy."""
        if self.permits(host):
            return None
        if self.allowed_hosts is not None:
            reason = f"The allowed_hosts of the credential do not name {host}."
        elif self.rule is HostRule.NAMED:
            reason = f"The credential has no allowed_hosts, which {host} requires here."
        else:
            names = self.describe() or "its provider"
            reason = f"The credential is bound by its first use to {names}; {host} is elsewhere."
        return f"{reason} {_WIDENING}"

    def describe(self) -> str:
        """Returns the allowed hosts, or that of the first use; without the provider's hosts."""
        if self.allowed_hosts is not None:
            return ", ".join(sorted(self.allowed_hosts))
        if self.rule is HostRule.NAMED:
            return ""
        return ", ".join(self.bound_domains or ())


NO_LIMITS: Final = HostLimits()
"""The limits of a credential before its first use."""
