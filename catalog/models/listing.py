"""Rows that an operator takes out of the catalogue and puts back."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from config.models import BaseModel


class ListedRow(BaseModel):
    """A row of the catalogue whose ``is_listed`` says whether new requests may use it."""

    is_listed: Any

    class Meta:
        abstract = True

    def delist(self) -> bool:
        """LISTED → DELISTED. No new request uses it; returns whether that is new."""
        return self._list(False)

    def relist(self) -> bool:
        """DELISTED → LISTED. New requests may use it again; returns whether that is new."""
        return self._list(True)

    def _list(self, is_listed: bool) -> bool:
        with transaction.atomic():
            locked = type(self)._base_manager.select_for_update(no_key=True)
            self.refresh_from_db(from_queryset=locked)
            if self.is_listed == is_listed:
                return False
            self.is_listed = is_listed
            self.save_fields("is_listed")
        return True
