"""Routes that fail, to prove which errors a caller sees."""

from __future__ import annotations

from typing import NoReturn

from django.db import OperationalError
from django.http import HttpRequest
from django.urls import path
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.views import APIView


def _plain(request: HttpRequest) -> NoReturn:
    raise ZeroDivisionError("a secret detail")


def _database(request: HttpRequest) -> NoReturn:
    raise OperationalError("a secret detail")


class _Rest(APIView):
    authentication_classes = ()
    permission_classes = (AllowAny,)
    failure: type[Exception] = ZeroDivisionError

    def get(self, request: Request) -> NoReturn:
        raise self.failure("a secret detail")


urlpatterns = [
    path("plain", _plain),
    path("admin/plain", _plain),
    path("admin/database", _database),
    path("rest", _Rest.as_view()),
    path("rest-database", _Rest.as_view(failure=OperationalError)),
]

handler500 = "config.pages.handlers.server_error"
