"""Choices that several models share: regions, and the periods of limits and budgets."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import models

# The integers that JavaScript can tell apart.
_NUMBERS: Final = 2**53


class Region(models.TextChoices):
    """The region in which a deployment processes data; ``global`` means anywhere."""

    GLOBAL = "global", "global"
    EUROPE = "europe", "europe"
    US = "us", "us"


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
