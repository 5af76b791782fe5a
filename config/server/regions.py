"""Maps hosts of the service to regions: a request to a regional host is served in its region."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

GLOBAL: Final = "global"
_REGIONS: Final = ("europe", "us", GLOBAL)
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label has a letter; a name whose last label is a number is an address.
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


def region_of_host(host: str | None, region_hosts: Mapping[str, str]) -> str | None:
    """Returns the region of a request's ``Host``, or ``None`` when the host is not regional.

    Unknown hosts, and hosts that ``REGION_HOSTS`` maps to ``global``, are not regional.
    """
    name = (host or "").partition(":")[0].lower().removesuffix(".")
    region = region_hosts.get(name, GLOBAL)
    return None if region == GLOBAL else region
