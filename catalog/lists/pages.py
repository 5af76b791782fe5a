"""Pages of the model lists, whose rows are rendered already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.views import APIView

from config.api.pagination import OffsetPagination


class CataloguePagination(OffsetPagination):
    """The whole list, or one page of it when the request sends ``offset`` or ``limit``."""

    default_limit = 500
    max_limit = 1000

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any]:
        self.count = len(queryset)
        offset, limit = self.get_offset(request), self.get_limit(request)
        self.next_link: str | None = None
        if request.query_params.keys().isdisjoint(("offset", "limit")):
            return list(queryset)
        end = offset + limit
        if end < self.count:
            query = request.query_params.copy()
            query["offset"], query["limit"] = str(end), str(limit)
            self.next_link = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
        return list(queryset[offset:end])

    def get_paginated_response(self, data: Sequence[Any]) -> HttpResponse:  # type: ignore[override]
        links = {"next": self.next_link}
        return render({"data": list(data), "links": links, "total_count": self.count})


def render(body: Any) -> HttpResponse:
    """Returns a response whose body contains models that are rendered already.

    Django REST Framework's renderer would encode them a second time.
    """
    return HttpResponse(msgspec.json.encode(body), content_type="application/json")
