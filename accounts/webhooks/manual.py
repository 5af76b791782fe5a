"""Counts what an organization sends by hand: tests, and deliveries that are sent again.

Each of them makes this host call a receiver at once, so a caller of the API must not make them as
fast as it calls. The count is of the organization, and outlives the webhooks that it deletes.
"""

from __future__ import annotations

import uuid
from typing import Final

from django.db import connection, models

from accounts.models.organizations import Organization
from config.api.errors import TooManyRequests

MOST_IN_A_MINUTE: Final = 60

# The database's clock decides. A minute that began earlier than the stored one is a late statement,
# which counts for the later minute; one that is much earlier means that the clock was set back.
_COUNT: Final = """
INSERT INTO accounts_manualsends AS s (organization_id, minute, count)
VALUES (%(organization)s, date_trunc('minute', statement_timestamp()), 1)
ON CONFLICT (organization_id) DO UPDATE SET
    minute = CASE WHEN s.minute - excluded.minute = interval '1 minute'
        THEN s.minute ELSE excluded.minute END,
    count = CASE WHEN s.minute - excluded.minute IN (interval '0', interval '1 minute')
        THEN s.count + 1 ELSE 1 END
WHERE s.count < %(most)s
    OR s.minute - excluded.minute NOT IN (interval '0', interval '1 minute')
"""
_REMAINING: Final = "SELECT ceil(60 - extract(second FROM statement_timestamp()))"


class TooManySends(TooManyRequests):
    """The organization has sent as much by hand as it may in a minute."""

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"An organization may send {MOST_IN_A_MINUTE} tests and redeliveries of webhooks a "
            "minute. Nothing was sent; try again in the next minute.",
            headers={"Retry-After": str(seconds)},
        )


class ManualSends(models.Model):
    """The tests and redeliveries of an organization in the last minute of the clock with any."""

    organization = models.OneToOneField(
        Organization, on_delete=models.CASCADE, primary_key=True, related_name="+"
    )
    minute = models.DateTimeField()
    count = models.PositiveSmallIntegerField()

    class Meta:
        verbose_name_plural = "manual sends"

    def __str__(self) -> str:
        return f"{self.count} in {self.minute:%Y-%m-%d %H:%M}"


def count_send(organization_id: uuid.UUID | None) -> None:
    """Counts one in the caller's transaction; raises :class:`TooManySends` beyond the limit.

    All processes count together. Operators, who have no organization, have no limit.
    """
    if organization_id is None:
        return
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, {"organization": organization_id, "most": MOST_IN_A_MINUTE})
        if cursor.rowcount:
            return
        cursor.execute(_REMAINING)
        [seconds] = cursor.fetchone()
    raise TooManySends(int(seconds))
