"""Departures: the partitions that have left the database, and where their rows are.

Generations have folds instead, which also keep their sums.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

import msgspec
from django.db import models
from django.db.models.functions import Now

from config.peppers import list_peppers
from config.triggers import AppendOnly

DEPARTURE: Final = b"causeway.departure"


class Departure(models.Model):
    """Partitions of one kind that were archived and then dropped; append-only.

    ``seal`` is a keyed digest of the row, so that whoever can only write to the database cannot
    pass other files off as the archive.
    """

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=32)
    begin = models.DateTimeField(null=True, help_text="Empty for everything before the end.")
    end = models.DateTimeField()
    files: Any = models.JSONField(
        help_text="The files of the archive, each with its table, rows and digest."
    )
    seal = models.CharField(max_length=64)
    left_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("id",)
        triggers = [AppendOnly(message="what has left is never changed")]

    def __str__(self) -> str:
        return f"departure {self.pk}"

    @property
    def has_seal(self) -> bool:
        """Whether one of the installation's secrets made the seal of this very row."""
        text = self._covered
        return any(
            hmac.compare_digest(pepper.digest(text), self.seal)
            for pepper in list_peppers(DEPARTURE)
        )

    def make_seal(self) -> None:
        self.seal = list_peppers(DEPARTURE)[0].digest(self._covered)

    @property
    def _covered(self) -> str:
        """What the seal covers: everything but the number and the time."""
        bounds = [None if each is None else each.timestamp() for each in (self.begin, self.end)]
        return msgspec.json.encode([self.kind, *bounds, self.files], order="sorted").decode()
