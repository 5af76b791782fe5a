"""Says at the start of a process which providers it cannot call, because an extra is missing."""

from __future__ import annotations

import logging

from accounts.models import ByokCredential
from catalog import dialects
from catalog.models import Provider
from config.local.bootstrap import install_command

logger = logging.getLogger("causeway.start")


def log_missing_extras() -> None:
    """Logs each extra that a provider of the catalogue needs and this installation lacks.

    It is a warning where somebody has stored a credential for such a provider: its requests fail.
    """
    lacking: dict[str, list[Provider]] = {}
    for provider in Provider.objects.filter(is_listed=True).order_by("slug"):
        if (extra := dialects.missing_extra(provider.dialect)) is not None:
            lacking.setdefault(extra, []).append(provider)
    for extra, providers in sorted(lacking.items()):
        slugs = [provider.slug for provider in providers]
        is_used = (
            any(provider.has_credential for provider in providers)
            or ByokCredential.objects.filter(provider_slug__in=slugs).exists()
        )
        logger.log(
            logging.WARNING if is_used else logging.INFO,
            "cannot call %s: %s, and start again",
            ", ".join(slugs),
            install_command(extra),
        )
