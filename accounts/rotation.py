"""The rotation of an API key, with the lists that name the key by its hash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.db import models, transaction

from accounts.destinations.models import BroadcastDestination
from accounts.models import ApiKey, ByokCredential
from config.credentials import Secret

_OF_CREDENTIALS: Final = "allowed_api_key_hashes"
_OF_DESTINATIONS: Final = "api_key_hashes"


def rotate_key(
    key: ApiKey, *, overlap: int, issued_by_operator: bool = False
) -> tuple[ApiKey, Secret]:
    """Rotates a key as :meth:`ApiKey.rotate` does; lists of keys name the new hash too."""
    with transaction.atomic():
        digest = key.digest
        # Credentials are locked before the key and its organization, and destinations after them.
        credentials = _lock(ByokCredential, _OF_CREDENTIALS, digest)
        former, secret = key.rotate(overlap=overlap, issued_by_operator=issued_by_operator)
        destinations = _lock(BroadcastDestination, _OF_DESTINATIONS, digest)
        _add(key.digest, credentials, _OF_CREDENTIALS)
        _add(key.digest, destinations, _OF_DESTINATIONS)
    return former, secret


def _lock(model: type[models.Model], column: str, digest: str) -> list[Any]:
    """Locks and returns the rows whose list names a hash."""
    rows = model._base_manager.select_for_update(no_key=True)
    return list(rows.filter(**{f"{column}__contains": [digest]}).order_by("pk"))


def _add(digest: str, rows: Iterable[Any], column: str) -> None:
    """Adds a hash to the list of each row."""
    for row in rows:
        setattr(row, column, [*getattr(row, column), digest])
        row.save_fields(column)
