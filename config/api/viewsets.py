"""The base of every resource: its rows belong to the organization of the caller's key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast
from uuid import UUID

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from config.api.errors import NotFound
from config.api.fields import StrictSerializer
from config.api.openapi import DeletedSerializer, operation
from config.api.pagination import OffsetPagination
from config.api.text import NOT_STORABLE, parse_uuid


class OrganizationViewSet(GenericViewSet[Any]):
    """A resource whose queryset has ``for_organization()``; foreign rows are not found.

    A subclass declares ``queryset``, ``serializer_class`` of its responses, ``permission_classes``
    and ``not_found``, the error for an identifier that names no row.
    """

    filter_backends = [DjangoFilterBackend]
    pagination_class: type[BasePagination] = OffsetPagination
    lookup_value_regex = "[^/]+"
    not_found: ClassVar[type[NotFound]] = NotFound
    # Query parameters of the list that the view reads itself.
    own_parameters: ClassVar[tuple[str, ...]] = ()
    # Parameters of all operations, or of those with this name in their path, for the document.
    shared_parameters: ClassVar[tuple[OpenApiParameter, ...]] = ()
    # ``@action(is_list=True)`` marks a nested list, whose pages are documented.
    is_list: ClassVar[bool] = False

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action == "list" or (self.is_list and request.method in ("GET", "HEAD")):
            self._refuse_row_fields()

    def _refuse_row_fields(self) -> None:
        """Raises a 400 for a field of a list's rows by which it cannot be filtered.

        Its caller expects some rows, and would take all of them for those.
        """
        filters = getattr(self, "filterset_class", None)
        known = {
            "offset",
            "limit",
            *self.own_parameters,
            *(filters.base_filters if filters else ()),
        }
        others = [name for name in self.request.query_params if name not in known]
        serializer: Any = self.get_serializer() if others else None
        fields = serializer.fields if others else ()
        if wrong := [name for name in others if name in fields]:
            text = "This list cannot be filtered by this field. Leave it out."
            raise ValidationError({name: [text] for name in wrong})

    @property
    def organization_id(self) -> UUID:
        """The organization of the caller's key."""
        return cast(UUID, cast(Any, self.request.user).organization_id)

    @property
    def actor(self) -> str:
        """The name of the caller in histories."""
        return cast(str, cast(Any, self.request.user).actor)

    def get_queryset(self) -> QuerySet[Any]:
        rows: Any = super().get_queryset()
        return cast("QuerySet[Any]", rows.for_organization(self.organization_id))

    def get_object(self) -> Any:
        """Returns the row that the path names; raises :attr:`not_found`.

        Filters of the list do not apply: a row that the list leaves out can still be read.
        """
        return self.find(self.kwargs[self.lookup_url_kwarg or self.lookup_field])

    def find(self, text: str) -> Any:
        """Returns the row with this identifier; raises :attr:`not_found`."""
        value = parse_uuid(text) if self.lookup_field == "pk" else text
        found = None
        if not NOT_STORABLE.search(text):
            found = self.get_queryset().filter(**{self.lookup_field: value}).first()
        if found is None:
            raise self.not_found
        self.check_object_permissions(self.request, found)
        return found

    def read_body(self, shape: type[StrictSerializer], **context: Any) -> dict[str, Any]:
        """Returns the fields of the request body; raises a 400 that names the refused ones.

        The serializer finds ``organization_id`` and ``context`` in its context.
        """
        context = {**context, "organization_id": self.organization_id}
        body = shape(data=self.request.data, context=context)
        body.is_valid(raise_exception=True)
        return dict(body.validated_data)

    def respond(self, row: Any, status: int = 200) -> Response:
        """Renders one row in the envelope."""
        return Response({"data": self.get_serializer(row).data}, status)

    def respond_with_page(self, rows: Any) -> Response:
        """Renders the requested page of a list in the envelope."""
        data = self.get_serializer(self.paginate_queryset(rows), many=True).data
        return self.get_paginated_response(data)


def make_list(
    name: str, response: Any, text: str, statuses: Sequence[int] = (400,), **options: Any
) -> Any:
    """Makes the operation that lists the rows of a resource; ``text`` describes it."""

    def list_rows(view: Any, request: Request) -> Any:
        return view.respond_with_page(view.filter_queryset(view.get_queryset()))

    return _document(list_rows, text, name, None, response, statuses, **options)


def make_retrieve(
    name: str, response: Any, text: str, statuses: Sequence[int] = (404,), **options: Any
) -> Any:
    """Makes the operation that shows one row of a resource."""

    def retrieve(view: Any, request: Request, **path: str) -> Any:
        return view.respond(view.get_object())

    return _document(retrieve, text, name, None, response, statuses, **options)


def make_update(
    name: str,
    shape: type[StrictSerializer],
    response: Any,
    text: str,
    statuses: Sequence[int] = (404,),
    **options: Any,
) -> Any:
    """Makes the operation that edits one row of a resource by the members that are sent."""

    def partial_update(view: Any, request: Request, **path: str) -> Any:
        fields = view.read_body(shape)
        row = view.get_object()
        row.edit(**fields)
        return view.respond(row)

    return _document(partial_update, text, name, shape, response, statuses, **options)


def make_destroy(name: str, text: str, statuses: Sequence[int] = (404,), **options: Any) -> Any:
    """Makes the operation that removes one row of a resource."""

    def destroy(view: Any, request: Request, **path: str) -> Response:
        view.get_object().remove()
        return Response({"deleted": True})

    return _document(destroy, text, name, None, {200: DeletedSerializer}, statuses, **options)


def _document(method: Any, text: str, *described: Any, **options: Any) -> Any:
    method.__doc__ = text
    return operation(*described, **options)(method)
