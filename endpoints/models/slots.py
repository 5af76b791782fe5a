"""Slots: at most two validations of an organization run at once, over all workers and hosts."""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from django.conf import settings
from django.db import DatabaseError, models
from django.db.models import Count, Min
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from accounts.models import Organization
from config.api.errors import TooManyRequests
from config.clocks.clock import clock
from config.models import BaseModel
from endpoints.metrics import ValidationRefusal, count_refusal

logger = logging.getLogger(__name__)

SLOTS: Final = 2
# Seconds beyond the calls in which a validation reads and stores its rows.
_MARGIN: Final = 30


class ValidationsBusy(TooManyRequests):
    """Every slot of the organization is taken; nothing was created, consumed or sent."""

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"At most {SLOTS} validations of an organization run at a time. Try again when one of "
            f"them has ended, at the latest in {seconds} s. Nothing was changed.",
            metadata={"limit": SLOTS},
            headers={"Retry-After": str(seconds)},
        )


class ValidationSlot(BaseModel):
    """The right of one process to run a validation of an organization until a time.

    ``endpoint`` is the one whose creation asked for its activation, if that is what runs. A context
    manager, which gives the slot back at the end. That of a killed process ends by itself at
    ``until``, by the clock of the database.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    endpoint = models.ForeignKey(
        "endpoints.PrivateEndpoint",
        null=True,
        on_delete=models.CASCADE,
        related_name="activations",
        db_index=False,
    )
    number = models.PositiveSmallIntegerField()
    until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("organization", "number"), name="validation_slot_number"
            ),
            models.CheckConstraint(
                condition=models.Q(number__lt=SLOTS), name="validation_slot_count"
            ),
        ]

    def __str__(self) -> str:
        return f"validation {self.number}"

    def take(self) -> Self:
        """Takes a free slot of the organization; raises :class:`ValidationsBusy`.

        In a transaction, the slot is taken if the transaction commits.
        """
        slots = ValidationSlot.objects.filter(organization=self.organization_id)
        slots.filter(until__lte=Now()).delete()
        self.until = _end(settings.VALIDATION_TIMEOUT)
        for self.number in range(SLOTS):
            # The unique constraint decides between concurrent calls.
            ValidationSlot.objects.bulk_create([self], ignore_conflicts=True)
            if slots.filter(pk=self.pk).exists():
                return self
        ends = slots.aggregate(first=Min("until"))["first"]
        seconds = 1.0 if ends is None else (ends - clock.now()).total_seconds()
        count_refusal(ValidationRefusal.SLOTS)
        raise ValidationsBusy(max(1, math.ceil(seconds)))

    @classmethod
    def busy_organizations(cls) -> models.QuerySet[Any, Any]:
        """Returns the ids of the organizations without a free slot."""
        running = cls.objects.filter(until__gt=Now()).values("organization_id")
        return (
            running.annotate(count=Count("pk")).filter(count__gte=SLOTS).values("organization_id")
        )

    def extend(self, seconds: float) -> None:
        """Starts the time of the slot anew, before calls under it that take so many seconds."""
        ValidationSlot.objects.filter(pk=self.pk).update(until=_end(seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            ValidationSlot.objects.filter(pk=self.pk).delete()
        except DatabaseError:
            # The slot ends by itself, and the validation's own outcome matters more.
            logger.warning("a validation slot was not given back", exc_info=True)


def _end(seconds: float) -> Combinable:
    return Now() + timedelta(seconds=math.ceil(seconds) + _MARGIN)
