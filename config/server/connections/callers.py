"""Notes which connections of the console are an operator's."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from config.server.bodies import mark_recognized


class OperatorConnectionMiddleware:
    """Marks the connection of a request as recognized, if a view has met a signed-in operator."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        # Django keeps the user here once something has asked for it; this asks for nothing.
        user = getattr(request, "_cached_user", None)
        if user is not None and user.is_authenticated:
            mark_recognized(getattr(request, "scope", {}))
        return response
