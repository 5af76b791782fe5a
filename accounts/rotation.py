"""The rotation of an API key, with the lists that name the key by its hash."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from accounts.destinations.models import BroadcastDestination
from accounts.models import ApiKey, ByokCredential
from config.api.errors import Unavailable
from config.credentials import Secret

_OF_CREDENTIALS: Final = "allowed_api_key_hashes"
_OF_DESTINATIONS: Final = "api_key_hashes"
_TRIES: Final = 5
_ADVICE: Final = "Shorten some, or rotate with overlap_seconds 0, which makes no list longer."


def rotate_key(
    key: ApiKey, *, overlap: int, issued_by_operator: bool = False
) -> tuple[ApiKey, Secret]:
    """Rotates a key as :meth:`ApiKey.rotate` does; lists of keys name the new hash too.

    They lose the hashes of secrets that have ended. Raises :class:`InvalidRequest` if the lists of
    credentials would have too many entries, which an ``overlap`` of 0 never does, and
    :class:`Unavailable` when another credential comes to name the key during every attempt.
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
        ended = _find_ended(key)
        growth = sum(
            1 - len(ended.intersection(each.allowed_api_key_hashes)) for each in credentials
        )
        ByokCredential.objects.require_room(
            key.organization_id, growth, field="overlap_seconds", advice=_ADVICE
        )
        _replace(ended, key.digest, credentials, _OF_CREDENTIALS)
        _replace(ended, key.digest, destinations, _OF_DESTINATIONS)
    return former, secret


def _find(model: Any, column: str, key: ApiKey, digest: str) -> Any:
    """Returns the present rows of the key's organization whose list names a hash."""
    rows = model.objects.for_organization(key.organization_id)
    return rows.filter(**{f"{column}__contains": [digest]})


def _lock(rows: Any) -> list[Any]:
    return list(rows.select_for_update(no_key=True, of=("self",)).order_by("pk"))


def _find_ended(key: ApiKey) -> set[str]:
    """Returns the hashes of a key's former secrets that have ended.

    A rotation without overlap has just ended the last one.
    """
    ended = Q(expires_at__lte=key.created_at) | Q(deleted_at__isnull=False)
    return set(key.former.filter(ended).values_list("digest", flat=True))


def _replace(ended: Collection[str], digest: str, rows: Iterable[Any], column: str) -> None:
    """Drops ended hashes from the list of each row, and adds one."""
    for row in rows:
        kept = [each for each in getattr(row, column) if each not in ended]
        setattr(row, column, [*kept, digest])
        row.save_fields(column)
