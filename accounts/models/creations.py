"""Remembers the rows that requests with an ``Idempotency-Key`` created, and their secrets."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import connection, models, transaction
from django.db.models import Q

from accounts.models.organizations import Organization
from config import secrets
from config.api.errors import Conflict
from config.api.idempotency import IdempotentModel, find_replay, fingerprint_of
from config.clocks.clock import clock
from config.credentials import Secret
from config.models import BaseModel

SECRET_LIFETIME: Final = timedelta(hours=24)
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('causeway_creation ' || %s, 0))"

Created = tuple[models.Model, Secret | None]


class SecretErased(Conflict):
    """A repeated request would answer a secret that is kept no longer."""

    error_type = "secret_erased"
    message = (
        "The first request with this Idempotency-Key has created this already, and its secret is "
        "erased: it is kept for 24 hours. Delete what was created, and send another key."
    )


@dataclass(frozen=True, slots=True)
class CreateCall:
    """A request with an ``Idempotency-Key``; ``resource`` is the route that it posts to.

    ``target`` are the values in the path. A caller whose key ``is_operators`` is never answered
    what another one created.
    """

    organization_id: uuid.UUID
    resource: str
    key: str
    body: Mapping[str, Any]
    is_operators: bool
    target: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Returns a keyed digest of the body, in which secrets may stand; null counts as absent."""
        stated = {name: value for name, value in self.body.items() if value is not None}
        return fingerprint_of(self.resource, stated, self.is_operators, *self.target)

    def lock(self) -> None:
        """Lets one of several requests with the key create, until the transaction ends.

        It is the first lock of the transaction. A lock on the organization would not do: changes
        of an API key lock the key before the organization.
        """
        with connection.cursor() as cursor:
            cursor.execute(_LOCK, [f"{self.organization_id} {self.resource} {self.key}"])


class CreationManager(models.Manager["Creation"]):
    def find(self, call: CreateCall) -> Creation | None:
        """Returns what a request with the same key and body has created, if there was one."""
        return self._rows(call).filter(request_fingerprint=call.fingerprint).first()

    def create_once(self, call: CreateCall, create: Callable[[], Created]) -> Creation:
        """Calls ``create`` unless the key was used, and returns what the first request created.

        Raises :class:`IdempotencyKeyReused` for another body, and what ``create`` raises; then the
        key is not used.
        """
        with transaction.atomic():
            call.lock()
            first = find_replay(self._rows(call), call.key, call.fingerprint)
            if first is not None:
                return first
            row, secret = create()
            creation = Creation(
                organization_id=call.organization_id,
                resource=call.resource,
                row_id=row.pk,
                idempotency_key=call.key,
                request_fingerprint=call.fingerprint,
            )
            if secret is not None:
                creation.has_secret = True
                creation.sealed = secrets.seal(secret, associated=creation._associated)
            creation.save(force_insert=True)
        return creation

    def erase(self, row_id: uuid.UUID) -> None:
        """Erases the secret of a row that was revoked, removed, or given another one."""
        self.filter(row_id=row_id).exclude(sealed=None).update(sealed=None)

    def erase_due(self) -> int:
        """Erases the secrets that were kept for their time, and returns their number."""
        due = clock.now() - SECRET_LIFETIME
        return self.filter(created_at__lte=due).exclude(sealed=None).update(sealed=None)

    def _rows(self, call: CreateCall) -> models.QuerySet[Creation]:
        return self.filter(
            organization_id=call.organization_id,
            resource=call.resource,
            idempotency_key=call.key,
        )


class Creation(IdempotentModel, BaseModel):
    """The row that a request with an ``Idempotency-Key`` created.

    It stays, so that the key stays used; its secret, which a repeated request is answered with, is
    erased after ``SECRET_LIFETIME``.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    resource = models.CharField(max_length=64)
    row_id = models.UUIDField(db_index=True)
    has_secret = models.BooleanField(default=False, db_default=False)
    sealed = models.BinaryField(null=True)

    objects = CreationManager()

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=("organization", "resource", "idempotency_key"), name="creation_key_unique"
            ),
            models.CheckConstraint(
                condition=Q(sealed=None) | Q(has_secret=True), name="creation_sealed_is_secret"
            ),
        ]
        indexes = [
            models.Index(
                fields=("created_at",), condition=Q(sealed__isnull=False), name="creation_sealed"
            )
        ]

    def __str__(self) -> str:
        return f"{self.resource} {self.row_id}"

    @property
    def _associated(self) -> str:
        return f"creation|{self.pk}|{self.organization_id}"

    def reveal(self) -> Secret | None:
        """Returns the secret that the first request was answered, ``None`` if it had none.

        Raises :class:`SecretErased`.
        """
        if not self.has_secret:
            return None
        if self.sealed is None or clock.now() >= self.created_at + SECRET_LIFETIME:
            raise SecretErased
        try:
            return secrets.unseal(bytes(self.sealed), associated=self._associated)
        except secrets.DecryptionFailed:
            raise SecretErased from None

    def rewrap(self) -> bool:
        """Encrypts the secret with the first credential key; returns whether the row changed."""
        return secrets.rewrap_row(self, "sealed", associated=self._associated)


def erase_new_secrets() -> int:
    """Erases the secrets of new keys and webhooks that no repeated request may be answered."""
    return Creation.objects.erase_due()
