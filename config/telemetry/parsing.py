"""Reads the settings of metrics, traces and the access log."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured

from config.local.bootstrap import install_command

_PROTOCOL: Final = "http/protobuf"
# What the extra otel installs.
_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_MOST_ORGANIZATIONS: Final = 100


def parse_access_log(text: str) -> str:
    """Returns where the access log goes: nowhere, ``on``, ``-``, a path; raises ``ValueError``."""
    target = text.strip()
    if target.lower() in ("", "off"):
        return ""
    if target.lower() == "on":
        return "on"
    if target != "-" and not Path(target).absolute().parent.is_dir():
        raise ValueError(f"there is no folder {Path(target).absolute().parent}")
    return target


def parse_organizations(items: Iterable[str]) -> frozenset[UUID]:
    """Returns the ids of at most 100 organizations; raises ``ValueError``."""
    try:
        found = frozenset(UUID(text.strip()) for text in items)
    except ValueError:
        raise ValueError("it is a comma list of ids of organizations") from None
    if len(found) > _MOST_ORGANIZATIONS:
        raise ValueError(f"it may list {_MOST_ORGANIZATIONS} organizations at most")
    return found


def find_receiver(endpoint: str, traces_endpoint: str, protocol: str) -> str:
    """Returns the URL to which spans are exported, empty for none.

    The packages of OpenTelemetry read what else is set. Raises :class:`ImproperlyConfigured` if
    they are not installed.
    """
    if not endpoint and not traces_endpoint:
        return ""
    if protocol != _PROTOCOL:
        raise ImproperlyConfigured(f"OTEL_EXPORTER_OTLP_PROTOCOL must be {_PROTOCOL}.")
    if not _has_packages():
        raise ImproperlyConfigured(
            "OTEL_EXPORTER_OTLP_ENDPOINT needs the extra otel, which is not installed: "
            f"{install_command('otel')}."
        )
    return traces_endpoint or f"{endpoint.removesuffix('/')}/v1/traces"


def _has_packages() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)
    except (ModuleNotFoundError, ValueError):
        # A package around them is missing.
        return False
