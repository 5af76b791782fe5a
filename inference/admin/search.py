"""Finds generations by the term of a search, each by a range of one index."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from accounts.models import ApiKey, Organization
from endusers.models import EndUser
from inference.ids import second_bound

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LABEL: Final = re.compile(r"[sm]k-cw-\S+…\S+")
# The accepted spellings of a time, each with the length of its smallest unit.
_MOMENTS: Final = (
    ("%Y-%m-%d", timedelta(days=1)),
    ("%Y-%m-%d %H", timedelta(hours=1)),
    ("%Y-%m-%d %H:%M", timedelta(minutes=1)),
    ("%Y-%m-%d %H:%M:%S", timedelta(seconds=1)),
)


def find_generations(generations: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Narrows generations to those that a search term names, by the shape of the term."""
    if term.startswith("gen-"):
        # Ids end in hexadecimal digits; the range names the partitions.
        return generations.filter(id__startswith=term, id__gte=term, id__lte=f"{term}z")
    moment = _parse_moment(term)
    if moment is not None:
        began_at, lasts = moment
        # In seconds: the last day of the calendar ends after the last datetime.
        begin = began_at.timestamp()
        end = begin + lasts.total_seconds()
        return generations.filter(id__gte=second_bound(begin), id__lt=second_bound(end))
    return _by_name(generations, term).order_by("-created_at", "-id")


def _by_name(generations: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Returns the generations of the key, organization or end user that a term names."""
    try:
        key = UUID(term)
    except ValueError:
        key = None
    # What looks like an ID or a digest may be an end user's name too, for instance a hashed one.
    if key is not None:
        return _by_id(generations, key, term)
    if _DIGEST.fullmatch(term) and (keys := _ids(ApiKey.objects.filter(digest=term))):
        return generations.filter(api_key__in=keys)
    if _LABEL.fullmatch(term):
        return generations.filter(api_key__in=_ids(ApiKey.objects.filter(label=term)))
    organizations = _ids(
        Organization.objects.filter(slug=term) | Organization.objects.filter(name=term)
    )
    if organizations:
        return generations.filter(organization__in=organizations)
    return generations.filter(end_user=term)


def _by_id(generations: QuerySet[Any], key: UUID, term: str) -> QuerySet[Any]:
    """Returns the generations of an API key, end user or organization by its ID.

    Without one, returns those of the end user whom the organization has named so.
    """
    if ApiKey.objects.filter(pk=key).exists():
        return generations.filter(api_key_id=key)
    known = EndUser.objects.filter(pk=key).first()
    if known is not None:
        return generations.filter(organization_id=known.organization_id, end_user=known.user)
    if Organization.objects.filter(pk=key).exists():
        return generations.filter(organization_id=key)
    return generations.filter(end_user=term)


def _ids(rows: QuerySet[Any]) -> list[UUID]:
    return list(rows.values_list("pk", flat=True)[:100])


def _parse_moment(term: str) -> tuple[datetime, timedelta] | None:
    """Parses a time in UTC; returns its beginning and the length of its smallest written unit."""
    for pattern, lasts in _MOMENTS:
        try:
            return datetime.strptime(term, pattern).replace(tzinfo=UTC), lasts
        except ValueError:
            continue
    return None
