"""Creates what a ``POST`` asks for, once for each ``Idempotency-Key``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, cast

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.models import ApiKey
from accounts.models.creations import CreateCall, Created, Creation
from config.api.errors import NotFound
from config.api.fields import StrictSerializer
from config.api.idempotency import idempotency_key_of
from config.api.openapi import creation
from config.api.viewsets import OrganizationViewSet
from config.credentials import Secret


class CreatingViewSet(OrganizationViewSet):
    """A resource that a repeated ``POST`` with an ``Idempotency-Key`` does not create again."""

    def create_once(
        self, shape: type[StrictSerializer], create: Callable[[dict[str, Any]], Created]
    ) -> tuple[Any, Secret | None]:
        """Creates a row from the body, or returns the one of the first request with the same key.

        A body that was accepted before is not checked again. Raises as :meth:`run_once` does.
        """
        body = self.request.data
        # What is no object is refused before it creates.
        stated = body if isinstance(body, Mapping) else {}
        return self.run_once(stated, create, read=lambda: self.read_body(shape))

    def run_once(
        self,
        body: Mapping[str, Any],
        create: Callable[[dict[str, Any]], Created],
        *,
        read: Callable[[], dict[str, Any]] = dict,
        rows: Callable[[], QuerySet[Any]] | None = None,
    ) -> tuple[Any, Secret | None]:
        """Calls ``create``, or returns what the first request with the same key has created.

        That request had the same path and an equal ``body``. Otherwise the fields that ``create``
        takes are ``read`` first, so that a bad request is refused as such. The row, one of
        ``rows``, is as it is now; its secret is the one that the first request was answered.
        Raises :class:`IdempotencyKeyReused`, :class:`SecretErased`, and :class:`NotFound` when the
        row was deleted.
        """
        key = idempotency_key_of(self.request.headers)
        if key is None:
            return create(read())
        call = CreateCall(
            organization_id=self.organization_id,
            resource=f"{self.basename}{'' if self.action == 'create' else f' {self.action}'}",
            key=key,
            body=body,
            is_operators=cast(ApiKey, self.request.auth).issued_by_operator,
            target=tuple(self.kwargs.values()),
        )
        found = Creation.objects.find(call)
        if found is None:
            fields = read()
            found = Creation.objects.create_once(call, lambda: create(fields))
        row = (rows or self.get_queryset)().filter(pk=found.row_id).first()
        if row is None:
            raise NotFound("What this Idempotency-Key created was deleted.")
        return row, found.reveal()


def creates(
    name: str, shape: type[StrictSerializer], response: Any, statuses: Sequence[int] = ()
) -> Callable[[Callable[[Any, dict[str, Any]], Any]], Any]:
    """Makes a method, which creates a row from the fields of the body, an operation."""

    def decorate(method: Callable[[Any, dict[str, Any]], Any]) -> Any:
        @creation(name, shape, response, statuses)
        @wraps(method)
        def create(view: CreatingViewSet, request: Request) -> Response:
            row, _ = view.create_once(shape, lambda fields: (method(view, fields), None))
            return view.respond(row, status=201)

        return create

    return decorate
