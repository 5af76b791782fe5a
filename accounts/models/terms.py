"""Choices that several models share: regions, and the periods of limits and budgets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import models

from accounts.policy import Fallback

# The integers that JavaScript can tell apart.
_NUMBERS: Final = 2**53


class Region(models.TextChoices):
    """The region in which a deployment processes data; ``global`` means anywhere."""

    GLOBAL = "global", "global"
    EUROPE = "europe", "europe"
    US = "us", "us"


class FallbackField(models.CharField):  # type: ignore[type-arg]
    """A level of fallback from private models; ``None`` leaves the decision to other levels."""

    def __init__(self, **kwargs: Any) -> None:
        fixed = {
            "verbose_name": "fallback from private models",
            "max_length": 16,
            "blank": True,
            "choices": [(level.value, level.value) for level in Fallback],
            "help_text": "none: requests for a model with a private endpoint never go to public "
            "ones. listed: only to providers that the request names in provider.order or "
            "provider.only. any: to all. Empty inherits; the strictest level that is set decides, "
            "and listed where none is set.",
        }
        super().__init__(**{**fixed, **kwargs})

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


class LimitReset(models.TextChoices):
    """The period after which a key's spend is reset, at midnight UTC; weeks begin on Monday."""

    DAILY = "daily", "daily"
    WEEKLY = "weekly", "weekly"
    MONTHLY = "monthly", "monthly"

    def began_at(self, now: datetime) -> datetime:
        """Returns the start of the period that contains a moment."""
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self is LimitReset.DAILY:
            return midnight
        if self is LimitReset.WEEKLY:
            return midnight - timedelta(days=midnight.weekday())
        return midnight.replace(day=1)

    def ends_at(self, now: datetime) -> datetime:
        """Returns the start of the next period."""
        began = self.began_at(now)
        if self is LimitReset.DAILY:
            return began + timedelta(days=1)
        if self is LimitReset.WEEKLY:
            return began + timedelta(days=7)
        return (began + timedelta(days=31)).replace(day=1)


class BudgetInterval(models.TextChoices):
    """The period of a workspace's budget; ``lifetime`` is never reset."""

    DAILY = "daily", "daily"
    WEEKLY = "weekly", "weekly"
    MONTHLY = "monthly", "monthly"
    LIFETIME = "lifetime", "lifetime"

    @property
    def reset(self) -> LimitReset | None:
        return None if self is BudgetInterval.LIFETIME else LimitReset(self.value)


def number_of_key(key_id: uuid.UUID) -> int:
    """Returns the number by which a workspace's settings name an API key.

    The interface has integers there, and hashes of keys everywhere else. The lowest bits of a UUID
    are random.
    """
    return key_id.int % _NUMBERS
