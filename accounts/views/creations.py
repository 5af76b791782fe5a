"""Creates what a ``POST`` asks for, once for each ``Idempotency-Key``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from accounts.models import ApiKey
from accounts.models.creations import CreateCall, Created, Creation
from config.api.errors import NotFound
from config.api.fields import StrictSerializer
from config.api.idempotency import idempotency_key_of
from config.api.viewsets import OrganizationViewSet
from config.credentials import Secret


class CreatingViewSet(OrganizationViewSet):
    """A resource that a repeated ``POST`` with an ``Idempotency-Key`` does not create again."""

    def create_once(
        self, shape: type[StrictSerializer], create: Callable[[dict[str, Any]], Created]
    ) -> tuple[Any, Secret | None]:
        """Creates a row from the body, or returns the one of the first request with the same key.

        The row is as it is now; its secret is the one that the first request was answered. A body
        that was accepted before is not checked again. Raises :class:`IdempotencyKeyReused`,
        :class:`SecretErased`, and :class:`NotFound` when the row was deleted.
        """
        key = idempotency_key_of(self.request.headers)
        if key is None:
            return create(self.read_body(shape))
        body = cast("dict[str, Any]", self.request.data)
        is_operators = cast(ApiKey, self.request.auth).issued_by_operator
        call = CreateCall(self.organization_id, self.basename or "", key, body, is_operators)
        found = Creation.objects.find(call)
        if found is None:
            fields = self.read_body(shape)
            found = Creation.objects.create_once(call, lambda: create(fields))
        row = self.get_queryset().filter(pk=found.row_id).first()
        if row is None:
            raise NotFound("What this Idempotency-Key created was deleted.")
        return row, found.reveal()
