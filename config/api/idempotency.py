"""Idempotency of creating requests: a row stores the key and a digest of the request.

A creating method computes :func:`fingerprint_of` its arguments, takes its lock, and asks
:func:`find_replay` before it creates a row. Each model declares a unique constraint over the owner
and the key, so that only one of two concurrent first requests creates a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from django.db import models

from config.api.errors import InvalidRequest, Unprocessable
from config.peppers import REQUEST, oldest_pepper

HEADER: Final = "Idempotency-Key"
MAX_LENGTH: Final = 255
_KEY: Final = re.compile(rf"[ -~]{{1,{MAX_LENGTH}}}")


class IdempotencyKeyReused(Unprocessable):
    """The key was already used by a different request."""

    error_type = "idempotency_key_reused"
    message = (
        "idempotency_key_reused: this Idempotency-Key was used with a different request. Send "
        "another key."
    )


class IdempotentModel(models.Model):
    """A row that remembers the request that created it."""

    idempotency_key = models.CharField(max_length=MAX_LENGTH, null=True, editable=False)
    request_fingerprint = models.CharField(max_length=64, editable=False)

    class Meta:
        abstract = True


Row = TypeVar("Row", bound=IdempotentModel)


def idempotency_key_of(headers: Mapping[str, str]) -> str | None:
    """Returns the idempotency key of a request, if it has one; raises :class:`InvalidRequest`."""
    key = headers.get(HEADER)
    return None if key is None else require_idempotency_key(key)


def require_idempotency_key(key: str) -> str:
    """Returns an idempotency key; raises :class:`InvalidRequest` for one that is malformed."""
    if not _KEY.fullmatch(key):
        raise InvalidRequest(f"{HEADER}: must be 1 to {MAX_LENGTH} printable ASCII characters.")
    return key


def fingerprint_of(*parts: Any) -> str:
    """Returns a keyed SHA-256 digest of JSON values, decimals among them.

    Equal values have equal digests, in whatever order the members of an object stand.
    """
    return oldest_pepper(REQUEST).digest(json.dumps(parts, sort_keys=True, default=str))


def find_replay(rows: models.QuerySet[Row], key: str | None, fingerprint: str) -> Row | None:
    """Returns the row of ``rows`` that the first request with a key created, if there is one.

    ``rows`` are the rows of one owner. Raises :class:`IdempotencyKeyReused` when that request had
    another fingerprint.
    """
    if key is None:
        return None
    row = rows.filter(idempotency_key=key).first()
    if row is not None and row.request_fingerprint != fingerprint:
        raise IdempotencyKeyReused
    return row
