"""The rotation of an API key, with the lists that name the key by its hash."""

from __future__ import annotations

from typing import Any, Final

from django.db import models, transaction

from accounts.destinations.models import BroadcastDestination
from accounts.models import ApiKey, ByokCredential
from config.credentials import Secret

_LISTS: Final[tuple[tuple[type[models.Model], str], ...]] = (
    (ByokCredential, "allowed_api_key_hashes"),
    (BroadcastDestination, "api_key_hashes"),
)


def rotate_key(
    key: ApiKey, *, overlap: int, issued_by_operator: bool = False
) -> tuple[ApiKey, Secret]:
    """Rotates a key as :meth:`ApiKey.rotate` does; lists of keys name the new hash too."""
    with transaction.atomic():
        digest = key.digest
        lists = [(row, column) for model, column in _LISTS for row in _lock(model, column, digest)]
        former, secret = key.rotate(overlap=overlap, issued_by_operator=issued_by_operator)
        for row, column in lists:
            setattr(row, column, [*getattr(row, column), key.digest])
            row.save_fields(column)
    return former, secret


def _lock(model: type[models.Model], column: str, digest: str) -> list[Any]:
    """Locks and returns the rows whose list names a hash."""
    rows = model._base_manager.select_for_update(no_key=True)
    return list(rows.filter(**{f"{column}__contains": [digest]}).order_by("pk"))
