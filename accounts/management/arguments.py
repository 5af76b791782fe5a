"""Reads the arguments of commands that name an organization."""

from __future__ import annotations

import uuid

from django.core.management.base import CommandError

from accounts.models import Organization
from config.bulk.files import refuse


def find_organization(text: str | None) -> uuid.UUID | None:
    """Returns the id after ``--organization``; ends the command for one that does not exist."""
    if text is None:
        return None
    try:
        key = uuid.UUID(text)
    except ValueError:
        raise CommandError("--organization must be the ID of one.", returncode=2) from None
    if not Organization.objects.filter(pk=key).exists():
        refuse(f"There is no organization {key}.")
    return key
