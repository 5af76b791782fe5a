"""The rotation of an API key, with the lists that name the key by its hash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.db import transaction

from accounts.destinations.models import BroadcastDestination
from accounts.models import ApiKey, ByokCredential
from config.api.errors import Unavailable
from config.credentials import Secret

_OF_CREDENTIALS: Final = "allowed_api_key_hashes"
_OF_DESTINATIONS: Final = "api_key_hashes"
_TRIES: Final = 5


def rotate_key(
    key: ApiKey, *, overlap: int, issued_by_operator: bool = False
) -> tuple[ApiKey, Secret]:
    """Rotates a key as :meth:`ApiKey.rotate` does; lists of keys name the new hash too.

    Raises :class:`Unavailable` when another credential comes to name the key during every attempt.
    """
    digest = key.digest
    for _ in range(_TRIES):
        made = _rotate(key, overlap=overlap, issued_by_operator=issued_by_operator)
        if made is not None:
            return made
        key.digest = digest
    raise Unavailable


def _rotate(key: ApiKey, *, overlap: int, issued_by_operator: bool) -> tuple[ApiKey, Secret] | None:
    """Rotates a key, or returns ``None`` when a credential has come to name it.

    Credentials are locked before the key and its organization, and destinations after them. So a
    credential that names the key since they were locked cannot be locked; the caller starts again.
    """
    digest = key.digest
    with transaction.atomic():
        credentials = _lock(_find(ByokCredential, _OF_CREDENTIALS, key, digest))
        former, secret = key.rotate(overlap=overlap, issued_by_operator=issued_by_operator)
        named = _find(ByokCredential, _OF_CREDENTIALS, key, digest)
        if named.exclude(pk__in=[each.pk for each in credentials]).exists():
            transaction.set_rollback(True)
            return None
        destinations = _lock(_find(BroadcastDestination, _OF_DESTINATIONS, key, digest))
        _add(key.digest, credentials, _OF_CREDENTIALS)
        _add(key.digest, destinations, _OF_DESTINATIONS)
    return former, secret


def _find(model: Any, column: str, key: ApiKey, digest: str) -> Any:
    """Returns the present rows of the key's organization whose list names a hash."""
    rows = model.objects.for_organization(key.organization_id)
    return rows.filter(**{f"{column}__contains": [digest]})


def _lock(rows: Any) -> list[Any]:
    return list(rows.select_for_update(no_key=True, of=("self",)).order_by("pk"))


def _add(digest: str, rows: Iterable[Any], column: str) -> None:
    """Adds a hash to the list of each row."""
    for row in rows:
        setattr(row, column, [*getattr(row, column), digest])
        row.save_fields(column)
