"""Pages of lists, by ``offset`` and ``limit``, in the envelope of the contract."""

from __future__ import annotations

from typing import Any

from rest_framework.pagination import BasePagination, LimitOffsetPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.api.params import IntegerParameter, OffsetParameter, read_parameter


class OffsetPagination(LimitOffsetPagination):
    """Pages of at most ``max_limit`` rows, with the count of all rows as ``total_count``."""

    default_limit = 50
    max_limit = 100

    def get_limit(self, request: Request) -> int:
        limit: int | None = read_parameter(request, "limit", self._limit())
        return self.default_limit if limit is None else limit

    def get_offset(self, request: Request) -> int:
        return read_parameter(request, "offset", OffsetParameter())

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"data": data, "total_count": self.count})

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        return [
            _describe("offset", "Records to skip; at least 0.", OffsetParameter()),
            _describe("limit", "Records to return at most.", self._limit()),
        ]

    def _limit(self) -> IntegerParameter:
        return IntegerParameter(minimum=1, maximum=self.max_limit)


class UncountedPagination(OffsetPagination):
    """Pages of a fixed size, without a count."""

    default_limit = 100

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any]:
        offset = self.get_offset(request)
        return list(queryset[offset : offset + self.default_limit])

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"data": data})

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        return super().get_schema_operation_parameters(view)[:1]


class WholeList(BasePagination):
    """Every row on one page, for lists that a limit keeps short."""

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any]:
        return list(queryset)

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"data": data})

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        return []


def _describe(name: str, description: str, kind: IntegerParameter) -> dict[str, Any]:
    return {"in": "query", "name": name, "schema": kind.schema, "description": description}
