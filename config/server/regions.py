"""Which region a host of the service stands for: what comes through it is served there alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from django.conf import settings

GLOBAL: Final = "global"
_REGIONS: Final = ("europe", "us", GLOBAL)
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# A last label with a letter in it: whatever else is an address.
_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*(?![0-9]+\Z){_LABEL}")


def parse_region_hosts(items: Iterable[str]) -> dict[str, str]:
    """Parses ``name=region`` items. Raises ``ValueError``."""
    hosts: dict[str, str] = {}
    for item in items:
        name, _, region = item.partition("=")
        if region not in _REGIONS:
            raise ValueError(f"{item!r} does not give one of {', '.join(_REGIONS)} for a name")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a host name in lower case, without a port")
        if name in hosts:
            raise ValueError(f"{name!r} is given twice")
        hosts[name] = region
    return hosts


def region_of_host(host: str | None) -> str | None:
    """Returns the region that a request's ``Host`` stands for; ``None`` where it is not regional.

    So are unknown hosts, and those that ``REGION_HOSTS`` calls ``global``.
    """
    name = (host or "").partition(":")[0].lower().removesuffix(".")
    region: str = settings.REGION_HOSTS.get(name, GLOBAL)
    return None if region == GLOBAL else region
